"""Validation of questions in SQuAD's format, and of their rows.

Rows must have answers inside their windows, each window once, and targets that decode to the reference answers. Legend:
n rows of S slots.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.squad.params import SquadParams
from tasks.downstream.squad.schemas import FEATURES_SCHEMA, SCHEMA
from tasks.downstream.squad.score_files import normalize_answer
from tasks.params.entries import Entry
from tasks.records.parquet import read_group_batches
from tasks.rows.row_files import IGNORED, from_arrow
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, Frame, Label, TotalFeature, Totals
from tasks.validation.row_checks import Columns, FeatureLines, RowSequences, RowSource, SourceExamples, WindowData
from tasks.validation.text_features import ExampleFiles, FilePart

SPLITS = ("train", "dev")
LOOK = "check train_path and dev_path of its section data in params.yaml"
MORE = "provide more questions ({split}_path or demo_{split} of its section data), or lower min_examples there"
BOTH = "start_positions, end_positions"
MAX_SHARE = 0.2
"""Maximum share of targets that may differ. Targets are whole tokens and may be wider than the answer ("square
kilometres (2,700" for an answer that ends in "2,70"). With the vocabulary of bert-base-uncased, 0.1 % of the targets
differ in the new Wikipedia questions of SQuADShifts, 0.3 % in twenty articles of SQuAD 2.0, and 8 % in a public set
whose answers end inside words. If offsets are wrong by one token, nearly all differ."""
PARTS = ("context", "answers")
"""Columns that targets are compared with."""
QUESTIONS_AT_ONCE, WINDOWS_AT_ONCE = 32, 1024
"""Few questions, because a context may have megabytes."""
NONE = -1


class QuestionData(ExampleFiles):
    """Training and dev questions of a folder."""

    name, record, measured = "questions", "question", ("contexts", "questions", "answers")
    texts: ClassVar[Mapping[str, str]] = {name: name for name in ("id", "title", "context", "question")}

    def __init__(self, entry: Entry, folder: Path) -> None:
        """Open the splits in `folder`; raises the errors of `ExampleFiles`."""
        params = entry.params_as(SquadParams)
        self._nullable = params.nullable
        columns = "id, title, context, question: string; answers: list of struct (text: string, answer_start: integer)"
        super().__init__(folder, SPLITS, SCHEMA, columns)
        unseen = "no dev question is in train with the same context"
        in_place = "the context has the text of every answer at answer_start (in characters)"
        answered = f"unanswerable: use allows questions without an answer: {LOOK}"
        present = DataCheck("answers_present", "answers", "every question has at least one answer", answered, minimum=1)
        both = f"provide both kinds of questions ({LOOK}), or set unanswerable to drop or refuse"
        groups = (
            DataCheck(
                f"{split}_{kind}_answer",
                f"{split}.parquet",
                f"at least one question {kind} an answer, as data.unanswerable is use",
                both,
                minimum=1,
            )
            for split in SPLITS
            for kind in ("with", "without")
        )
        self.total_checks = (
            *self.count_checks(params.data.min_examples, MORE),
            DataCheck("ids_unique", "id", "ids are unique across train and dev", LOOK),
            DataCheck(
                "dev_unseen", "question, context", unseen, f"scores on training questions are meaningless: {LOOK}"
            ),
            *(groups if self._nullable else ()),
        )
        self.record_checks = (
            *self.text_checks(LOOK),
            DataCheck("answers_not_empty", "answers.text", "no answer is null or empty", LOOK),
            DataCheck(
                "answer_in_context",
                "answers.answer_start",
                in_place,
                f"correct answer_start in the source file: {LOOK}",
            ),
            *(() if self._nullable else (present,)),
        )

    @property
    def _bare(self) -> Counter[str]:
        """Number of questions without an answer, by split."""
        return self.tally.counters["bare"]

    def _label(self, part: FilePart, batch: pa.RecordBatch, first: int, offset: int) -> str:
        key = batch.column("id")[offset].as_py() or ""
        return f"{part.name} {key}" if key.strip() else f"{part.name} line {first + offset}"

    def _features(self, split: str, batch: pa.RecordBatch, label: Label) -> Frame:
        answers = batch.column("answers").to_pylist()
        contexts, keys = text_features.to_strings(batch.column("context")), _question_keys(batch)
        self.add_keys(split, keys, folded=False)
        texts = [(answer or {}).get("text") or "" for references in answers for answer in references or []]
        columns = batch.column("context"), batch.column("question"), pa.array(texts, pa.string())
        for name, column in zip(self.measured, columns, strict=True):
            self.tally.histograms[name].add(text_features.count_characters(column))
        counts = [_judge_answers(references, context) for references, context in zip(answers, contexts, strict=True)]
        total, empty, misplaced = np.array(counts, np.int64).reshape(-1, 3).T
        self._bare[split] += int((total == 0).sum())
        return {"answers_present": total, "answers_not_empty": empty, "answer_in_context": misplaced}

    def totals(self) -> Totals:
        groups = {
            f"{split}_{kind}_answer": TotalFeature(count)
            for split in SPLITS
            for kind, count in (("with", self.records[split] - self._bare[split]), ("without", self._bare[split]))
        }
        leaked = self._find_leaked()
        shown = f"{len(leaked):,} of {self.records['dev']:,} dev questions are also in train"
        return {
            **super().totals(),
            "ids_unique": self.repeated_ids(),
            "dev_unseen": TotalFeature(len(leaked), shown, leaked),
            **(groups if self._nullable else {}),
        }

    def _find_leaked(self) -> list[str]:
        """Return the dev questions that are also in train; the file is read again only if there are any."""
        shared = np.intersect1d(self.hashes("train"), self.hashes("dev"))
        if not len(shared):
            return []
        leaked: list[str] = []
        for part in self.parts():
            for batch in self._read(part, ["context", "question"]) if part.name == "dev" else ():
                seen = np.isin(text_features.hash_strings(_question_keys(batch)), shared)
                leaked += text_features.to_strings(batch.column("question"))[seen].tolist()
        return leaked

    def numbers(self) -> dict[str, object]:
        shares: dict[str, float] = {}
        for split in SPLITS if self._nullable else ():
            shares[f"{split} questions without an answer"] = self._bare[split]
            shares[f"{split} share without an answer"] = self._bare[split] / max(1, self.records[split])
        return {
            **super().numbers(),
            **shares,
            "answers": self.tally.histograms["answers"].count,
            **{f"mean characters of a {name[:-1]}": self.tally.histograms[name].mean for name in self.measured},
            **self.reading,
        }


def _question_keys(batch: pa.RecordBatch) -> np.ndarray:
    """Return each question with its context. object [n]."""
    contexts, questions = (text_features.to_strings(batch.column(name)) for name in ("context", "question"))
    return questions + "\n" + contexts


def _judge_answers(answers: list[dict[str, Any] | None] | None, context: str) -> tuple[int, int, int]:
    """Return the numbers of answers, of empty ones, and of those that are not at answer_start."""
    pairs = [((answer or {}).get("text") or "", (answer or {}).get("answer_start")) for answer in answers or []]
    # startswith counts a negative start from the end.
    misplaced = [
        text
        for text, start in pairs
        if text.strip() and (start is None or start < 0 or not context.startswith(text, start))
    ]
    return len(pairs), sum(not text.strip() for text, _ in pairs), len(misplaced)


class AnswerRows(WindowData):
    """Validation of answers in rows, and of the windows in features.parquet."""

    kinds: ClassVar[tuple[str, ...]] = ("question_answering",)

    def __init__(self, source: RowSource) -> None:
        required = {
            "answer_slots": "both or neither",
            "start_before_end": "start <= end",
            "answer_in_sequence": "both in their own sequence",
            "answer_in_context": "in the context of the window, or both at [CLS] without an answer",
        }
        checks = [DataCheck(name, BOTH, text, source.advice) for name, text in required.items()]
        super().__init__(source, FEATURES_SCHEMA, checks, ("context_start",))
        section, smallest = self.section, int(source.training)  # training needs at least one answer
        answers = DataCheck(
            "answers",
            "start_positions",
            f"at least {smallest} with an answer in its window",
            f"no window contains an answer: check {section}.row_length and {section}.doc_stride",
            minimum=smallest,
        )
        targets = DataCheck(
            "targets",
            BOTH,
            f"at most {MAX_SHARE:.0%} of the decoded, normalised targets differ from all answers of their question",
            "answers begin or end inside words, or rows belong to other examples: check answer_start in the file",
            maximum=MAX_SHARE,
        )
        self._examples = source.examples if source.training else None
        self._differing = ""
        self.total_checks += (answers, *([targets] if self._examples else []))

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        first, last = (int(row[name][slot]) - start for name in ("start_positions", "end_positions"))
        return " ".join(tokens[first : last + 1]) if first > 0 else "no answer in this window"

    def label_features(self, rows: Columns, sequences: RowSequences, lines: FeatureLines) -> Columns:
        features = answer_features(rows, lines)
        self.tally.counts.update({name: int(features[name].sum()) for name in ("answered", "labelled")})
        if self._examples is not None:
            self.tally.lists["spans"].append(np.stack(target_spans(rows, lines), axis=1).astype(np.int32))
        return features

    def totals(self) -> Totals:
        totals = {**super().totals(), "answers": TotalFeature(self.tally.counts["answered"])}
        return totals if self._examples is None else {**totals, "targets": self._compare_targets(self._examples)}

    def notes(self) -> list[str]:
        return [*super().notes(), *([f"{self.name} rows: {self._differing}"] if self._differing else [])]

    def _compare_targets(self, examples: SourceExamples) -> TotalFeature:
        spans = np.full((len(self._ids), 2), NONE, np.int32)
        for chunk in self.tally.lists["spans"]:
            spans[chunk[:, 0]] = chunk[:, 1:]
        targets, differ = int((spans[:, 0] != NONE).sum()), 0
        shown: list[str] = []
        for decoded, answers in self._decode(examples, spans):
            if normalize_answer(decoded) not in map(normalize_answer, answers):
                differ += 1
                if len(shown) < 3:
                    shown.append(f"{decoded!r} for {answers[0]!r}")
        share = differ / max(1, targets)
        text = f"{differ:,} of {targets:,} targets ({share:.1%}) differ from all answers of their question"
        if differ:
            self._differing = f"{text} because their tokens are wider; for example {shown[0]}"
        return TotalFeature(share, text, shown)

    def _decode(self, examples: SourceExamples, targets: np.ndarray) -> Iterator[tuple[str, list[str]]]:
        """Yield the text of every target and the answers of its question, reading both files in small batches.

        Args:
            targets: first and last token of each window's target, counted from the first context token. [windows, 2].
        """
        batches, questions, before, line = examples.read(PARTS, QUESTIONS_AT_ONCE), pa.table({}), 0, 0
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            for windows in read_group_batches(file, ["example_index", "offsets"], WINDOWS_AT_ONCE):
                spans, lists = targets[line : line + len(windows)], windows.column("offsets")
                line += len(windows)
                taught = np.flatnonzero(spans[:, 0] != NONE)
                starts, characters = from_arrow(lists.offsets)[taught], from_arrow(lists.values)
                example = from_arrow(windows.column("example_index"))[taught]
                firsts, lasts = characters[starts + 2 * spans[taught, 0]], characters[starts + 2 * spans[taught, 1] + 1]
                for number, first, last in zip(example.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
                    while number >= before + len(questions):
                        before, questions = before + len(questions), next(batches)
                    context, answers = (questions.column(name)[number - before].as_py() for name in PARTS)
                    yield context[first:last], [answer["text"] for answer in answers]

    def numbers(self) -> dict[str, object]:
        labelled, answered = self.tally.counts["labelled"], self.tally.counts["answered"]
        return {**super().numbers(), "labelled sequences": labelled, "sequences with an answer": answered}


def answer_features(rows: Columns, windows: FeatureLines) -> Columns:
    """Return features [n] of start_positions and end_positions.

    Args:
        windows: windows of the sequences, with `n_tokens` and `context_start`.
    """
    start, end = (rows[name].astype(np.int64) for name in ("start_positions", "end_positions"))
    length, present, first, tokens = rows["input_ids"].shape[1], windows.present, windows.starts, windows.lengths
    labelled = (start != IGNORED) | (end != IGNORED)
    inside = (start >= 0) & (start < length) & (end >= 0) & (end < length)
    complete = labelled & present & inside
    in_sequence = (start >= first) & (start < first + tokens) & (end >= first) & (end < first + tokens)
    # As in Hugging Face's and Google's code, a window without the answer points to [CLS].
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


def target_spans(rows: Columns, windows: FeatureLines) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the windows with a target in their context: their numbers, and first and last token counted from the
    context's first.
    """
    context = windows.starts + windows.columns["context_start"]
    first, last = (rows[name].astype(np.int64) - context for name in ("start_positions", "end_positions"))
    tokens = windows.columns["n_tokens"] - windows.columns["context_start"] - 1
    taught = windows.known & (first >= 0) & (first <= last) & (last < tokens)
    return rows["feature_ids"][taught], first[taught], last[taught]
