"""What a release is about: the model of an entry, where the stages left its parts, and what of it its gate judges.

A file may be replaced at any moment, so publish does not check one and send another: it reads each file once, into a
private copy, decides on these copies, and sends them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ipu_model.files import NotAFile, is_alive, open_regular, sha256_of
from tasks.params.entries import behind
from tasks.params.schema import Params
from tasks.plan.composing import compose
from tasks.plan.kinds import DownstreamTask
from tasks.plan.plan_file import Plan, definitions_of, expand
from tasks.stage import artifacts
from tasks.stage.errors import InputError

RELEASED = Path("released")
"""Stands for the released model's folder, wherever the parameters of the gate say that it is."""
SEEDS = Path("seeds")
"""The same for the folder with the scores of other seeds."""
PROJECT = Path(__file__).resolve().parents[3]
"""Holds the dvc.yaml that this code belongs to."""

Hashes = Mapping[str, str | None]
"""Name -> SHA-256; None: the file is not there."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class Subject:
    """Paths are relative to the checkout."""

    name: str
    """Of the entry."""
    model: Path
    predictions: Path
    page: Path
    """Of the evaluation."""
    metrics: Path
    prediction: Path
    """Figures of the stage predict, of which no check of the gate speaks."""
    gate: Path
    receipt: Path
    references: tuple[Path, ...]
    """What the predictions are compared with."""
    rows: tuple[Path, ...]
    """Folders of the packed rows behind the release."""
    base_model: Path | None
    """The record of the given model behind it, where there is one."""
    verdicts: tuple[str, ...]
    """Data sets behind the release; what was found of them is reports/validation/<name>.json."""
    trainings: tuple[str, ...]
    """Their figures are metrics/<name>.json; the last is the fine-tuning."""
    stages: Mapping[str, str]
    """finetune, evaluate, gate and predict_released, which may not be there -> the stage of dvc.yaml."""
    released: str
    """Where a released model's scores or predictions lie below the folder of released models."""

    def judged(self, released: Path, root: Path, seeds: Path | None = None) -> dict[str, Path]:
        """Name -> file of all that the gate judges; a name is the path in the checkout.

        A file that is not there is named all the same: that it is not is judged, too.

        Args:
            released: the released model's folder.
            root: the checkout.
            seeds: the folder with the scores of other seeds, where there is one.
        """
        names = [path.relative_to(root) for folder in (self.model, artifacts.TOKENIZER) for path in _in(root / folder)]
        names += [folder / "manifest.json" for folder in self.rows]
        names += [*([self.base_model] if self.base_model else []), *self.references, self.predictions, self.page]
        names += [self.metrics]
        names += [artifacts.METRICS / f"{training}.json" for training in self.trainings]
        names += [artifacts.validation_report(name) for name in self.verdicts]
        found = {name.as_posix(): root / name for name in names}
        of_released = [Path(self.released, name) for name in ("scores.json", self.predictions.name)]
        if released == artifacts.released_scores(self.name):
            of_released.append(Path(artifacts.RELEASED_RECORD))
        found |= {(RELEASED / name).as_posix(): root / released / name for name in of_released}
        of_seeds = [] if seeds is None else sorted((root / seeds).glob("*.json"))
        return {**found, **{(SEEDS / path.name).as_posix(): path for path in of_seeds}}

    def row_folders(self, root: Path) -> dict[str, Path]:
        """Name -> folder of the packed rows behind this release, those that are there."""
        found = {folder.relative_to(artifacts.ROWS).as_posix().replace("/", "-"): root / folder for folder in self.rows}
        return {name: folder for name, folder in found.items() if (folder / "manifest.json").is_file()}


def _in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def subject_of(task: DownstreamTask, params: Params) -> Subject:
    """The release of an entry's model.

    Args:
        task: the entry, as its kind sees it.
        params: the whole of params.yaml.
    """
    entry, found = task.entry, behind(task.entry, params)
    name = entry.name
    of_phases = (*map(artifacts.rows_folder, found.phases), *(task.rows_folder(split) for split in task.splits))
    return Subject(
        name=name,
        model=artifacts.model_folder(name),
        predictions=artifacts.predictions_file(name),
        page=artifacts.evaluation_page(name),
        metrics=artifacts.metrics_file(name),
        prediction=artifacts.metrics_file(name, "predict"),
        gate=artifacts.metrics_file(name, "gate"),
        receipt=artifacts.receipt_file(name),
        references=tuple(task.examples_file(split) for split in task.development),
        rows=of_phases,
        base_model=artifacts.BASE_MODEL / "base_model.json" if found.base_model else None,
        verdicts=(*(["corpus"] if found.corpus else []), *found.phases, entry.verdict(), entry.verdict("rows")),
        trainings=(*(f"pretrain-{phase}" for phase in found.phases), artifacts.job_name(name, "finetune")),
        stages={what: entry.stage(what) for what in ("finetune", "evaluate", "gate", "predict_released")},
        released=task.released_below,
    )


def plan_of(params: Params) -> Plan:
    """All stages of these parameters, as this code runs them."""
    return Plan(expand(definitions_of(PROJECT), compose(params)))


def hashes_of(files: Mapping[str, Path]) -> dict[str, str | None]:
    """SHA-256 of every file, None of one that is not there."""
    return {name: sha256_of(path) if path.is_file() else None for name, path in sorted(files.items())}


@contextlib.contextmanager
def copy_privately(files: Mapping[str, Path], place: Path) -> Iterator[tuple[Path, dict[str, str | None]]]:
    """Copy files into a folder that only this user can enter, for as long as the context lasts.

    What a killed process left there is cleared away.

    Args:
        files: name below that folder -> what is read, once.
        place: the folder is made in it.

    Raises:
        InputError: one is no regular file.
    """
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob("held.*.partial"):
        if not is_alive(left.name.split(".")[1]):
            shutil.rmtree(left)
    folder = place / f"held.{os.getpid()}.partial"
    folder.mkdir(mode=0o700)
    try:
        yield folder, {name: _copy(path, folder / name) for name, path in sorted(files.items())}
    finally:
        shutil.rmtree(folder)


def _copy(source: Path, target: Path) -> str | None:
    """Read a file once and keep what was read; returns its SHA-256, None where it is not there."""
    digest = hashlib.sha256()
    try:
        stream = open_regular(source)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotAFile):
        raise InputError(
            f"{source} is no regular file (a folder, pipe or device): put back what its stage wrote"
        ) from None
    with stream:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            while block := stream.read(BLOCK):
                digest.update(block)
                copy.write(block)
    return digest.hexdigest()
