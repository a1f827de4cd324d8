"""What rows of questions must be: answers inside their windows, each window once. Legend: n rows of S slots."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.squad.targets import MAX_SHARE, Targets
from tasks.project import artifacts
from tasks.rows.row_files import IGNORED
from tasks.validation.checks import Check, Totals
from tasks.validation.feature_file import FeatureFile, Lines
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import Examples, RowRules

WINDOWS = pa.schema(
    [
        ("feature_id", pa.int32()),
        ("example_id", pa.string()),
        ("example_index", pa.int32()),
        ("n_tokens", pa.int32()),
        ("context_start", pa.int32()),
        ("offsets", pa.list_(pa.int32())),
    ]
)
"""Columns of features.parquet."""
BOTH = "start_positions, end_positions"


class AnswerRules(RowRules):
    """Answers of windows, and the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("question_answering",)

    def __init__(self, limits: RowLimits, *, training: bool, examples: Examples | None = None) -> None:
        """Take note of what is required.

        Args:
            training: whether the rows are learnt from, which takes an answer at least.
            examples: the questions; None: targets are not compared with their answers.
        """
        super().__init__(limits)
        self._windows = FeatureFile(limits, WINDOWS, ("context_start",))
        smallest = int(training)
        answers = Check(
            "answers",
            "start_positions",
            f"at least {smallest} with an answer in its window",
            f"answers lie outside of every window: look at {limits.section}.row_length and {limits.section}.doc_stride",
            minimum=smallest,
        )
        self._targets = Targets(limits.folder / artifacts.FEATURES, examples) if training and examples else None
        self.total_checks = (*self._windows.total_checks, answers, *([_TARGETS] if self._targets else []))
        self.record_checks = (*_answer_checks(limits.again), *self._windows.record_checks)
        self._seen = {"answered": 0, "labelled": 0}

    def prepare(self) -> list[str]:
        problems = self._windows.prepare()
        if self._targets is not None and not problems:
            self._targets.prepare()
        return problems

    def features(self, rows: Columns, found: Sequences) -> Columns:
        windows = self._windows.lines(rows, found)
        features = answer_features(rows, found, windows)
        for name in self._seen:
            self._seen[name] += int(features[name].sum())
        if self._targets is not None:
            self._targets.add(*taught_spans(rows, found, windows))
        return {**features, **self._windows.features(rows, found, windows)}

    def totals(self) -> Totals:
        totals = self._windows.totals()
        totals.values["answers"] = self._seen["answered"]
        return totals if self._targets is None else totals | self._targets.totals()

    def notes(self) -> list[str]:
        return [self._targets.note] if self._targets is not None and self._targets.note else []

    def numbers(self) -> dict[str, Any]:
        return {"labelled sequences": self._seen["labelled"], "sequences with an answer": self._seen["answered"]}


def answer_features(rows: Columns, found: Sequences, windows: Lines) -> Columns:
    """Features [n] of start_positions and end_positions.

    Args:
        windows: of the sequences, with their `n_tokens` and `context_start`.
    """
    start, end = (rows[name].astype(np.int64) for name in ("start_positions", "end_positions"))
    slots, length, present = start.shape[1], found.real.shape[1], windows.present
    first = found.table(found.start, slots, 0)
    tokens = found.table(found.length, slots, 0)
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
        "answer_slots": ((labelled & ~present) | ((start == IGNORED) != (end == IGNORED))).sum(axis=1),
        "answer_in_row": (labelled & present & ~inside & (start != IGNORED) & (end != IGNORED)).sum(axis=1),
        "start_before_end": (complete & (start > end)).sum(axis=1),
        "answer_in_sequence": (complete & ~in_sequence).sum(axis=1),
        "answer_in_context": (right & windows.known & ~at_cls & ~in_context).sum(axis=1),
        "answered": (right & ~at_cls).sum(axis=1),
        "labelled": (labelled & present).sum(axis=1),
    }


def taught_spans(rows: Columns, found: Sequences, windows: Lines) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows with a target inside their context: their numbers, and its first and last token from the context's first.

    Args:
        windows: as for `answer_features`.
    """
    slots = rows["start_positions"].shape[1]
    context = found.table(found.start, slots, 0) + windows.columns["context_start"]
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
        "answer_slots": "both or neither, and -100 where no sequence is",
        "answer_in_row": "positions inside the row",
        "start_before_end": "start <= end",
        "answer_in_sequence": "both in the sequence they belong to",
        "answer_in_context": "in the context of the window, or both at [CLS] where it has no answer",
    }
    return [Check(name, BOTH, text, again, maximum=0) for name, text in required.items()]
