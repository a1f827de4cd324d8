"""Parameters of question answering: SQuAD, and whatever has its form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import (
    EntryParams,
    EvaluateParams,
    OwnDataParams,
    Points,
    ReleaseParams,
    RowsParams,
)
from tasks.project.param_sections import Name, Positive, Section, Seed
from tasks.project.param_training import Epochs, FinetuneParams, Rate


class ColumnParams(Section):
    """Columns of a table of questions; `None` is SQuAD's own name."""

    id: Name | None = None
    title: Name | None = None
    context: Name | None = None
    question: Name | None = None
    answers: Name | None = None
    answer_text: Name | None = None
    answer_start: Name | None = None

    @model_validator(mode="after")
    def _answers_stand_in_one_place(self) -> ColumnParams:
        if self.answers is not None and (self.answer_text is not None or self.answer_start is not None):
            raise ValueError("answers (one column) and answer_text, answer_start (two columns) exclude each other")
        return self


class QuestionsParams(OwnDataParams):
    source: Literal["demo", "files", "hub"] = "files"
    train_path: Name = "inputs/questions"
    dev_path: Name | None = "inputs/questions"
    columns: ColumnParams = ColumnParams()
    seed: Seed = 2
    demo_train: Positive = 12000
    demo_dev: Positive = 1000


class WindowParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 384
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 3
    doc_stride: Annotated[int, Field(ge=0)] = 128
    max_question_length: Positive = 64

    @model_validator(mode="after")
    def _a_window_moves_on(self) -> WindowParams:
        context = self.row_length - self.max_question_length - 3
        if self.doc_stride >= context:
            raise ValueError(
                f"doc_stride={self.doc_stride} must be smaller than the context of the smallest window: row_length "
                f"{self.row_length} - max_question_length {self.max_question_length} - 3 special tokens = {context}"
            )
        return self


class TuningParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 5e-5
    epochs: Epochs = 3.0


class AnswerParams(EvaluateParams):
    n_best: Positive = 20
    max_answer_length: Positive = 30


class GateParams(ReleaseParams):
    min_f1: Points | None = 85.0
    min_exact_match: Points | None = None
    max_f1_drop: Points = 0.0
    max_exact_match_drop: Points = 0.0


class Params(EntryParams):
    """An entry that answers questions."""

    data: QuestionsParams = QuestionsParams()
    rows: WindowParams = WindowParams()
    finetune: TuningParams = TuningParams()
    evaluate: AnswerParams = AnswerParams()
    gate: GateParams = GateParams()
