"""Device job for inference with a fine-tuned model, in a temporary checkout.

By default it runs in the precision of the scores that the model's release or run records.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import find_object, read_json
from tasks.downstream.inference.model import IPU_CONFIG, PROVENANCE, InferenceModel
from tasks.downstream.rows import write_rows
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, run_device_job
from tasks.models.model_folders import convert_to_safetensors
from tasks.params.sections import PRECISIONS, RuntimeSpec
from tasks.plan.kinds import DownstreamTask, load_part
from tasks.records.labels import write_labels
from tasks.stage import artifacts, streams
from tasks.stage.errors import DeviceJobFailed, InputError, StagePaused
from tasks.stage.process import Say
from tasks.vocabulary.encoding import find_tokenizer_file

PATIENCE_SECONDS = 5.0
"""Jobs that end sooner print no progress."""


@dataclass(frozen=True)
class InferenceOptions:
    """Device, precision and batch size of an inference job."""

    place: RuntimeSpec
    batch_size: int
    """Rows per forward pass."""
    say: Say
    """Callback for progress lines."""


@contextlib.contextmanager
def scratch_checkout(task: DownstreamTask, model: InferenceModel) -> Iterator[None]:
    """Change into a temporary checkout whose entry has this model; remove it at the end.

    Stages work relative to the current folder, so all of them work here. TMPDIR sets its location.
    """
    with (
        convert_to_safetensors(model.folder, find_tokenizer_file(model.tokenizer)) as readable,
        tempfile.TemporaryDirectory(prefix="podium-") as folder,
        contextlib.chdir(folder),
    ):
        for path in (artifacts.model_folder(task.entry.name), task.examples_file(task.splits[0])):
            path.parent.mkdir(parents=True)
        artifacts.model_folder(task.entry.name).symlink_to(readable)
        write_labels(task.examples_file(task.splits[0]).parent, model.labels)
        yield


def run_inference(task: DownstreamTask, model: InferenceModel, split: str, how: InferenceOptions) -> JobResult:
    """Write the rows of a split and the model's logits for them to the paths that the stages use.

    Raises:
        InputError: the examples cannot be used.
        DeviceJobFailed: the model cannot be used.
        KeyboardInterrupt: the job was interrupted.
    """
    write_model_rows(task, model, split)
    return predict_rows(task, model, split, how)


def write_model_rows(task: DownstreamTask, model: InferenceModel, split: str) -> None:
    """Write the rows of a split; warn if the vocabulary does not fit the text."""
    made = write_rows(load_part(task.entry, "rows"), split, tokenizer=model.tokenizer)
    if made.unknown and made.unknown.warning:
        streams.note(made.unknown.warning)


def predict_rows(task: DownstreamTask, model: InferenceModel, split: str, how: InferenceOptions) -> JobResult:
    """Write the model's logits for existing rows; raises the errors of `run_inference`."""
    rows, logits = task.rows_folder(split), artifacts.logits_file(task.entry.name, split)
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
    except StagePaused:  # there is no checkpoint to resume from
        raise KeyboardInterrupt from None
    except DeviceJobFailed as error:  # the log is deleted with the folder
        raise DeviceJobFailed(str(error).replace(f" (log: {artifacts.RUNS / 'job.log'})", "")) from None


def _ipu_config(model: InferenceModel) -> dict[str, Any] | None:
    """Return the ipu_config.json of a model folder (Optimum Graphcore's format), or None to derive everything."""
    path = model.folder / IPU_CONFIG
    if not path.is_file():
        return None
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a JSON object ({error}). Correct it, or remove it for a derived one") from None


class _Patient:
    """Progress callback that stays silent for the first PATIENCE_SECONDS."""

    def __init__(self, say: Say) -> None:
        self._say, self._started_at = say, time.monotonic()

    def __call__(self, text: str) -> None:
        if text.startswith("[") and time.monotonic() - self._started_at > PATIENCE_SECONDS:
            self._say(text)


def choose_place(model: Path, runtime: str, precision: str | None) -> RuntimeSpec:
    """Return the device and precision for a model.

    Args:
        precision: the user's choice; None: auto on IPUs, elsewhere the precision of the recorded scores so that they
            can be reproduced, or fp32 if none is recorded.
    """
    if precision is None and runtime == "ipu":
        return RuntimeSpec(runtime, "auto")
    chosen = precision or read_precision(model) or "fp32"
    if precision is None and chosen == "fp16":
        streams.note("the scores of this model were computed in fp16, which only IPUs support; using fp32")
        chosen = "fp32"
    return RuntimeSpec(runtime, chosen)


def read_precision(model: Path) -> str | None:
    """Return the precision in which the development sets of a model were predicted.

    A release records it in provenance.json, a checkout in metrics/NAME-predict.json for models/NAME.

    Returns:
        fp32, bf16 or fp16; None if it is not recorded.
    """
    released = find_object(model / PROVENANCE)
    if released is None:
        folder = model.resolve()
        return _precision_in(find_object(folder.parent.parent / artifacts.metrics_file(folder.name, "predict")))
    return _precision_in(released.get("prediction"))


def _precision_in(figures: Any) -> str | None:
    if not isinstance(figures, Mapping):
        return None
    if "precision" in figures:
        return figures["precision"] if figures["precision"] in PRECISIONS else None
    return next((value for one in figures.values() if (value := _precision_in(one))), None)
