"""Sections of params.yaml that say which data are read and what rows are made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import Fraction, Name, Positive, Section, Seed

HeldOut = Annotated[float, Field(ge=0, le=0.5)]


class CorpusParams(Section):
    source: Literal["demo", "files", "hub", "none"]
    path: Name
    text_column: Name
    title_column: Name | None
    id_column: Name | None
    layout: Literal["auto", "wikitext", "paragraphs", "wikiextractor"]
    seed: Seed
    demo_documents: Positive
    dataset: str | None
    dataset_config: str | None
    dataset_split: Name
    dataset_revision: str | None


class TokenizerParams(Section):
    source: Literal["train", "file", "hub"]
    path: Name
    vocabulary_size: Annotated[int, Field(ge=100, le=2**31)]
    lowercase: bool
    repository: str | None
    revision: str | None


class BaseModelParams(Section):
    """A model to start from, in place of fresh weights."""

    source: Literal["none", "folder", "hub"]
    path: Name
    repository: str | None
    revision: str | None


class QuestionColumnParams(Section):
    """Columns of a table of questions; `None` is SQuAD's own name."""

    id: Name | None
    title: Name | None
    context: Name | None
    question: Name | None
    answers: Name | None
    answer_text: Name | None
    answer_start: Name | None

    @model_validator(mode="after")
    def _answers_stand_in_one_place(self) -> QuestionColumnParams:
        if self.answers is not None and (self.answer_text is not None or self.answer_start is not None):
            raise ValueError("answers (one column) and answer_text, answer_start (two columns) exclude each other")
        return self


class QuestionsParams(Section):
    source: Literal["demo", "files", "hub"]
    train_path: Name
    dev_path: Name
    columns: QuestionColumnParams
    seed: Seed
    demo_train: Positive
    demo_dev: Positive
    dataset: str | None
    dataset_config: str | None
    dataset_revision: str | None


class PhaseRowsParams(Section):
    row_length: Annotated[int, Field(ge=16, le=32767)]
    max_predictions_per_row: Positive | None
    duplicates: Positive
    path: Name
    dataset: str | None
    dataset_revision: str | None


class PretrainRowsParams(Section):
    source: Literal["corpus", "files", "hub"]
    seed: Seed
    masked_fraction: Annotated[float, Field(gt=0, le=0.5)]
    short_sequence_probability: Fraction
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)]
    held_out_fraction: HeldOut
    shares: list[Positive]
    """It changes no row, so that the stage pretrain_rows does not depend on it."""
    phase1: PhaseRowsParams
    phase2: PhaseRowsParams

    @model_validator(mode="after")
    def _shares_are_counted_up(self) -> PretrainRowsParams:
        if self.shares != list(range(1, len(self.shares) + 1)):
            raise ValueError(f"shares={self.shares} must count from 1 up, for example [1, 2, 3, 4] for four workers")
        if self.shares and self.source != "corpus":
            raise ValueError(f"shares are of rows that are made of text, found source={self.source}: set shares to []")
        return self


class RowsParams(Section):
    """Rows of any downstream task."""

    row_length: Annotated[int, Field(ge=16, le=32767)]
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)]
    held_out_fraction: HeldOut


class SquadRowsParams(RowsParams):
    doc_stride: Annotated[int, Field(ge=0)]
    max_question_length: Positive

    @model_validator(mode="after")
    def _a_window_moves_on(self) -> SquadRowsParams:
        context = self.row_length - self.max_question_length - 3
        if self.doc_stride >= context:
            raise ValueError(
                f"doc_stride={self.doc_stride} must be smaller than the context of the smallest window: row_length "
                f"{self.row_length} - max_question_length {self.max_question_length} - 3 special tokens = {context}"
            )
        return self
