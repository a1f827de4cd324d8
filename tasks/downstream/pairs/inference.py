"""Inference for embeddings: read texts from a file, and write the vector of each."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.downstream.inference.job import COLUMN, INPUT, Inference, only_text
from tasks.downstream.pairs.examples import ENDINGS, ROW_GROUP, PairTable
from tasks.downstream.pairs.params import PairsParams
from tasks.downstream.pairs.schemas import SCHEMA
from tasks.downstream.pairs.scores import Answer, PairsAnswers, PairsDevSet
from tasks.records.interpretation import Interpretation
from tasks.records.parquet import write_records
from tasks.records.tables import Columns, Records, RecordSpec, make_column, name_record, open_file, table_form
from tasks.records.text_files import find_text_problem
from tasks.stage.errors import InputError

TEXT = ("text", "sentence", "anchor")
"""Usual names of a column of texts to embed."""
PLAIN_HINT = ", or --plain if each line is a text"
SHOWN = 8
"""Numbers of a vector in a line for people."""


class PairsInference(Inference[PairsDevSet, NDArray[np.float32], PairsAnswers, Answer]):
    """Normalised vector of each text."""

    text_fields: ClassVar[Mapping[str, str]] = {"anchor": "text"}
    plain_hint = PLAIN_HINT
    examples_schema = SCHEMA

    @property
    def layouts(self) -> Sequence[Columns]:
        columns = self.entry.params_as(PairsParams).data.columns
        return [
            {
                "anchor": make_column(columns.anchor, TEXT, COLUMN.format("anchor") + PLAIN_HINT),
                "id": make_column(columns.id, ("id",), COLUMN.format("id"), required=False),
            }
        ]

    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        return {self.layouts[0]["anchor"].names[0]: only_text(texts)}

    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        form = table_form(self.entry.params_as(PairsParams).data)
        records = open_file(path, INPUT, RecordSpec("texts", self.layouts, ENDINGS), reading, form)
        for line in records.rows:
            value = line.values["anchor"]
            wrong = find_text_problem(value) or ("" if value.strip() else "is empty")
            if wrong:
                records.problems.add(f"a text that {wrong}", line.where)
                continue
            absent = dict.fromkeys(("positive", "negative", "score"))
            yield {"anchor": " ".join(value.split()), "id": name_record(line, reading), **absent}
        records.problems.refuse()

    def write_labelled(self, path: Path, target: Path, reading: Interpretation) -> None:
        params = self.entry.params_as(PairsParams)

        def open_records(layout: Columns, reading: Interpretation) -> Records:
            return open_file(path, INPUT, RecordSpec("pairs", [layout], ENDINGS), reading, table_form(params.data))

        pairs = PairTable(open_records, params, reading, COLUMN, scores="").parse()
        if not write_records(pairs, target, SCHEMA, ROW_GROUP):
            raise InputError(f"{path} contains no pairs. Rows with two texts are required")

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([("embedding", pa.list_(pa.float32()))])

    def records(self, examples: PairsDevSet, answers: PairsAnswers, n_best: int) -> Iterator[dict[str, object]]:
        yield from ({"embedding": vector} for vector in answers.vectors.tolist())

    def describe(self, record: Mapping[str, object]) -> str:
        vector: NDArray[np.float64] = np.asarray(record["embedding"])
        return f"{' '.join(f'{x:+.3f}' for x in vector[:SHOWN])} ... ({len(vector)} numbers)"
