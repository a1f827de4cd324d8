"""Parameters of named entities: sentences of tagged words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import EntryParams, OwnDataParams, Points, ReleaseParams, RowsParams
from tasks.project.param_sections import Name, Positive, Section
from tasks.project.param_training import Epochs, FinetuneParams, Rate


class ColumnParams(Section):
    """Columns of a table of sentences: a list of words and a list of tags in each row."""

    tokens: Name = "tokens"
    tags: Name = "ner_tags"


class SentencesParams(OwnDataParams):
    source: Literal["files", "hub"] = "files"
    train_path: Name = "inputs/ner"
    dev_path: Name | None = "inputs/ner"
    columns: ColumnParams = ColumnParams()
    tag_scheme: Literal["auto", "iob1", "iob2"] = "auto"


class WindowParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 8
    overlap: Annotated[int, Field(ge=0)] = 32
    """Tokens that neighbouring windows of a long sentence share at most."""

    @model_validator(mode="after")
    def _a_window_moves_on(self) -> WindowParams:
        most = (self.row_length - 2) // 2
        if self.overlap > most:
            raise ValueError(
                f"overlap={self.overlap} must be half of a window at most: (row_length {self.row_length} - 2 special "
                f"tokens) / 2 = {most}"
            )
        return self


class TuningParams(FinetuneParams):
    global_batch_size: Positive = 16
    learning_rate: Rate = 5e-5
    epochs: Epochs = 4.0


class GateParams(ReleaseParams):
    min_f1: Points | None = None
    max_f1_drop: Points = 0.0


class Params(EntryParams):
    """An entry that finds named entities."""

    data: SentencesParams = SentencesParams()
    rows: WindowParams = WindowParams()
    finetune: TuningParams = TuningParams()
    gate: GateParams = GateParams()
