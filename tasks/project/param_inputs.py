"""Sections of params.yaml that say which data are read and what rows are made of them.

The defaults are those of BERT's own create_pretraining_data.py (github.com/google-research/bert), where it has the
parameter; what it is made of is the user's own text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_sections import Fraction, HeldOut, Name, Positive, Section, Seed


class CorpusParams(Section):
    source: Literal["demo", "files", "hub", "none"] = "files"
    path: Name = "inputs/corpus"
    text_column: Name = "text"
    title_column: Name | None = None
    id_column: Name | None = None
    layout: Literal["auto", "wikitext", "paragraphs", "wikiextractor"] = "auto"
    seed: Seed = 1
    demo_documents: Positive = 20000
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_split: Name = "train"
    dataset_revision: str | None = None


class TokenizerParams(Section):
    source: Literal["train", "file", "hub"] = "train"
    path: Name = "inputs/tokenizer"
    vocabulary_size: Annotated[int, Field(ge=100, le=2**31)] = 30522
    """As many as bert-base-uncased has."""
    lowercase: bool = True
    repository: str | None = None
    revision: str | None = None


class BaseModelParams(Section):
    """A model to start from, in place of fresh weights."""

    source: Literal["none", "folder", "hub"] = "none"
    path: Name = "inputs/model"
    repository: str | None = None
    revision: str | None = None


class PhaseRowsParams(Section):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_predictions_per_row: Positive | None = None
    duplicates: Positive = 10
    path: Name = "inputs/prepared"
    dataset: str | None = None
    dataset_revision: str | None = None


class Phase2RowsParams(PhaseRowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 512


class PretrainRowsParams(Section):
    source: Literal["corpus", "files", "hub"] = "corpus"
    seed: Seed = 12345
    masked_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.15
    short_sequence_probability: Fraction = 0.1
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 1
    held_out_fraction: HeldOut = 0.01
    """Not of BERT's, which evaluates on what it is told to."""
    shares: list[Positive] = Field(default_factory=list)
    """It changes no row, so that the stage pretrain_rows does not depend on it."""
    phase1: PhaseRowsParams = PhaseRowsParams()
    phase2: Phase2RowsParams = Phase2RowsParams()

    @model_validator(mode="after")
    def _shares_are_counted_up(self) -> PretrainRowsParams:
        if self.shares != list(range(1, len(self.shares) + 1)):
            raise ValueError(f"shares={self.shares} must count from 1 up, for example [1, 2, 3, 4] for four workers")
        if self.shares and self.source != "corpus":
            raise ValueError(f"shares are of rows that are made of text, found source={self.source}: set shares to []")
        return self
