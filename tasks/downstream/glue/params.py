"""Parameters of a task of GLUE."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import DataParams, EntryParams, Points, ReleaseParams, RowsParams
from tasks.project.param_sections import Name, Positive
from tasks.project.param_training import Epochs, FinetuneParams, Rate

GlueTask = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class GlueData(DataParams):
    source: Literal["files", "hub"] = "files"
    path: Name = "inputs/glue"
    dataset: str | None = "nyu-mll/glue"
    dataset_revision: str | None = None

    @model_validator(mode="after")
    def _the_hub_needs_a_name(self) -> GlueData:
        if self.source == "hub" and not self.dataset:
            raise ValueError("source: hub needs dataset: user/name")
        return self


class SentenceParams(RowsParams):
    row_length: Annotated[int, Field(ge=16, le=32767)] = 128
    max_sequences_per_row: Annotated[int, Field(ge=1, le=255)] = 6


class TuningParams(FinetuneParams):
    global_batch_size: Positive = 32
    learning_rate: Rate = 3e-5
    epochs: Epochs = 3.0


class GateParams(ReleaseParams):
    min_score: Annotated[float, Field(ge=-100, le=100)] | None = None
    max_drop: Points = 0.0


class Params(EntryParams):
    """An entry for one of the nine tasks."""

    task: GlueTask
    data: GlueData = GlueData()
    rows: SentenceParams = SentenceParams()
    finetune: TuningParams = TuningParams()
    gate: GateParams = GateParams()
