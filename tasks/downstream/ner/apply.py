"""Sentences of a file for a finished model, with or without tags, and what it finds in them as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.applying.task import COLUMN, ID, INPUT, UNKNOWN_TO_MODEL, ApplyTask
from tasks.downstream.ner import scores
from tasks.downstream.ner.examples import ROW_GROUP
from tasks.downstream.ner.format import (
    CONLL,
    MEANT,
    NO_JSON,
    TABLES,
    columns_of,
    list_of,
    opened_file,
    read_conll,
    usable,
)
from tasks.downstream.ner.logits import WordLogits
from tasks.downstream.ner.params import SentencesParams
from tasks.downstream.ner.scores import Answers, Examples
from tasks.downstream.ner.sentences import SCHEMA, Found, Raw, checked
from tasks.downstream.ner.tags import OUTSIDE, entities, parted, problem_of
from tasks.inputs.tables import ENDINGS, Column, Columns, read_table, text_of_id
from tasks.project.errors import InputError
from tasks.reading.labels import labels_of_examples, write_labels
from tasks.reading.parquet import write_records
from tasks.reading.text_files import Problems, Reading, ending_of

TEXT = "text"
"""A column of sentences whose words are apart by white space, in the place of lists of words."""
FIELDS = [("tokens", pa.list_(pa.string())), ("tags", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))]
ENTITY = pa.struct(
    [("type", pa.string()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
)
"""Words start to end - 1; the score is the mean of those of their tags."""


class Task(scores.Task, ApplyTask[Examples, WordLogits, Answers]):
    """The tag of each word with its probability, and the entities that the tags stand for."""

    architecture: ClassVar[str] = "BertForTokenClassification"
    endings = (*ENDINGS, ".json", *CONLL)
    labelled_endings = (*CONLL, *TABLES)

    @classmethod
    def tasks_of(cls, labels: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        return {} if any(map(problem_of, labels)) else {"ner": {"kind": "ner"}}

    @classmethod
    def rows_within(cls, longest: int) -> dict[str, Any]:
        return {"row_length": longest, "overlap": longest // 4}

    @property
    def examples_schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def _params(self) -> SentencesParams:
        found = self.entry.params.data
        assert isinstance(found, SentencesParams)
        return found

    def unlabelled(self, path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
        problems = Problems(str(path), MEANT)
        for name, raw in self._sentences(path, reading, problems):
            if not raw.words:
                problems.add("a sentence without a word", raw.where)
            for _, tokens, tags in checked([raw], self._params.tag_scheme, Found(), problems, reading):
                yield {ID: name, "document": 0, "tokens": tokens, "tags": tags}
        problems.refuse()

    def _sentences(self, path: Path, reading: Reading, problems: Problems) -> Iterator[tuple[Any, Raw]]:
        if ending_of(path) in CONLL:
            yield from ((None, raw) for raw in read_conll(path, INPUT, reading, problems, tagged=False))
            return
        is_csv = ending_of(path) == ".csv"
        for where, values, _ in read_table(path, self._columns, INPUT, reading, self._params.separator):
            found = values.get("tokens", values.get(TEXT))
            if isinstance(found, str):
                try:
                    found = list_of(found) if is_csv and "tokens" in values else found.split()
                except ValueError:
                    problems.add(NO_JSON, where, found)
                    continue
            if isinstance(found, list):
                yield text_of_id(values.get(ID), reading), Raw(0, found, [OUTSIDE] * len(found), where)
            else:
                problems.add(f"neither a list of words nor a text in a column {TEXT!r}", where, found)

    def _columns(self, present: Sequence[str]) -> Columns:
        """Words, or a text in their place; records of one file may differ in that."""
        named = f"{COLUMN.format('tokens')}, or give text in a column {TEXT!r}"
        tokens = columns_of(self._params.columns, named)(present)["tokens"]
        is_there = not {tokens.name, TEXT}.isdisjoint(present)
        return {
            ID: Column(ID, INPUT, False),
            "tokens": tokens._replace(required=not is_there),
            TEXT: Column(TEXT, INPUT, False),
        }

    def write_labelled(self, path: Path, target: Path, reading: Reading) -> None:
        opened, found = opened_file(path, INPUT, self._params, reading, COLUMN), Found()
        write_records(usable(*opened, self._params, found, reading), target, SCHEMA, ROW_GROUP)
        labels = labels_of_examples(target.parent, self.entry.stage("examples"))
        known = {parted(name)[1] for name in labels} - {""}
        if found.entities and known.isdisjoint(found.entities):
            raise InputError(
                f"{path}: no entity is of a type of the model ({', '.join(sorted(known))}): found "
                f"{', '.join(sorted(found.entities)[:5])}; set {COLUMN.format('tags')}"
            )
        unknown = (count for name, count in found.entities.items() if name not in known)
        reading.counts[UNKNOWN_TO_MODEL] += sum(unknown)

    def write_beside(self, folder: Path, labels: Sequence[str]) -> None:
        """Their names, which rows take from the examples."""
        write_labels(folder, labels)

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([*FIELDS, ("entities", pa.list_(ENTITY))])

    def records(self, examples: Examples, answers: Answers, n_best: int) -> Iterator[dict[str, Any]]:
        for tokens, tags, sureness in zip(examples.tokens, answers.tags, answers.sureness, strict=True):
            found = [
                {
                    "type": one.type,
                    "text": " ".join(tokens[one.first : one.last]),
                    "start": one.first,
                    "end": one.last,
                    "score": round(float(sureness[one.first : one.last].mean()), 6),
                }
                for one in entities(tags)
            ]
            yield {"tokens": tokens, "tags": tags, "scores": sureness.round(6).tolist(), "entities": found}
