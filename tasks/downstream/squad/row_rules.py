"""What rows of questions must be: answers inside their windows, each window once, and targets that decode to the
reference answers of their questions. Legend: n rows of S slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq

from tasks.downstream.squad.about import FEATURES_SCHEMA
from tasks.downstream.squad.metrics import normalize_answer
from tasks.reading.parquet import group_batches
from tasks.rows.row_files import IGNORED, from_arrow
from tasks.validation.checks import Check, Total, Totals
from tasks.validation.row_checks import Columns, Examples, RowSource, Sequences
from tasks.validation.window_checks import Lines, WindowData

BOTH = "start_positions, end_positions"
MAX_SHARE = 0.2
"""Largest share of targets that may differ. Tokens are whole pieces, so that a target may be wider than its answer
("square kilometres (2,700" for one cut off at "2,70"). With the vocabulary of bert-base-uncased 0.1 % of the targets
differ in SQuADShifts' questions on new Wikipedia, 0.3 % in twenty articles of SQuAD 2.0, and 8 % in a public set whose
answers are cut inside of words; offsets that are wrong by one token let nearly all differ."""
QUESTIONS_AT_ONCE, WINDOWS_AT_ONCE = 32, 1024
"""Few questions, as a context may have megabytes."""
NONE = -1


class AnswerRows(WindowData):
    """Answers of windows, and the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("question_answering",)

    def __init__(self, source: RowSource) -> None:
        super().__init__(source, FEATURES_SCHEMA, _answer_checks(source.again), ("context_start",))
        section, smallest = self.section, int(source.training)  # what is learnt from takes an answer at least
        answers = Check(
            "answers",
            "start_positions",
            f"at least {smallest} with an answer in its window",
            f"answers lie outside of every window: look at {section}.row_length and {section}.doc_stride",
            minimum=smallest,
        )
        self._examples = source.examples if source.training else None
        self._spans = np.zeros((0, 2), np.int32)
        """The target of each window, as its first and last token, counted from the first of the context."""
        self._differing = ""
        self.total_checks += (answers, *([_TARGETS] if self._examples else []))
        self._counts = {"answered": 0, "labelled": 0}

    def prepare_kind(self) -> list[str]:
        problems = super().prepare_kind()
        self._spans = np.full((len(self._ids), 2), NONE, np.int32)
        return problems

    def label_features(self, rows: Columns, found: Sequences, lines: Lines) -> Columns:
        features = answer_features(rows, lines)
        for name in self._counts:
            self._counts[name] += int(features[name].sum())
        if self._examples is not None:
            windows, first, last = taught_spans(rows, lines)
            self._spans[windows] = np.stack([first, last], axis=1)
        return features

    def totals(self) -> Totals:
        totals = {**super().totals(), "answers": Total(self._counts["answered"])}
        return totals if self._examples is None else {**totals, "targets": self._compare_targets(self._examples)}

    def notes(self) -> list[str]:
        return [*super().notes(), *([f"{self.name} rows: {self._differing}"] if self._differing else [])]

    def _compare_targets(self, examples: Examples) -> Total:
        """Return the share of targets that differ from every answer of their question, with a few examples."""
        targets, differ = int((self._spans[:, 0] != NONE).sum()), 0
        shown: list[str] = []
        for decoded, answers in self._decode(examples):
            if normalize_answer(decoded) not in map(normalize_answer, answers):
                differ += 1
                if len(shown) < 3:
                    shown.append(f"{decoded!r} for {answers[0]!r}")
        share = differ / max(1, targets)
        text = f"{differ:,} of {targets:,} targets ({share:.1%}) differ from every answer of their question"
        if differ:
            self._differing = f"{text}, as their tokens are wider; for example {shown[0]}"
        return Total(share, text, shown)

    def _decode(self, examples: Examples) -> Iterator[tuple[str, list[str]]]:
        """Yield the characters of every target and the answers of its question; read alongside, a few at a time."""
        batches, before, batch = examples.read(("context", "answers"), QUESTIONS_AT_ONCE), 0, None
        for example, first, last in self._characters():
            while batch is None or example >= before + len(batch):
                before, batch = before + (0 if batch is None else len(batch)), next(batches)
            context = batch.column("context")[example - before].as_py()
            answers = batch.column("answers")[example - before].as_py()
            yield context[first:last], [one["text"] for one in answers]

    def _characters(self) -> Iterator[tuple[int, int, int]]:
        """Yield example, first and last character of every target, in order of the examples."""
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            line = 0
            for batch in group_batches(file, ["example_index", "offsets"], WINDOWS_AT_ONCE):
                spans = self._spans[line : line + len(batch)]
                line += len(batch)
                taught = np.flatnonzero(spans[:, 0] != NONE)
                lists = batch.column("offsets")
                starts, characters = from_arrow(lists.offsets), from_arrow(lists.values)
                example = from_arrow(batch.column("example_index"))[taught]
                first = characters[starts[taught] + 2 * spans[taught, 0]]
                last = characters[starts[taught] + 2 * spans[taught, 1] + 1]
                yield from zip(example.tolist(), first.tolist(), last.tolist(), strict=True)

    def numbers(self) -> dict[str, Any]:
        counts = {"labelled sequences": self._counts["labelled"], "sequences with an answer": self._counts["answered"]}
        return {**super().numbers(), **counts}


