"""What a release is about: answers to questions, or a task of GLUE; where the stages left its parts, and which of them
its gate judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.downstream.entries import GLUE, EntryName
from tasks.downstream.entries import QUESTIONS as QUESTIONS_KIND
from tasks.downstream.task import DownstreamTask
from tasks.project import artifacts

PRETRAINING = ("pretrain-phase1", "pretrain-phase2")
PHASES = ("phase1", "phase2")
RELEASED = Path("released")
"""Stands for the released model's folder, wherever gate.released says that it is."""
PARAMETERS = (
    "base_model", "corpus", "device.compile", "device.micro_batch_size", "device.precision", "device.processes",
    "device.runtime", "ipu.inference_execution", "ipu.phase1", "ipu.phase2", "model", "packing", "pretrain.beta1",
    "pretrain.beta2", "pretrain.bias_correction", "pretrain.enabled", "pretrain.eps",
    "pretrain.evaluate_every_updates", "pretrain.evaluate_rows", "pretrain.first_moment_precision",
    "pretrain.max_grad_norm", "pretrain.optimizer", "pretrain.phase1", "pretrain.phase2", "pretrain.seed",
    "pretrain.weight_decay", "pretrain_rows.held_out_fraction", "pretrain_rows.masked_fraction",
    "pretrain_rows.max_sequences_per_row", "pretrain_rows.phase1", "pretrain_rows.phase2", "pretrain_rows.seed",
    "pretrain_rows.short_sequence_probability", "pretrain_rows.source", "tokenizer", "validate",
)  # fmt: skip
"""What pre-training, its rows and its data depend on."""


@dataclass(frozen=True)
class Subject:
    """Paths are relative to the checkout."""

    model: Path
    predictions: Path
    metrics: Path
    gate: Path
    receipt: Path
    references: tuple[Path, ...]
    """What the predictions are compared with."""
    rows: tuple[Path, ...]
    """Folders of the packed rows behind the release."""
    verdicts: tuple[str, ...]
    """Data sets behind the release; what was found of them is reports/validation/<name>.json."""
    trainings: tuple[str, ...]
    """Their figures are metrics/<name>.json."""
    stages: Mapping[str, str]
    """finetune, evaluate and gate -> the stage of dvc.yaml."""
    parameters: tuple[str, ...]
    """Those that decide what the release is: all that the stages behind it depend on. Where it goes, how it is watched
    and how processes are started is none of them."""
    released: str
    """Where a released model's scores or predictions lie below the folder of released models."""

    @property
    def page(self) -> Path:
        """The page of the evaluation."""
        return self.predictions.with_name("report.html")

    def judged(self, released: Path, root: Path) -> dict[str, Path]:
        """Name -> file of all that the gate judges; a name is the path in the checkout.

        A file that is not there is named all the same: that it is not is judged, too.

        Args:
            released: the released model's folder.
            root: the checkout.
        """
        names = [path.relative_to(root) for folder in (self.model, artifacts.TOKENIZER) for path in _in(root / folder)]
        names += [folder / "manifest.json" for folder in self.rows]
        names += [artifacts.BASE_MODEL / "base_model.json", *self.references, self.predictions, self.page]
        names += [self.metrics]
        names += [artifacts.METRICS / f"{training}.json" for training in self.trainings]
        names += [artifacts.validation_report(name) for name in self.verdicts]
        found = {name.as_posix(): root / name for name in names}
        of_released = [Path(self.released, name) for name in ("scores.json", self.predictions.name)]
        return {**found, **{(RELEASED / name).as_posix(): root / released / name for name in of_released}}

    def has_verdict(self, name: str) -> bool:
        """Whether a data verdict of that name is about data of this release."""
        return name in self.verdicts

    def row_folders(self, root: Path) -> dict[str, Path]:
        """Name -> folder of the packed rows behind this release, those that are there."""
        found = {folder.relative_to(artifacts.ROWS).as_posix().replace("/", "-"): root / folder for folder in self.rows}
        return {name: folder for name, folder in found.items() if (folder / "manifest.json").is_file()}


def _in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def entry_subject(entry: EntryName, splits: Sequence[str]) -> Subject:
    """The release of an entry's model.

    Args:
        entry: which one.
        splits: of its data, training first (`DownstreamTask.splits`).
    """
    name = entry.name
    data = ("corpus", *PHASES, entry.verdict(), *(entry.verdict(split) for split in splits))
    return Subject(
        model=artifacts.model_folder(name),
        predictions=artifacts.predictions_file(name),
        metrics=artifacts.metrics_file(name),
        gate=artifacts.metrics_file(name, "gate"),
        receipt=artifacts.receipt_file(name),
        references=tuple(artifacts.examples_file(name, split) for split in splits[1:]),
        rows=(*map(artifacts.rows_folder, PHASES), *(artifacts.rows_folder(name, split) for split in splits)),
        verdicts=tuple(dict.fromkeys(data)),
        trainings=(*PRETRAINING, artifacts.job_name(name, "finetune")),
        stages={what: entry.stage(what) for what in ("finetune", "evaluate", "gate")},
        parameters=(*PARAMETERS, *entry.parameters),
        released=entry.task,
    )


def subject_of(task: DownstreamTask) -> Subject:
    """The release of an entry's model."""
    return entry_subject(task.entry, task.splits)


QUESTIONS = entry_subject(EntryName(QUESTIONS_KIND, QUESTIONS_KIND, ""), ("train", "dev"))


def glue_subject(task: str, splits: Sequence[str]) -> Subject:
    """The release of a GLUE task.

    Args:
        task: its name.
        splits: of its data, training first.
    """
    return entry_subject(EntryName(f"{GLUE}-{task}", GLUE, task), splits)
