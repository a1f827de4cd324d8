"""Everything between a job as stated and a model that can start: checks, weights, fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from torch import nn

from ipu_model import heads
from ipu_model.errors import CheckpointError, ConfigError, RowsError
from ipu_model.jobs.fingerprint import flat
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Plan
from ipu_model.models.architecture import differences
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelFolder, missing_parameters, read_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.progress import Emit
from ipu_model.rows.format import MANIFEST, read_manifest
from ipu_model.rows.reading import RowFolder
from ipu_model.train.checkpoint import Fingerprint

OF_THE_FOLDER = (
    "run_folder",
    "output",
    "log_every_updates",
    "checkpoint_every_minutes",
    "checkpoint_every_updates",
    "recompute",
)  # change no weights
OF_COMPILING = ("compile_only", "executables", "inference_execution")  # train nothing
REPLACED = ("rows", "init_checkpoint", "model", "runtime", "precision", "ipu_config")  # what they stand for enters
NOT_IN_FINGERPRINT = (*OF_THE_FOLDER, *OF_COMPILING, *REPLACED, "evaluation")
REASONS = ("runtime_reason", "precision_reason")
OF_PREDICTING = ("plan.rows_per_call", "plan.device.config.inference_")
NOT_OF_THE_PLAN = (
    *OF_PREDICTING,
    "plan.device.config.executable_cache_dir",  # of the host
    "plan.device.config.gradient_accumulation_steps",  # stated or derived: the plan itself has it
    # pieces of the word table: memory; checkpoints hold it whole
    "plan.device.config.embedding_serialization_factor",
    "plan.device.config.serialized_embedding_splits_per_ipu",
)
"""Beginnings of names."""


def check_job(job: Job) -> None:
    """Cross-field checks, and the places to write to, before anything is read.

    Raises:
        ConfigError: the fields do not go together.
        RowsError: there are no held-out rows where the job says.
        OSError: the output cannot be written where it should go.
    """
    head, pretrains = heads.of(job.head), job.kind == "pretrain"
    if head.pretrains != pretrains:
        valid = " or ".join(name for name in heads.names() if heads.of(name).pretrains == pretrains)
        raise ConfigError(f"a {job.kind} job has the head {valid}, found {job.head}: change job.head")
    if job.labels is not None and not (head.labelled and job.labels):
        raise ConfigError(f"job.labels={job.labels}: {job.head} has {'one or more' if head.labelled else 'none'}")
    if job.kind == "predict" and job.init_checkpoint is None and not job.compile_only:
        raise ConfigError("a predict job needs init_checkpoint: the model folder to predict with")
    if job.log_every_updates < 1:
        raise ConfigError(f"log_every_updates={job.log_every_updates} must be at least 1")
    if job.checkpoint_every_updates < 0:
        raise ConfigError(f"checkpoint_every_updates={job.checkpoint_every_updates} must be at least 0 (0: none)")
    if not 0 <= job.checkpoint_every_minutes < math.inf:
        raise ConfigError(f"checkpoint_every_minutes={job.checkpoint_every_minutes} must be at least 0 (0: none)")
    if job.evaluation is not None:
        read_manifest(Path(job.evaluation.rows))  # a missing one is told now, and not when training begins
    for folder in (Path(job.output).absolute().parent, Path(job.run_folder).absolute()):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(str(folder), os.W_OK):
            raise PermissionError(13, "cannot be written", str(folder))


def read_inputs(job: Job) -> Tuple[Job, Optional[ModelFolder], ModelConfig, RowFolder]:
    """Read what a job starts from.

    Returns:
        The job with the names of its classes, the model that its weights come from, its architecture, and its rows.

    Raises:
        CheckpointError, ConfigError, RowsError: something is damaged, or they do not go together.
    """
    base = starting_model(job)
    config, job = architecture(job, base), with_labels(job, base)
    rows = open_rows(job, job.rows, config)
    check_tokenizer(rows, base)
    return job, base, config, rows


def starting_model(job: Job) -> Optional[ModelFolder]:
    """The model that the job starts from, as one with its head and, to train, its classes; None where it draws its
    weights.

    Raises:
        CheckpointError: it cannot be read.
    """
    if job.init_checkpoint is None:
        return None
    head = heads.of(job.head)
    base = read_model(Path(job.init_checkpoint)).for_head(head)
    return base if job.kind == "predict" or job.labels is None else base.for_labels(head, job.labels)


def open_rows(job: Job, folder: str, config: ModelConfig) -> RowFolder:
    """Rows of the kind that the head of the job is trained on.

    Raises:
        RowsError, ConfigError: they are damaged, or not for this model.
    """
    labels = len(job.labels or ())
    return RowFolder(Path(folder), heads.of(job.head).row_kind(labels), config, labels)


def architecture(job: Job, base: Optional[ModelFolder]) -> ModelConfig:
    """The architecture of the job: its own, or that of init_checkpoint; with both they must agree.

    Dropout and initializer_range are no part of the weights: there the job's own values win. The number of token types
    is that of the weights: rows with others are refused.

    Raises:
        CheckpointError: they disagree; the message lists where.
    """
    if job.model is None:
        assert base is not None  # job.py requires one of the two
        return base.config
    if base is not None:
        job_model = dataclasses.replace(job.model, type_vocab_size=base.config.type_vocab_size)
        differ = differences(job_model, base.config)
        if differ:
            raise CheckpointError(
                f"the model of the job is not the one in {base.path}: {'; '.join(differ)}. Change `model` to match, "
                "or leave it out to take the folder's"
            )
        return job_model
    return job.model


def with_labels(job: Job, base: Optional[ModelFolder]) -> Job:
    """The job with the names of its classes: its own, else those of init_checkpoint; none for heads without.

    Raises:
        ConfigError: a head that has classes, and neither states any.
        CheckpointError: those that predict state others than the model.
    """
    if not heads.of(job.head).labelled:
        return job
    found = list(base.labels) if base is not None else []
    if job.labels is None and not found:
        raise ConfigError(f"a {job.head} head needs job.labels, as init_checkpoint has none")
    if job.labels is not None and found and found != job.labels:
        assert base is not None
        raise CheckpointError(
            f"the classes of {base.path} are {', '.join(found)}, those of the job {', '.join(job.labels)}: start from "
            "a model without that head, or leave job.labels out"
        )
    return dataclasses.replace(job, labels=job.labels or found)


def check_tokenizer(rows: RowFolder, base: Optional[ModelFolder]) -> None:
    """Rows must come from the tokenizer the weights were trained with, where the folder says which.

    Raises:
        RowsError: they do not.
    """
    if base is None or base.tokenizer_sha256 in (None, rows.manifest.tokenizer_sha256):
        return
    raise RowsError(
        f"the rows of {rows.folder} were made with the tokenizer {rows.manifest.tokenizer_sha256}, the weights of "
        f"{base.path} were trained with {base.tokenizer_sha256}: make the rows again with that tokenizer "
        "(tokenizer.source), or set init_checkpoint to a model of this one"
    )


def make_model(job: Job, config: ModelConfig, base: Optional[ModelFolder], emit: Emit) -> nn.Module:
    """The job's model on the host, with loaded or freshly drawn weights.

    Raises:
        CheckpointError: init_checkpoint lacks more than a head, or lacks the head of a predict job.
    """
    model = build_model(job.head, config, len(job.labels or ()))
    if base is None:
        initialise(model, config, job.seed)
        emit("message", text=f"model initialised from seed {job.seed}")
        return model
    expected = model.state_dict()
    missing = missing_parameters(base, expected)
    if missing and job.kind == "predict":
        raise CheckpointError(f"{base.path} lacks {', '.join(missing)}: fine-tune it before predicting with it")
    initialise(model, config, job.seed, only=missing)
    loaded = {name: base.state.get(name, weight) for name, weight in expected.items()}
    model.load_state_dict(loaded)
    if base.note:
        emit("message", text=f"note: {base.note}")
    if missing:
        emit("message", text=f"{base.path} lacks {', '.join(missing)}: initialised from seed {job.seed}")
    return model


def make_fingerprint(
    job: Job, plan: Plan, config: ModelConfig, rows: RowFolder, base: Optional[ModelFolder]
) -> Fingerprint:
    """Everything that decides the weights of a run, by dotted name."""
    stated = {k: v for k, v in dataclasses.asdict(job).items() if k not in NOT_IN_FINGERPRINT}
    planned = {k: v for k, v in plan.as_dict().items() if k not in REASONS}
    values: Dict[str, Any] = {
        **stated,
        "model": dataclasses.asdict(config),
        "plan": planned,
        "rows": {"manifest_sha256": rows.sha256, "content_sha256": content_digest(rows)},
        "init_checkpoint": {"weights_sha256": base.sha256 if base is not None else None},
    }
    if job.evaluation is not None:  # it decides which weights are kept, and when training stops
        manifest = (Path(job.evaluation.rows) / MANIFEST).read_bytes()
        sha256 = hashlib.sha256(manifest).hexdigest()
        values["evaluation"] = {**dataclasses.asdict(job.evaluation), "rows": {"manifest_sha256": sha256}}
    return {name: value for name, value in flat(values).items() if not name.startswith(NOT_OF_THE_PLAN)}


def content_digest(rows: RowFolder, blocks: int = 64, block_bytes: int = 1 << 16) -> str:
    """SHA-256 over the sizes of the row files and evenly spaced blocks of each (all of a file up to 4 MiB).

    Bounded, because hashing hundreds of gigabytes at every start would cost more than it protects from:
    another text moves what follows it, so that the blocks differ.
    """
    digest = hashlib.sha256()
    for name in sorted(rows.manifest.files):
        path = rows.folder / name
        size = path.stat().st_size
        digest.update(f"{name}:{size};".encode())
        with path.open("rb") as stream:
            for index in range(blocks):
                stream.seek(max(0, size - block_bytes) * index // (blocks - 1))
                digest.update(stream.read(block_bytes))
    return digest.hexdigest()
