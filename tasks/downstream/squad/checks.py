"""What questions must be: data/questions/train.parquet and dev.parquet, in SQuAD's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.squad import about
from tasks.downstream.squad.about import SCHEMA
from tasks.downstream.squad.row_rules import AnswerRows
from tasks.downstream.validate import ChecksTask
from tasks.validation import text_features
from tasks.validation.checks import Check, DataSet, Frame, Total, Totals
from tasks.validation.example_files import ExampleFiles
from tasks.validation.histograms import Lengths
from tasks.validation.row_checks import RowData, RowSource

SPLITS = ("train", "dev")
PAIR = ("question", "context")
"""Columns that are read a second time, where hashes met."""
LOOK = "look at train_path and dev_path of its section data in params.yaml"
MORE = "give more questions ({split}_path or demo_{split} of its section data), or lower min_examples there"


class Task(about.Task, ChecksTask):
    """Training and dev questions."""

    # Whoever learnt from a context has an advantage, whatever was asked of it.
    text_columns: ClassVar[tuple[str, ...]] = ("context",)

    def data(self, folder: Path) -> DataSet:
        return QuestionData(folder, self.entry.params.data.min_examples, nullable=self.nullable)

    def row_data(self, source: RowSource) -> RowData:
        return AnswerRows(source)


class QuestionData(ExampleFiles):
    """The training and the dev questions of a folder."""

    name, record = "questions", "question"
    texts: ClassVar[Mapping[str, str]] = {name: name for name in ("id", "title", "context", "question")}

    def __init__(self, folder: Path, least: int, *, nullable: bool = False) -> None:
        """Take note of what is required.

        Args:
            folder: holds a file for each split.
            least: questions in each.
            nullable: whether some have no answer.
        """
        columns = "id, title, context, question: string; answers: list of struct (text: string, answer_start: integer)"
        super().__init__(folder, SPLITS, SCHEMA, columns)
        self.total_checks = (
            *self.count_checks(least, MORE),
            *_TOTAL_CHECKS,
            *(_GROUP_CHECKS if nullable else ()),
        )
        self.record_checks = (*self.text_checks(LOOK), *_ANSWER_CHECKS, *(() if nullable else (_ANSWERED,)))
        self._nullable = nullable
        self._bare = dict.fromkeys(SPLITS, 0)
        """Questions without an answer."""
        self._lengths = {f"{name}s": Lengths() for name in ("context", "question", "answer")}

    def _labels(self, name: str, batch: pa.RecordBatch) -> list[str]:
        ids = enumerate(text_features.strings(batch.column("id")), self._count[name])
        return [f"{name} {key}" if key.strip() else f"{name} line {number}" for number, key in ids]

    def _features(self, split: str, batch: pa.RecordBatch, labels: Sequence[str]) -> Frame:
        answers = batch.column("answers").to_pylist()
        self._keys[split].add(_pairs(batch))
        texts = [(one or {}).get("text") or "" for given in answers for one in given or []]
        columns = batch.column("context"), batch.column("question"), pa.array(texts, pa.string())
        for lengths, column in zip(self._lengths.values(), columns, strict=True):
            lengths.add(text_features.characters(column))
        contexts = text_features.strings(batch.column("context"))
        counts = [_judge_answers(given, context) for given, context in zip(answers, contexts, strict=True)]
        total, empty, misplaced = np.array(counts, np.int64).reshape(-1, 3).T
        self._bare[split] += int((total == 0).sum())
        return {"answers_present": total, "answers_not_empty": empty, "answer_in_context": misplaced}

    def totals(self) -> Totals:
        groups = {
            f"{split}_{kind}_answer": Total(count)
            for split, bare in self._bare.items()
            for kind, count in (("with", self._count[split] - bare), ("without", bare))
        }
        found = {**super().totals(), "ids_unique": self.repeated_ids(), "dev_unseen": self._leaks()}
        return found | (groups if self._nullable else {})

    def _leaks(self) -> Total:
        """Dev questions that train asks of the same context, compared as text where their hashes are equal."""
        train, dev = (self._keys[split].all_hashes() for split in SPLITS)
        shared = np.intersect1d(train, dev)
        some = shared[: text_features.CONFIRMED_HASHES]
        leaks: list[str] = []
        count = 0
        if len(shared):
            seen, asked = (
                text_features.count_keys((_pairs(batch) for batch in self._read(split, PAIR)), some) for split in SPLITS
            )
            leaks = sorted(key for key in asked if key in seen)
            count = sum(asked[key] for key in leaks)
        if len(shared) > len(some):
            count = int(np.isin(dev, shared).sum())
        shown = f"{count:,} of {self._count['dev']:,} dev questions are also in train"
        return Total(count, shown, [key.partition("\n")[0] for key in leaks])

    def numbers(self) -> dict[str, Any]:
        shares: dict[str, float] = {}
        for split, bare in self._bare.items() if self._nullable else ():
            shares[f"{split} questions without an answer"] = bare
            shares[f"{split} share without an answer"] = bare / max(1, self._count[split])
        return {
            **super().numbers(),
            **shares,
            "answers": self._lengths["answers"].count,
            **{f"mean characters of a {name[:-1]}": lengths.mean for name, lengths in self._lengths.items()},
            **self.reading,
        }


def _pairs(batch: pa.RecordBatch) -> np.ndarray:
    """Question and context of every record as one key. object [n]."""
    return text_features.strings(batch.column("question")) + "\n" + text_features.strings(batch.column("context"))


def _judge_answers(answers: list[dict[str, Any] | None] | None, context: str) -> tuple[int, int, int]:
    """Answers, those without text, and those (with text) that the context does not have at answer_start."""
    given = [(one or {}) for one in answers or []]
    empty = sum(not (one.get("text") or "").strip() for one in given)
    misplaced = 0
    for one in given:
        text, start = one.get("text"), one.get("answer_start")
        if text and text.strip():
            # startswith counts a negative start from the end.
            misplaced += start is None or start < 0 or not context.startswith(text, start)
    return len(given), empty, misplaced


_TOTAL_CHECKS = (
    Check("ids_unique", "id", "no id twice, neither within train or dev nor across", LOOK),
    Check(
        "dev_unseen",
        "question, context",
        "no question of dev is asked of the same context in train",
        f"scores on questions seen in training say nothing: {LOOK}",
    ),
)
_ANSWER_CHECKS = (
    Check("answers_not_empty", "answers.text", "no answer is null or empty", LOOK),
    Check(
        "answer_in_context",
        "answers.answer_start",
        "the context reads as the answer's text at answer_start (counted in characters), for every answer",
        f"correct answer_start in the source file: {LOOK}",
    ),
)
_ANSWERED = Check(
    "answers_present",
    "answers",
    "every question has at least one answer",
    f"unanswerable: use lets questions have none: {LOOK}",
    minimum=1,
)
_GROUP_CHECKS = tuple(
    Check(
        f"{split}_{kind}_answer",
        f"{split}.parquet",
        f"at least one question {kind} an answer, as data.unanswerable is use",
        f"without both kinds of questions there is nothing to decide: {LOOK}, or set unanswerable to drop or refuse",
        minimum=1,
    )
    for split in SPLITS
    for kind in ("with", "without")
)
