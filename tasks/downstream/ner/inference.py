"""Inference for named entities: read sentences from a file, with or without tags, and write tags and entities as
records."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.inference.job import COLUMN, ID, INPUT, UNKNOWN_TO_MODEL, InferenceTask
from tasks.downstream.ner.examples import ROW_GROUP
from tasks.downstream.ner.params import NerDataParams
from tasks.downstream.ner.scores import NerAnswers, NerDevSet, NerScores, WordLogits
from tasks.downstream.ner.sentences import TagStatistics, parse_sentences, read_sentences, sentence_spec
from tasks.downstream.ner.spec import SCHEMA
from tasks.downstream.ner.tags import find_entities, find_problem, split_tag
from tasks.records.labels import read_example_labels
from tasks.records.parquet import write_records
from tasks.records.tables import Records, open_file
from tasks.records.text_files import ReadLog
from tasks.stage.errors import InputError

FIELDS = [("tokens", pa.list_(pa.string())), ("tags", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))]
ENTITY = pa.struct(
    [("type", pa.string()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
)
"""Words start to end - 1; the score is the mean probability of their tags."""


class NerInference(NerScores, InferenceTask[NerDevSet, WordLogits, NerAnswers]):
    """Tag of each word with its probability, and the decoded entities."""

    suffix: ClassVar[str] = "ForTokenClassification"

    @classmethod
    def match_tasks(cls, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, Any]]:
        return {} if any(map(find_problem, labels)) else {"ner": {"kind": "ner"}}

    @classmethod
    def limit_rows(cls, longest: int) -> dict[str, Any]:
        return {"row_length": longest, "overlap": longest // 4}

    @property
    def examples_schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def _params(self) -> NerDataParams:
        found = self.entry.params.data
        assert isinstance(found, NerDataParams)
        return found

    def read_unlabelled(self, path: Path, reading: ReadLog) -> Iterator[dict[str, Any]]:
        records = self._open(path, reading, tagged=False)
        for id, sentence in parse_sentences(records, self._params.tag_scheme, TagStatistics(), reading):
            yield {ID: id, **sentence._asdict(), "document": 0}

    def _open(self, path: Path, reading: ReadLog, *, tagged: bool = True) -> Records:
        spec = sentence_spec(self._params.columns, COLUMN, tagged=tagged)
        return open_file(path, INPUT, spec, reading, self._params.separator)

    def write_labelled(self, path: Path, target: Path, reading: ReadLog) -> None:
        records, found = self._open(path, reading), TagStatistics()
        write_records(read_sentences(records, self._params, found, reading), target, SCHEMA, ROW_GROUP)
        labels = read_example_labels(target.parent, self.entry.stage("examples"))
        known = {split_tag(name)[1] for name in labels} - {""}
        if found.entities and known.isdisjoint(found.entities):
            raise InputError(
                f"{path}: no entity has a type of the model ({', '.join(sorted(known))}); found "
                f"{', '.join(sorted(found.entities)[:5])}. Pass {COLUMN.format('tags')}"
            )
        unknown = (count for name, count in found.entities.items() if name not in known)
        reading.counts[UNKNOWN_TO_MODEL] += sum(unknown)

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([*FIELDS, ("entities", pa.list_(ENTITY))])

    def records(self, examples: NerDevSet, answers: NerAnswers, n_best: int) -> Iterator[dict[str, Any]]:
        for tokens, tags, sureness in zip(examples.tokens, answers.tags, answers.sureness, strict=True):
            found = [
                {
                    "type": one.type,
                    "text": " ".join(tokens[one.first : one.last]),
                    "start": one.first,
                    "end": one.last,
                    "score": round(float(sureness[one.first : one.last].mean()), 6),
                }
                for one in find_entities(tags)
            ]
            yield {"tokens": tokens, "tags": tags, "scores": sureness.round(6).tolist(), "entities": found}
