"""What questions must be: data/questions/train.parquet and dev.parquet, in SQuAD's shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.squad import about
from tasks.downstream.squad.row_rules import AnswerRules
from tasks.downstream.validate import ChecksTask
from tasks.validation import text_features
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Totals
from tasks.validation.example_files import ExampleFiles
from tasks.validation.histograms import Lengths
from tasks.validation.row_requirements import RowLimits
from tasks.validation.row_rules import Examples, RowRules

SPLITS = ("train", "dev")
TEXTS = ("id", "context", "question")
"""Columns that are read a second time, where hashes met."""
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.struct([("text", pa.string()), ("answer_start", pa.int32())]))),
    ]
)
LOOK = "look at train_path and dev_path of its section data in params.yaml"


class Task(about.Task, ChecksTask):
    """Training and dev questions."""

    text_columns: ClassVar[tuple[str, ...]] = ("context",)

    def texts(self, batch: pa.RecordBatch) -> list[str]:
        """The context: whoever learnt from it has an advantage, whatever was asked of it."""
        found: list[str] = batch.column("context").to_pylist()
        return found

    def data(self, folder: Path) -> DataSet:
        return QuestionData(folder, self.entry.params.data.min_examples, nullable=self.nullable)

    def row_rules(self, limits: RowLimits, examples: Examples, *, training: bool) -> RowRules:
        return AnswerRules(limits, training=training, examples=examples)


class QuestionData(ExampleFiles):
    """The training and the dev questions of a folder."""

    name, record = "questions", "question"

    def __init__(self, folder: Path, least: int, *, nullable: bool = False) -> None:
        """Take note of what is required.

        Args:
            folder: holds a file for each split.
            least: questions in each.
            nullable: whether some have no answer.
        """
        columns = "id, title, context, question: string; answers: list of struct (text: string, answer_start: integer)"
        super().__init__(folder, SPLITS, SCHEMA, columns)
        self.total_checks: Sequence[Check] = (*_total_checks(least), *(_GROUP_CHECKS if nullable else ()))
        self.record_checks: Sequence[Check] = (*_RECORD_CHECKS, *(() if nullable else (_ANSWERED,)))
        self._nullable = nullable
        self._bare = dict.fromkeys(SPLITS, 0)
        """Questions without an answer."""
        self._ids = text_features.Keys()
        self._pairs = {split: text_features.Keys() for split in SPLITS}
        self._lengths = {name: Lengths() for name in ("context", "question", "answer")}

    def _features(self, split: str, batch: pa.RecordBatch) -> Frame:
        ids, contexts = (text_features.strings(batch.column(name)) for name in ("id", "context"))
        missing = {
            f"{name}s_present": text_features.is_missing(batch.column(name)) for name in ("id", "context", "question")
        }
        first = self._count[split]
        labels = [f"{split} {key}" if key.strip() else f"{split} line {first + i}" for i, key in enumerate(ids)]
        answers = batch.column("answers").to_pylist()
        self._ids.add(ids[missing["ids_present"] == 0])
        self._pairs[split].add(_pairs(batch))
        self._count[split] += len(ids)
        self._note_lengths(batch, answers)
        counts = [_judge_answers(given, context) for given, context in zip(answers, contexts, strict=True)]
        total, empty, misplaced = np.array(counts, np.int64).reshape(-1, 3).T
        self._bare[split] += int((total == 0).sum())
        return {
            RECORD: np.array(labels, dtype=object),
            **missing,
            "titles_present": batch.column("title").is_null().to_numpy(zero_copy_only=False).astype(np.int64),
            "answers_present": total,
            "answers_not_empty": empty,
            "answer_in_context": misplaced,
        }

    def _note_lengths(self, batch: pa.RecordBatch, answers: list[list[dict[str, Any] | None] | None]) -> None:
        texts = [(one or {}).get("text") or "" for given in answers for one in given or []]
        for name, column in (
            ("context", batch.column("context")),
            ("question", batch.column("question")),
            ("answer", pa.array(texts, pa.string())),
        ):
            self._lengths[name].add(text_features.characters(column))

    def totals(self) -> Totals:
        repeated, repeated_ids = self._ids.repetitions(
            lambda: (
                text_features.strings(batch.column("id")) for split in SPLITS for batch in self._read(split, TEXTS)
            )
        )
        leaked, leaks = self._leaks()
        return Totals(
            {
                "train_questions": self._count["train"],
                "dev_questions": self._count["dev"],
                "ids_unique": repeated,
                "dev_unseen": leaked,
                **(self._groups() if self._nullable else {}),
            },
            {"ids_unique": repeated_ids, "dev_unseen": leaks},
            {
                "ids_unique": f"{repeated:,} of {sum(self._count.values()):,} questions repeat an id",
                "dev_unseen": f"{leaked:,} of {self._count['dev']:,} dev questions are also in train",
            },
        )

    def _leaks(self) -> tuple[int, list[str]]:
        """Dev questions that train asks of the same context, compared as text where their hashes are equal."""
        train, dev = (self._pairs[split].all_hashes() for split in SPLITS)
        shared = np.intersect1d(train, dev)
        if not len(shared):
            return 0, []
        some = shared[: text_features.CONFIRMED_HASHES]
        seen, asked = (
            text_features.count_keys((_pairs(batch) for batch in self._read(split, TEXTS)), some) for split in SPLITS
        )
        leaks = sorted(key for key in asked if key in seen)
        count = sum(asked[key] for key in leaks)
        if len(shared) > len(some):
            count = int(np.isin(dev, shared).sum())
        return count, [key.partition("\n")[0] for key in leaks]

    def statistics(self) -> dict[str, Any]:
        return {
            "numbers": {
                **{f"{split} questions": count for split, count in self._count.items()},
                **(self._shares() if self._nullable else {}),
                "answers": self._lengths["answer"].count,
                **{f"mean characters of a {name}": lengths.mean for name, lengths in self._lengths.items()},
                **self.reading,
            },
            "histograms": [
                lengths.histogram(f"Length of {name}s", "characters") for name, lengths in self._lengths.items()
            ],
        }

    def _groups(self) -> dict[str, int]:
        with_answer = {f"{split}_with_answer": self._count[split] - bare for split, bare in self._bare.items()}
        return {**with_answer, **{f"{split}_without_answer": bare for split, bare in self._bare.items()}}

    def _shares(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for split, bare in self._bare.items():
            found[f"{split} questions without an answer"] = bare
            found[f"{split} share without an answer"] = bare / max(1, self._count[split])
        return found


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


def _total_checks(least: int) -> tuple[Check, ...]:
    counts = [
        Check(
            f"{split}_questions",
            f"{split}.parquet",
            f"at least {least:,} questions",
            f"give more questions ({split}_path or demo_{split} of its section data), or lower min_examples there",
            minimum=least,
        )
        for split in SPLITS
    ]
    return (
        *counts,
        Check("ids_unique", "id", "no id twice, neither within train or dev nor across", LOOK, maximum=0),
        Check(
            "dev_unseen",
            "question, context",
            "no question of dev is asked of the same context in train",
            f"scores on questions seen in training say nothing: {LOOK}",
            maximum=0,
        ),
    )


_RECORD_CHECKS = (
    Check("ids_present", "id", "no id is null or empty", LOOK, maximum=0),
    Check("titles_present", "title", "no title is null (an empty one is fine)", LOOK, maximum=0),
    Check("contexts_present", "context", "no context is null or empty", LOOK, maximum=0),
    Check("questions_present", "question", "no question is null or empty", LOOK, maximum=0),
    Check("answers_not_empty", "answers.text", "no answer is null or empty", LOOK, maximum=0),
    Check(
        "answer_in_context",
        "answers.answer_start",
        "the context reads as the answer's text at answer_start (counted in characters), for every answer",
        f"correct answer_start in the source file: {LOOK}",
        maximum=0,
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
