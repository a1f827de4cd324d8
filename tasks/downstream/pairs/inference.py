"""Inference for embeddings: read texts from a file, and write the vector of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.downstream.inference.job import COLUMN, INPUT, PLAIN
from tasks.downstream.pairs.examples import ENDINGS, ROW_GROUP, make_layout, parse_pairs
from tasks.downstream.pairs.schemas import SCHEMA, params_of
from tasks.downstream.pairs.scores import PairsAnswers, PairsDevSet, PairsScores
from tasks.records.interpretation import Interpretation
from tasks.records.parquet import write_records
from tasks.records.tables import Columns, RecordSpec, make_column, name_record, open_file, table_form
from tasks.records.text_files import find_text_problem
from tasks.stage.errors import InputError, ParamsError

TEXT = ("text", "sentence", "anchor")
"""Usual names of a column of texts to embed."""
PLAIN_HINT = ", or --plain if each line is a text"
SHOWN = 8
"""Numbers of a vector in a line for people."""


@dataclass(frozen=True)
class PairsInference:
    """Normalised vector of each text."""

    scores: PairsScores
    answer_field: ClassVar[str] = ""
    has_n_best: ClassVar[bool] = False
    text_fields: ClassVar[Mapping[str, str]] = {"anchor": "text"}
    plain_hint: ClassVar[str] = PLAIN_HINT
    examples_schema: ClassVar[pa.Schema] = SCHEMA

    @property
    def layouts(self) -> Sequence[Columns]:
        own = params_of(self.scores.entry).data.columns
        return [
            {
                "anchor": make_column(own.anchor, TEXT, COLUMN.format("anchor") + PLAIN_HINT),
                "id": make_column(own.id, ("id",), COLUMN.format("id"), required=False),
            }
        ]

    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        if len(texts) != 1:
            raise ParamsError("this model reads one text: omit --text-pair")
        return {self.layouts[0]["anchor"].names[0]: texts[0]}

    def require_columns(self, path: Path, *, labelled: bool) -> None:
        """No other task has models of this class."""

    def detect_lines(self, lines: Sequence[str]) -> str:
        return PLAIN

    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        form = table_form(params_of(self.scores.entry).data)
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
        params = params_of(self.scores.entry)
        layout = make_layout(params.data.columns, COLUMN, scored=params.is_scored)
        records = open_file(path, INPUT, RecordSpec("pairs", [layout], ENDINGS), reading, table_form(params.data))
        pairs = parse_pairs(records, params, reading, None, COLUMN, "--scores")
        if not write_records(pairs, target, SCHEMA, ROW_GROUP):
            raise InputError(f"{path} contains no pairs. Rows with two texts are required")

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([("embedding", pa.list_(pa.float32()))])

    def records(self, examples: PairsDevSet, answers: PairsAnswers, n_best: int) -> Iterator[dict[str, object]]:
        yield from ({"embedding": vector} for vector in answers.vectors.tolist())

    def describe(self, record: Mapping[str, object]) -> str:
        vector: NDArray[np.float64] = np.asarray(record["embedding"])
        return f"{' '.join(f'{x:+.3f}' for x in vector[:SHOWN])} ... ({len(vector)} numbers)"
