"""Sections of params.yaml that say which data are read and what rows are made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import Fraction, HeldOut, Name, Positive, Section, Seed


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
