"""The device jobs of a plan before it runs, built by the stages' own functions from rows that are foreseen."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.downstream.entries import entry_of
from tasks.downstream.jobs.entry_jobs import finetune_job, predict_job
from tasks.downstream.task import about
from tasks.jobs.device_job import Job
from tasks.preflight.foreseen_rows import Folders, Foreseer, Rows, write_manifests
from tasks.pretraining.pretrain import pretrain_job
from tasks.project.params import Params

PRETRAIN, FINETUNE, PREDICT = "pretrain", "finetune", "predict"
"""Groups of stages that start device jobs which are foretold."""


@dataclass(frozen=True)
class PlannedJob:
    """A device job that a stage will start."""

    stage: str
    split: str
    """The rows that it predicts, where it does; empty of a training."""
    job: Job
    """From fresh weights, as none are there yet; its rows are a folder relative to the checkout."""
    rows: Rows

    @property
    def name(self) -> str:
        """The stage, and the split where that has several."""
        return f"{self.stage} {self.split}".strip()


def planned_jobs(
    params: Params,
    project: Path,
    root: Path,
    stages: Sequence[str],
    made_anew: Collection[str] = (),
    manifests: Mapping[str, Path] | None = None,
) -> list[PlannedJob]:
    """The jobs of these stages, in their order.

    Args:
        params: of the run.
        project: what paths of the parameters count from.
        root: the checkout, which need not be there.
        stages: of the plan; those that start no device job of their own are passed over.
        made_anew: stages whose outs in the checkout are not those that the run will have.
        manifests: those that the checkout will have and has not yet -> where they are.

    Raises:
        InputError: a file that a job is built from cannot be used.
    """
    if not any(_group(stage) in (PRETRAIN, FINETUNE, PREDICT) for stage in stages):
        return []
    folders = Foreseer(params, project, root, made_anew, manifests or {}).all()
    # What relative paths of the parameters count from is not where the manifests lie.
    config = str((project / params.ipu.config).absolute()) if params.ipu.config else ""
    stated = params.model_copy(update={"ipu": params.ipu.model_copy(update={"config": config})})
    with tempfile.TemporaryDirectory(prefix="podium-plan-") as name:
        place = Path(name)
        write_manifests(folders, place)
        return [found for stage in stages for found in _jobs_of(stage, stated, folders, place)]


def _group(stage: str) -> str:
    return stage.partition("@")[0]


def _jobs_of(stage: str, params: Params, folders: Folders, place: Path) -> Iterator[PlannedJob]:
    item = stage.partition("@")[2]
    if _group(stage) == PRETRAIN:
        sections = (params.pretrain, params.model, params.device, params.ipu)
        yield _planned(stage, "", pretrain_job(item, *sections, place, untrained=True), folders, place)
    elif _group(stage) == FINETUNE:
        job = finetune_job(about(entry_of(params, item)), params, place, untrained=True)
        yield _planned(stage, "", job, folders, place)
    elif _group(stage) == PREDICT:
        task = about(entry_of(params, item))
        for split in task.predicted:
            job = predict_job(task, params, task.rows_folder(split, place), place, place, place, untrained=True)
            yield _planned(stage, split if len(task.predicted) > 1 else "", job, folders, place)


def _planned(stage: str, split: str, job: Job, folders: Folders, place: Path) -> PlannedJob:
    rows = Path(job.rows).relative_to(place)
    return PlannedJob(stage, split, dataclasses.replace(job, rows=str(rows)), folders[rows])
