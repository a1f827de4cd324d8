"""Parameters of a task of GLUE."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.project.param_downstream import DataParams, EntryParams, Expected, Points, ReleaseParams, RowsParams
from tasks.project.param_sections import Name, Positive
from tasks.project.param_training import Epochs, FinetuneParams, Rate

GlueTask = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class GlueData(DataParams):
    source: Literal["files", "hub"] = "files"
    """files: GLUE's own in `path`; hub: `dataset`."""
    path: Name = "inputs/glue"
    """Folder with a folder for each task, named like it (docs/glue.md)."""
    dataset: str | None = "nyu-mll/glue"
    """Name of a Hub data set, for source: hub."""
    dataset_revision: str | None = None
    """Commit, branch or tag of that data set; a commit makes the run reproducible."""

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
    """Floor of the task's score, times 100; null: none."""
    max_drop: Points = 0.0
    """Points below the released model that are tolerated."""


EXAMPLES: dict[str, tuple[int, int]] = {
    "cola": (8_551, 1_043),
    "sst2": (67_349, 872),
    "mrpc": (3_668, 408),
    "stsb": (5_749, 1_500),
    "qqp": (363_846, 40_430),
    "mnli": (392_702, 19_647),
    "qnli": (104_743, 5_463),
    "rte": (2_490, 277),
    "wnli": (635, 71),
}
"""Training and development examples of each task, as the card of nyu-mll/glue states them."""
SINGLE, SINGLE_TOKENS, PAIR_TOKENS = ("cola", "sst2"), 16, 44
"""Assumed tokens of a sentence of those tasks, and of a pair of the others, special ones included."""


class Params(EntryParams):
    """An entry for one of the nine tasks."""

    task: GlueTask
    """Which of the nine tasks of GLUE."""
    data: GlueData = GlueData()
    rows: SentenceParams = SentenceParams()
    finetune: TuningParams = TuningParams()
    gate: GateParams = GateParams()

    @property
    def expected(self) -> Expected:
        return Expected(*EXAMPLES[self.task], SINGLE_TOKENS if self.task in SINGLE else PAIR_TOKENS)
