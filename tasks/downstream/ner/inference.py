"""Inference for named entities: read sentences from a file, with or without tags, and write tags and entities as
records."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.downstream.inference.job import COLUMN, INPUT, PLAIN, UNKNOWN_TO_MODEL, Inference, only_text
from tasks.downstream.ner.examples import ROW_GROUP
from tasks.downstream.ner.params import NerDataParams, NerParams
from tasks.downstream.ner.schemas import SCHEMA
from tasks.downstream.ner.scores import NerAnswers, NerDevSet, WordLogits
from tasks.downstream.ner.sentences import (
    TagStatistics,
    open_sentence_file,
    parse_sentences,
    read_sentences,
    sentence_spec,
)
from tasks.records.interpretation import Interpretation
from tasks.records.label_forms import match_known, require_same_spelling
from tasks.records.labels import read_example_labels
from tasks.records.parquet import write_records
from tasks.records.tables import Columns, Records
from tasks.records.tagged_columns import DOCUMENT
from tasks.records.tags import OUTSIDE, find_entities, looks_like_tag, split_tag
from tasks.stage.errors import InputError

FIELDS = [("tokens", pa.list_(pa.string())), ("tags", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))]
ENTITY = pa.struct(
    [("type", pa.string()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
)
"""Words start to end - 1; the score is the mean probability of their tags."""
WORDS = re.compile(r"\w+(?:[-.'’&/]\w+)*|[^\w\s]")
"""Words of a plain text; punctuation marks are words, as in the usual corpora."""


class NerInference(Inference[NerDevSet, WordLogits, NerAnswers, str]):
    """Tag of each word with its probability, and the decoded entities."""

    examples_schema = SCHEMA

    @property
    def data(self) -> NerDataParams:
        """Section `data` of the entry."""
        return self.entry.params_as(NerParams).data

    @property
    def layouts(self) -> Sequence[Columns]:
        return sentence_spec(self.data.columns, COLUMN, tagged=False).layouts

    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        return {self.data.columns.tokens or "tokens": WORDS.findall(only_text(texts))}

    def detect_lines(self, lines: Sequence[str]) -> str:
        """Return conll for lines of equally many columns that are one word, end in a tag or are in blocks."""
        rows = [line.split() for line in lines if not line.startswith(("# ", "#\t", DOCUMENT))]
        filled = [row for row in rows if row]
        is_tagged = all(row[-1] == OUTSIDE or ("-" in row[-1] and looks_like_tag(row[-1])) for row in filled)
        widths = {*map(len, filled)}
        return "conll" if len(widths) == 1 and (widths == {1} or is_tagged or [] in rows[:-1]) else PLAIN

    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        records = self._open(path, reading, tagged=False)
        for sentence in parse_sentences(records, self.data.tag_scheme, TagStatistics(), reading):
            yield {**sentence._asdict(), "document": 0}

    def _open(self, path: Path, reading: Interpretation, *, tagged: bool = True) -> Records:
        return open_sentence_file(path, INPUT, COLUMN, self.data, reading, tagged=tagged)

    def write_labelled(self, path: Path, target: Path, reading: Interpretation) -> None:
        data, counts, types = self.data, TagStatistics(), TagStatistics()
        labels = read_example_labels(target.parent, self.entry.stage("examples"))
        known = sorted({split_tag(name)[1] for name in labels} - {""})
        if data.similar_labels == "fold":
            for _ in read_sentences(self._open(path, first := Interpretation()), data, types, first):
                pass
            names = match_known(types.entities, known, fold=True)
            counts.spellings = {name: spelling for name, spelling in names.items() if name != spelling}
        sentences = read_sentences(self._open(path, reading), data, counts, reading)
        write_records(sentences, target, SCHEMA, ROW_GROUP)
        require_same_spelling(data, counts.entities, known, f"{path} has", "the model has")
        if counts.entities and counts.entities.keys().isdisjoint(known):
            raise InputError(
                f"{path}: no entity has a type of the model ({', '.join(known)}); found "
                f"{', '.join(sorted(counts.entities)[:5])}. Pass {COLUMN.format('tags')} for another column, "
                "or rename the types in the file"
            )
        unknown = (count for name, count in counts.entities.items() if name not in known)
        reading.counts[UNKNOWN_TO_MODEL] += sum(unknown)

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([*FIELDS, ("entities", pa.list_(ENTITY))])

    def records(self, examples: NerDevSet, answers: NerAnswers, n_best: int) -> Iterator[dict[str, object]]:
        for tokens, tags, sureness in zip(examples.tokens, answers.tags, answers.sureness, strict=True):
            entities = [
                {
                    "type": entity.type,
                    "text": " ".join(tokens[entity.first : entity.last]),
                    "start": entity.first,
                    "end": entity.last,
                    "score": round(float(sureness[entity.first : entity.last].mean()), 6),
                }
                for entity in find_entities(tags)
            ]
            yield {"tokens": tokens, "tags": tags, "scores": sureness.round(6).tolist(), "entities": entities}

    def describe(self, record: Mapping[str, Any]) -> str:
        entities = (f"{entity['text']} ({entity['type']} {entity['score']:.1%})" for entity in record["entities"])
        return ", ".join(entities) or "no entity"