def answer_features(rows: Columns, windows: Lines) -> Columns:
    """Features [n] of start_positions and end_positions.

    Args:
        windows: of the sequences, with their `n_tokens` and `context_start`.
    """
    start, end = (rows[name].astype(np.int64) for name in ("start_positions", "end_positions"))
    length, present, first, tokens = rows["input_ids"].shape[1], windows.present, windows.starts, windows.lengths
    labelled = (start != IGNORED) | (end != IGNORED)
    inside = (start >= 0) & (start < length) & (end >= 0) & (end < length)
    complete = labelled & present & inside
    in_sequence = (start >= first) & (start < first + tokens) & (end >= first) & (end < first + tokens)
    # Hugging Face and Google point a window without the answer at its [CLS].
    at_cls = (start == first) & (end == first)
    context_start, n_tokens = windows.columns["context_start"], windows.columns["n_tokens"]
    in_context = (start >= first + context_start) & (end < first + n_tokens - 1)
    right = complete & in_sequence
    return {
        "answer_slots": (present & ((start == IGNORED) != (end == IGNORED))).sum(axis=1),
        "start_before_end": (complete & (start > end)).sum(axis=1),
        "answer_in_sequence": (complete & ~in_sequence).sum(axis=1),
        "answer_in_context": (right & windows.known & ~at_cls & ~in_context).sum(axis=1),
        "answered": (right & ~at_cls).sum(axis=1),
        "labelled": (labelled & present).sum(axis=1),
    }


def taught_spans(rows: Columns, windows: Lines) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows with a target inside their context: their numbers, and its first and last token from the context's first.

    Args:
        windows: as for `answer_features`.
    """
    context = windows.starts + windows.columns["context_start"]
    first, last = (rows[name].astype(np.int64) - context for name in ("start_positions", "end_positions"))
    tokens = windows.columns["n_tokens"] - windows.columns["context_start"] - 1
    taught = windows.known & (first >= 0) & (first <= last) & (last < tokens)
    return rows["feature_ids"][taught], first[taught], last[taught]


_TARGETS = Check(
    "targets",
    BOTH,
    f"at most {MAX_SHARE:.0%} of the targets differ, decoded and normalised, from every answer of their question",
    "answers begin or end inside of words, or rows belong to other examples: look at answer_start in the source file",
    maximum=MAX_SHARE,
)


def _answer_checks(again: str) -> list[Check]:
    required = {
        "answer_slots": "both or neither",
        "start_before_end": "start <= end",
        "answer_in_sequence": "both in the sequence they belong to",
        "answer_in_context": "in the context of the window, or both at [CLS] where it has no answer",
    }
    return [Check(name, BOTH, text, again) for name, text in required.items()]
