"""Parameters of classes and values of one's own texts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import EntryParams, OwnDataParams, Points, ReleaseParams, RowsParams
from tasks.project.param_sections import Name, Positive, Section
from tasks.project.param_training import Epochs, FinetuneParams, Rate

Floor = Annotated[float, Field(ge=-100, le=100)]
FLOORS = {False: ("min_accuracy", "min_macro_f1"), True: ("min_pearson", "min_spearman")}
"""Of values (true) and of classes."""


class ColumnParams(Section):
    """Columns of a table of texts; `None`: the usual names, see docs/classification.md."""

    text: Name | None = None
    text_pair: Name | None = None
    label: Name | None = None
    id: Name | None = None


class TextsParams(OwnDataParams):
    source: Literal["files", "hub"] = "files"
    train_path: Name = "inputs/classification"
    dev_path: Name | None = "inputs/classification"
    columns: ColumnParams = ColumnParams()


class SequenceParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 8


class TuningParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 3e-5
    epochs: Epochs = 3.0


class GateParams(ReleaseParams):
    min_accuracy: Points | None = None
    min_macro_f1: Points | None = None
    min_pearson: Floor | None = None
    min_spearman: Floor | None = None
    max_drop: Points = 0.0


class Params(EntryParams):
    """An entry for texts with labels of one's own."""

    regression: bool = False
    """Labels are values, not classes."""
    data: TextsParams = TextsParams()
    rows: SequenceParams = SequenceParams()
    finetune: TuningParams = TuningParams()
    gate: GateParams = GateParams()

    @model_validator(mode="after")
    def _floors_are_of_what_is_scored(self) -> Params:
        for name in FLOORS[not self.regression]:
            if getattr(self.gate, name) is not None:
                raise ValueError(
                    f"gate.{name} is no score of {'values' if self.regression else 'classes'} (regression: "
                    f"{str(self.regression).lower()}): state {' or '.join(FLOORS[self.regression])}"
                )
        return self
