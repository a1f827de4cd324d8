"""Inference with a fine-tuned model: what a kind states of it, and its device job in a temporary checkout.

By default it runs in the precision of the scores that the model's release or run records.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

import pyarrow as pa

from ipu_model.core.files import find_object, read_json
from tasks.downstream.inference.model import IPU_CONFIG, PROVENANCE, InferenceModel
from tasks.downstream.inference.onnx_answers import answer_rows
from tasks.downstream.packed_rows import Encoder, write_rows
from tasks.downstream.scoring.scores import A, E, L, P, Scores
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, run_device_job
from tasks.models.model_folders import convert_to_safetensors
from tasks.params.entries import Entry
from tasks.params.sections import PRECISIONS, RuntimeSpec
from tasks.records.interpretation import Interpretation, column_names
from tasks.records.labels import write_labels
from tasks.records.tables import Columns
from tasks.stage import artifacts, streams
from tasks.stage.errors import DeviceJobFailed, InputError, ParamsError, StagePaused
from tasks.stage.process import Say
from tasks.stage.row_folders import read_manifest
from tasks.stage.scratch import scratch_folder
from tasks.vocabulary.encoding import find_tokenizer_file

PATIENCE_SECONDS = 5.0
"""Jobs that end sooner print no progress."""
ID = "id"
INPUT = "the file on the command line"
"""Name of the input in messages; a run would name a parameter."""
UNKNOWN_TO_MODEL = "labels unknown to the model, counted as wrong"
COLUMN = "--column {}=NAME"
"""Option that messages suggest for another column name."""
PLAIN = "txt"
"""Format of files with one text a line."""


@dataclass(frozen=True)
class InferenceOptions:
    """Device, precision and batch size of an inference job."""

    place: RuntimeSpec
    batch_size: int
    """Rows per forward pass."""
    say: Say
    """Callback for progress lines."""
    exported: Path | None = None
    """ONNX file that answers instead of the weights."""


@contextlib.contextmanager
def scratch_checkout(entry: Entry, model: InferenceModel) -> Iterator[None]:
    """Change into a temporary checkout whose entry has this model; remove it at the end.

    Stages work relative to the current folder, so all of them work here. TMPDIR sets its location.
    """
    with (
        convert_to_safetensors(model.folder, find_tokenizer_file(model.tokenizer)) as readable,
        scratch_folder() as folder,
        contextlib.chdir(folder),
    ):
        folder, examples = artifacts.model_folder(entry.name), entry.examples_file(entry.splits[0])
        for path in (folder, examples):
            path.parent.mkdir(parents=True)
        folder.symlink_to(readable)
        write_labels(examples.parent, model.labels)
        yield


def run_inference(encoder: Encoder, model: InferenceModel, split: str, how: InferenceOptions) -> JobResult:
    """Write the rows of a split and the model's logits for them to the paths that the stages use.

    Raises:
        InputError: the examples cannot be used.
        DeviceJobFailed: the model cannot be used.
        KeyboardInterrupt: the job was interrupted.
    """
    entry, made = encoder.entry, write_rows(encoder, split, tokenizer=model.tokenizer)
    unknown = made.unknown.warning if made.unknown else ""
    cut = made.cut.warn(model.max_tokens) if made.cut else ""
    for warning in filter(None, (unknown, cut)):  # the vocabulary or the length of rows does not fit the text
        streams.note(warning)
    rows, logits = entry.rows_folder(split), artifacts.logits_file(entry.name, split)
    logits.parent.mkdir(parents=True, exist_ok=True)
    if how.exported is not None:
        return _answer_exported(how.exported, rows, logits)
    job = Job(
        kind="predict",
        head=entry.params.head,
        labels=list(model.labels) if entry.params.has_labels else None,
        rows=str(rows),
        output=str(logits),
        run_folder=str(artifacts.RUNS),
        geometry=BatchGeometry(how.batch_size, how.batch_size),
        runtime=how.place.runtime,
        precision=how.place.precision,
        init_checkpoint=str(artifacts.model_folder(entry.name).resolve()),
        ipu_config=load_ipu_config(model) if how.place.runtime in ("auto", "ipu") else None,
        head_settings=entry.params.head_settings or None,
    )
    started_at = time.monotonic()

    def say_later(text: str) -> None:
        if text.startswith("[") and time.monotonic() - started_at > PATIENCE_SECONDS:
            how.say(text)

    try:
        return run_device_job(job, say=say_later)
    except StagePaused:  # there is no checkpoint to resume from
        raise KeyboardInterrupt from None
    except DeviceJobFailed as error:  # the log is deleted with the folder
        raise DeviceJobFailed(str(error).replace(f" (log: {artifacts.RUNS / 'job.log'})", "")) from None


def _answer_exported(path: Path, rows: Path, output: Path) -> JobResult:
    """Write the logits of a folder of rows with `answer_rows`; return figures as a device job reports them."""
    sequences, tokens, seconds = answer_rows(path, rows, output)
    manifest = read_manifest(rows)
    return JobResult(
        kind="predict",
        runtime="onnxruntime",
        runtime_reason="--backend",
        precision="int8" if path.name == Path(artifacts.EXPORT_FILES["int8"]).name else "fp32",
        steps=0,
        resumed_from_step=0,
        final_loss=None,
        final_losses={},
        sequences=sequences,
        real_tokens=tokens,
        train_seconds=seconds,
        compile_seconds=0.0,
        peak_memory_mb=0.0,
        plan={name: getattr(manifest, name) for name in ("packing_factor", "packing_efficiency")},
    )


def load_ipu_config(model: InferenceModel) -> dict[str, object] | None:
    """Return the ipu_config.json of a model folder (Optimum Graphcore's format), or None to derive everything."""
    path = model.folder / IPU_CONFIG
    if not path.is_file():
        return None
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is not a JSON object ({error}). Correct it, or remove it for a derived one") from None


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
    if released is not None:
        figures: object = released.get("prediction")
    else:
        folder = model.resolve()
        figures = find_object(folder.parent.parent / artifacts.metrics_file(folder.name, "predict"))
    by_split = [figures, *figures.values()] if isinstance(figures, Mapping) else []
    precisions = [record["precision"] for record in by_split if isinstance(record, Mapping) and "precision" in record]
    return next((precision for precision in precisions if precision in PRECISIONS), None)


def read_training_columns(model: Path) -> dict[str, str]:
    """Return role -> name of its column in the training data of a model; a release records roles without names."""
    folder = model.resolve()
    released: Any = find_object(model / PROVENANCE)
    reading: Any = find_object(folder.parent.parent / artifacts.EXAMPLES / folder.name / artifacts.READING)
    try:
        inputs = reading["inputs"] if released is None else released["data"]["reading"]
        return column_names(inputs["train"])
    except (KeyError, TypeError, AttributeError):  # it is not recorded
        return {}


@dataclass(frozen=True)
class Inference(ABC, Generic[E, L, A, P]):
    """Reading of unlabelled files, and conversion of answers to records."""

    scores: Scores[E, L, A, P]
    answer_field: ClassVar[str] = ""
    """Field of a record that is the answer in a .json file of {id: answer}; empty: .json is not supported."""
    has_n_best: ClassVar[bool] = False
    """True if records can contain the n best answers."""
    text_fields: ClassVar[Mapping[str, str]] = {}
    """Column of `examples_schema` with a text -> its field in records that contain the texts."""

    @property
    def entry(self) -> Entry:
        return self.scores.entry

    @property
    @abstractmethod
    def layouts(self) -> Sequence[Columns]:
        """Possible columns of tables without labels."""

    @abstractmethod
    def make_record(self, texts: Sequence[str]) -> dict[str, object]:
        """Return the record of a table, by column, for an example of plain texts.

        Raises:
            ParamsError: this kind reads another number of texts.
        """

    def require_columns(self, path: Path, *, labelled: bool) -> None:
        """Refuse a table without the columns of this task, where other tasks use models of the same class.

        Raises:
            InputError: a column is missing, or the file cannot be read.
        """

    @property
    def plain_hint(self) -> str:
        """End of a refusal of a .txt file that looks like a table, with the option that reads it; empty: none does."""
        return ""

    def detect_lines(self, lines: Sequence[str]) -> str:
        """Return the suffix of the format of lines that are neither JSON nor a table of known columns."""
        return PLAIN

    @property
    @abstractmethod
    def examples_schema(self) -> pa.Schema:
        """Parquet schema of the examples, labels included."""

    @abstractmethod
    def read_unlabelled(self, path: Path, reading: Interpretation) -> Iterator[dict[str, object]]:
        """Yield the examples of a file with the columns of `examples_schema`, placeholder labels, and "id" if there is
        one.

        Raises:
            InputError: invalid examples, with their location.
        """

    @abstractmethod
    def write_labelled(self, path: Path, target: Path, reading: Interpretation) -> None:
        """Check the examples of a file and write them to the Parquet file `target`, as stage `examples` does.

        Raises:
            InputError: invalid examples, with their location.
        """

    @abstractmethod
    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        """Return the schema of a record without its id."""

    @abstractmethod
    def records(self, examples: E, answers: A, n_best: int) -> Iterator[dict[str, object]]:
        """Yield the record of each example, in order."""

    @abstractmethod
    def describe(self, record: Mapping[str, object]) -> str:
        """Return the answer of a record with its score, for people."""


def only_text(texts: Sequence[str]) -> str:
    """Return the text of an example, for kinds that read one; raises the error of `Inference.make_record`."""
    if len(texts) != 1:
        raise ParamsError("this model reads one text: omit --text-pair")
    return texts[0]
