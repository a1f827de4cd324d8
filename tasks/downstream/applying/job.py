"""One device job of a finished model, in a folder that looks like a checkout and is gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ipu_model.files import read_json
from tasks.downstream.applying.model import IPU_CONFIG, FoundModel
from tasks.downstream.rows import write_rows
from tasks.downstream.task import DownstreamTask, part_of
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, run_device_job
from tasks.project import artifacts, streams
from tasks.project.errors import DeviceJobFailed, InputError, StagePaused
from tasks.project.param_sections import Place
from tasks.project.process import Say
from tasks.reading.model_folders import as_safetensors
from tasks.vocabulary.encoding import tokenizer_file

PATIENCE_SECONDS = 5.0
"""What is done sooner needs no news of its progress."""


@dataclass(frozen=True)
class How:
    """Where and how a model is computed."""

    place: Place
    batch_size: int
    """Rows of one forward pass."""
    say: Say
    """Takes a line of progress."""


@contextlib.contextmanager
def scratch_checkout(task: DownstreamTask, model: FoundModel) -> Iterator[None]:
    """Make a new folder the current one, which looks like a checkout whose entry has this model; remove it at the end.

    What stages do counts from the current folder, so that all of them work here, too. TMPDIR says where it lies.
    """
    with (
        as_safetensors(model.folder, tokenizer_file(model.tokenizer)) as readable,
        tempfile.TemporaryDirectory(prefix="podium-") as folder,
        contextlib.chdir(folder),
    ):
        for path in (artifacts.model_folder(task.entry.name), task.examples_file(task.splits[0])):
            path.parent.mkdir(parents=True)
        artifacts.model_folder(task.entry.name).symlink_to(readable)
        part_of(task.entry, "apply").write_beside(task.examples_file(task.splits[0]).parent, model.labels)
        yield


def compute(task: DownstreamTask, model: FoundModel, split: str, how: How) -> JobResult:
    """Rows of the examples of a split, and the logits of the model for them, where stages write both.

    Raises:
        InputError, DeviceJobFailed: the examples, or the model, cannot be used.
        KeyboardInterrupt: it was asked to stop.
    """
    rows, logits = task.rows_folder(split), artifacts.logits_file(task.entry.name, split)
    made = write_rows(part_of(task.entry, "rows"), split, tokenizer=model.tokenizer)
    if made.unknown and made.unknown.warning:
        streams.note(made.unknown.warning)
    logits.parent.mkdir(parents=True, exist_ok=True)
    job = Job(
        kind="predict",
        head=task.head,
        labels=list(model.labels) if task.labels_of(rows) else None,
        rows=str(rows),
        output=str(logits),
        run_folder=str(artifacts.RUNS),
        geometry=BatchGeometry(how.batch_size, how.batch_size),
        runtime=how.place.runtime,
        precision=how.place.precision,
        init_checkpoint=str(artifacts.model_folder(task.entry.name).resolve()),
        ipu_config=_ipu_config(model) if how.place.runtime in ("auto", "ipu") else None,
    )
    try:
        return run_device_job(job, say=_Patient(how.say))
    except StagePaused:  # there is no checkpoint to go on from
        raise KeyboardInterrupt from None
    except DeviceJobFailed as error:  # its log goes with the folder
        raise DeviceJobFailed(str(error).replace(f" (log: {artifacts.RUNS / 'job.log'})", "")) from None


def _ipu_config(model: FoundModel) -> dict[str, Any] | None:
    """That of a model folder, as Optimum Graphcore reads it; None where it has none: then everything is derived."""
    path = model.folder / IPU_CONFIG
    if not path.is_file():
        return None
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is no JSON object ({error}): take it away, and what it says is derived") from None


class _Patient:
    """Passes on progress once there was reason to ask for it, and nothing else."""

    def __init__(self, say: Say) -> None:
        self._say, self._started_at = say, time.monotonic()

    def __call__(self, text: str) -> None:
        if text.startswith("[") and time.monotonic() - self._started_at > PATIENCE_SECONDS:
            self._say(text)
