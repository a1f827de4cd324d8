"""Inference for questions: read them from a file, with or without answers, and write answers as records."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.inference.job import COLUMN, ID, INPUT, Inference
from tasks.downstream.squad.answers import Answer, WindowFiles
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.squad.params import SquadDataParams, SquadParams
from tasks.downstream.squad.questions import (
    SquadQuestion,
    question_spec,
    read_question_file,
    read_text,
    require_room_for_text,
)
from tasks.downstream.squad.schemas import SCHEMA
from tasks.records.interpretation import Interpretation
from tasks.records.tables import Columns, name_record, open_file, table_form
from tasks.stage.errors import ParamsError

SPAN = [
    pa.field("answer", pa.string()),
    pa.field("score", pa.float64()),
    pa.field("probability", pa.float64()),
    pa.field("start", pa.int64()),
    pa.field("end", pa.int64()),
]
"""start and end are characters of the context; score is the sum of the two logits."""
N_BEST = "n_best"
WITHOUT_ANSWER = "this model always returns an answer; pass --null-threshold 0 to allow none"


class SquadInference(Inference[list[SquadQuestion], WindowFiles, list[list[Answer]], str]):
    """Answers with score, probability among the n best, and character span."""

    answer_field = "answer"
    has_n_best = True
    text_fields: ClassVar[Mapping[str, str]] = {"question": "question"}
    examples_schema = SCHEMA

    @property
    def data(self) -> SquadDataParams:
        """Section `data` of the entry."""
        return self.entry.params_as(SquadParams).data

    @property
    def layouts(self) -> Sequence[Columns]:
        return question_spec(self.data.columns, COLUMN, (ID, "context", "question")).layouts

    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        names = [self.layouts[0][part].names[0] for part in ("question", "context")]
        if len(texts) != len(names):
            raise ParamsError(f"this model answers questions: add --context TEXT, or a table of {' and '.join(names)}")
        return dict(zip(names, texts, strict=True))

    def detect_lines(self, lines: Sequence[str]) -> str:
        return "jsonl"

    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        spec = question_spec(self.data.columns, COLUMN, (ID, "context", "question"))
        rows, problems, _ = open_file(path, INPUT, spec, reading, table_form(self.data))
        for row in rows:
            where, values, _ = row
            context, question = (
                read_text(values, key, where, problems, filled=True) for key in ("context", "question")
            )
            if context is not None and question is not None:
                require_room_for_text(f"{path}: {where}.context", context)
                texts = {"context": context, "question": question}
                yield {ID: name_record(row, reading), "title": "", **texts, "answers": []}
        problems.refuse()

    def write_labelled(self, path: Path, target: Path, reading: Interpretation) -> None:
        write_questions(read_question_file(path, INPUT, self.data, reading, COLUMN, WITHOUT_ANSWER), target)

    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        return pa.schema([*SPAN, *([pa.field(N_BEST, pa.list_(pa.struct(SPAN)))] if n_best else [])])

    def records(
        self, examples: list[SquadQuestion], answers: list[list[Answer]], n_best: int
    ) -> Iterator[dict[str, object]]:
        for candidates in answers:
            best = [_record(answer) for answer in candidates[: max(n_best, 1)]]
            yield {**best[0], **({N_BEST: best} if n_best else {})}

    def describe(self, record: Mapping[str, Any]) -> str:
        return f"{' '.join(record['answer'].split()) or '(no answer)'} ({record['probability']:.1%})"


def _record(answer: Answer) -> dict[str, object]:
    return {
        "answer": answer.text,
        "score": round(answer.score, 4),
        "probability": round(answer.probability, 6),
        "start": answer.start,
        "end": answer.end,
    }
