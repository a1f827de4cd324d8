"""Subject of a release: the model of an entry, the paths of its parts, and the files that its gate evaluates.

A file may change at any time, so publish does not verify one file and send another: it reads each file once into a
private copy, decides on these copies, and publishes them.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ipu_model.core.files import NotAFile, clear_partial, open_regular, partial_path, sha256_of
from tasks.params.entries import Entry, find_upstream
from tasks.params.schema import Params
from tasks.plan import stages
from tasks.plan.plan_file import Plan, make_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError

RELEASED = Path("released")
"""Placeholder for the released model's folder, wherever the gate's parameters put it."""
SEEDS = Path("seeds")
"""Placeholder for the folder with the scores of other seeds."""

Hashes = Mapping[str, str | None]
"""Name -> SHA-256; None: the file does not exist."""


@dataclass(frozen=True)
class ReleaseSubject:
    """Paths of a release, relative to the checkout."""

    entry: Entry
    model: Path
    predictions: Path
    metrics: Path
    gate: Path
    references: tuple[Path, ...]
    """Reference answers that the predictions are compared with, and probabilities that they are decided from."""
    rows: tuple[Path, ...]
    """Folders of packed rows that the model was trained and evaluated on."""
    base_model: Path | None
    """Record of the base model, if there is one."""
    teacher: Path | None
    """Folder of the teacher's scores and record, if there is one."""
    verdicts: tuple[str, ...]
    """Validated data sets of the release; their verdicts are reports/validation/<name>.json."""
    trainings: tuple[str, ...]
    """Trainings of the model; their metrics are metrics/<name>.json, and the last is the fine-tuning."""
    exports: Mapping[str, Path]
    """Path in the release -> exported file of the model."""

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.entry.name

    def judged(self, released: Path | None, root: Path, seeds: Path | None = None) -> dict[str, Path]:
        """Return name -> file of everything that the gate evaluates; a name is the path in the checkout.

        Missing files are included, because the gate evaluates that they are missing.

        Args:
            released: folder of the released model, if there is one to compare with.
            seeds: folder with the scores of other seeds, if any.
        """
        paths = (path for folder in (self.model, artifacts.TOKENIZER) for path in sorted((root / folder).rglob("*")))
        names = [path.relative_to(root) for path in paths if not path.is_dir()]
        names += [folder / "manifest.json" for folder in self.rows]
        if self.teacher is not None:
            names += [self.teacher / artifacts.TEACHER_RECORD, self.teacher / "scores.json"]
        names += [*([self.base_model] if self.base_model else []), *self.references, self.predictions]
        names += [artifacts.evaluation_page(self.name), artifacts.mistakes_file(self.name), self.metrics]
        for name, path in self.exports.items():
            names += [path, artifacts.exported_predictions(self.name, name)]
        names += [self.export_metrics] if self.exports else []
        names += [artifacts.METRICS / f"{training}.json" for training in self.trainings]
        names += [artifacts.validation_report(name) for name in self.verdicts]
        files = {name.as_posix(): root / name for name in names}
        if released is not None:
            below = self.entry.params.released_below
            of_released = [Path(below, name) for name in ("scores.json", self.predictions.name)]
            if released == artifacts.released_scores(self.name):
                of_released.append(Path(artifacts.RELEASED_RECORD))
            files |= {(RELEASED / name).as_posix(): root / released / name for name in of_released}
        of_seeds = [] if seeds is None else sorted((root / seeds).glob("*.json"))
        return {**files, **{(SEEDS / path.name).as_posix(): path for path in of_seeds}}

    @property
    def export_metrics(self) -> Path:
        """Scores of the exported files."""
        return artifacts.metrics_file(self.name, "export")

    def row_folders(self, root: Path) -> dict[str, Path]:
        """Return name -> existing folder of packed rows of this release."""
        folders = {
            folder.relative_to(artifacts.ROWS).as_posix().replace("/", "-"): root / folder for folder in self.rows
        }
        return {name: folder for name, folder in folders.items() if (folder / "manifest.json").is_file()}


def make_subject(entry: Entry, params: Params) -> ReleaseSubject:
    """Return the subject for the release of an entry's model."""
    upstream, name = find_upstream(entry, params), entry.name
    of_phases = (*map(artifacts.rows_folder, upstream.phases), *(entry.rows_folder(split) for split in entry.splits))
    return ReleaseSubject(
        entry=entry,
        model=artifacts.model_folder(name),
        predictions=artifacts.predictions_file(name),
        metrics=artifacts.metrics_file(name),
        gate=artifacts.metrics_file(name, "gate"),
        references=(*(entry.examples_file(split) for split in entry.development), *entry.decision_files),
        rows=of_phases,
        base_model=artifacts.BASE_MODEL / "base_model.json" if upstream.base_model else None,
        teacher=artifacts.teacher_folder(name) if entry.params.distill.has_teacher else None,
        verdicts=(*(["corpus"] if upstream.corpus else []), *upstream.phases, entry.verdict(), entry.verdict("rows")),
        trainings=(*(f"pretrain-{phase}" for phase in upstream.phases), artifacts.job_name(name, "finetune")),
        exports={
            artifacts.EXPORT_FILES[form]: artifacts.exports_folder(name) / artifacts.EXPORT_FILES[form]
            for form in entry.params.export.formats
        },
    )


def expand_plan(params: Params) -> Plan:
    """Return all stages for these parameters, as this code runs them."""
    return make_plan(stages.define(params))


def hash_files(files: Mapping[str, Path]) -> dict[str, str | None]:
    """Return the SHA-256 of every file; None for a missing one."""
    return {name: sha256_of(path) if path.is_file() else None for name, path in sorted(files.items())}


@contextlib.contextmanager
def copy_privately(files: Mapping[str, Path], parent: Path) -> Iterator[tuple[Path, dict[str, str | None]]]:
    """Copy files into a folder that only this user can enter, and remove it at the end of the context.

    Remains of killed processes are removed.

    Args:
        files: name below that folder -> source, read once.
        parent: folder to create that folder in.

    Raises:
        InputError: a source is not a regular file.
    """
    parent.mkdir(parents=True, exist_ok=True)
    clear_partial(parent / "held")
    folder = partial_path(parent / "held")
    folder.mkdir(mode=0o700)
    try:
        yield folder, {name: _copy(path, folder / name) for name, path in sorted(files.items())}
    finally:
        shutil.rmtree(folder)


def _copy(source: Path, target: Path) -> str | None:
    """Copy a file; return the SHA-256 of the copy, or None if the file does not exist."""
    try:
        stream = open_regular(source)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotAFile):
        raise InputError(
            f"{source} is not a regular file (a folder, pipe or device): restore what its stage wrote"
        ) from None
    with stream:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            shutil.copyfileobj(stream, copy)
    return sha256_of(target)
