"""Preparation of a job: checks, inputs, initial weights and fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from torch import nn

from ipu_model import heads
from ipu_model.core.errors import CheckpointError, ConfigError, RowsError
from ipu_model.core.files import flatten_keys
from ipu_model.core.progress import Emit
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import JobPlan
from ipu_model.models import families
from ipu_model.models.architecture import CONFIG, adopt_weights, architecture_differences, read_config
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import find_thetas
from ipu_model.models.model_folder import ModelFolder, missing_parameters, read_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.models.rotary import rotated_by
from ipu_model.models.tensors import UndrawnWeights
from ipu_model.rows.format import MANIFEST, get_columns, read_manifest
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train.checkpoint import Fingerprint
from ipu_model.train.evaluation import Original

NO_EFFECT = (
    *("run_folder", "output", "log_every_updates", "checkpoint_every_minutes", "checkpoint_every_updates"),
    "original",
)
COMPILATION = ("recompute", "compile_only", "executables", "inference_execution")
"""Fields of a job that do not change the weights, as those above."""
RESOLVED = ("rows", "init_checkpoint", "model", "runtime", "precision", "ipu_config", "evaluation")
"""Fields whose content or resolved value is in the fingerprint instead."""
REASONS = ("runtime_reason", "precision_reason", "compile_reason")
EXCLUDED_PREFIXES = (
    "plan.rows_per_call",  # prediction only
    "plan.device.config.inference_",  # prediction only
    "plan.device.config.executable_cache_dir",  # differs between hosts
    "plan.device.config.gradient_accumulation_steps",  # set or derived: the plan itself has it
    # pieces of the word table affect memory only; checkpoints hold the whole table
    "plan.device.config.embedding_serialization_factor",
    "plan.device.config.serialized_embedding_splits_per_ipu",
)


def check_job(job: Job) -> None:
    """Check fields against each other, and the output folders, before reading any input.

    Raises:
        ConfigError: fields contradict each other.
        RowsError: the folder of held-out rows is missing or unreadable.
        OSError: an output folder is not writable.
    """
    head, pretrains = heads.get_head(job.head), job.kind == "pretrain"
    if head.pretrains != pretrains:
        valid = " or ".join(name for name in heads.list_heads() if heads.get_head(name).pretrains == pretrains)
        raise ConfigError(f"a {job.kind} job has the head {valid}, found {job.head}: change job.head")
    if job.labels is not None and not (head.labelled and job.labels):
        raise ConfigError(f"job.labels={job.labels}: {job.head} has {'one or more' if head.labelled else 'none'}")
    if job.class_weights is not None and len(job.class_weights) != len(job.labels or ()):
        raise ConfigError(f"job.class_weights has {len(job.class_weights)} weights for {len(job.labels or ())} labels")
    if job.kind == "predict" and job.init_checkpoint is None and not job.compile_only:
        raise ConfigError("a predict job needs init_checkpoint: the model folder to predict with")
    if job.log_every_updates < 1:
        raise ConfigError(f"log_every_updates={job.log_every_updates} must be at least 1")
    if job.checkpoint_every_updates < 0:
        raise ConfigError(f"checkpoint_every_updates={job.checkpoint_every_updates} must be at least 0 (0: none)")
    if not 0 <= job.checkpoint_every_minutes < math.inf:
        raise ConfigError(f"checkpoint_every_minutes={job.checkpoint_every_minutes} must be at least 0 (0: none)")
    if job.original is not None and (job.evaluation is None or not pretrains):
        raise ConfigError("job.original needs a pretrain job with `evaluation`: set it to null")
    if job.evaluation is not None:
        read_manifest(Path(job.evaluation.rows))  # report a missing folder now, not when training starts
    for folder in (Path(job.output).absolute().parent, Path(job.run_folder).absolute()):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(str(folder), os.W_OK):
            raise PermissionError(13, "not writable", str(folder))


def read_inputs(job: Job, runtime: str) -> Tuple[Job, Optional[ModelFolder], ModelConfig, RowFolder]:
    """Read the inputs of a job, once a model of its family can run here.

    Return the job with its class names, the base model (None: random weights), the architecture, and the rows.

    Raises:
        CheckpointError, ConfigError, RowsError: an input is damaged, or the inputs do not match.
    """
    described = job.model or read_config(Path(str(job.init_checkpoint)) / CONFIG)[0]
    families.get_family(described.family).check(runtime, job.kind == "pretrain")
    base, config = None, described
    if job.init_checkpoint is not None:
        head = heads.get_head(job.head)
        base = read_model(Path(job.init_checkpoint)).for_head(head)
        base = base if job.layers is None else base.for_layers(job.layers)
        base = base if job.kind == "predict" or job.labels is None else base.for_labels(head, job.labels)
        # The job's dropout and initializer_range win: they do not affect the shape of the weights.
        config = base.config if job.model is None else adopt_weights(job.model, base.config)
        if differ := architecture_differences(config, base.config):
            raise CheckpointError(
                f"the job's model differs from the one in {base.path}: {'; '.join(differ)}. Change `model` to match, "
                "or omit it to use the folder's"
            )
    if job.global_rope_theta is not None:
        config = families.get_family(config.family).with_global_theta(config, job.global_rope_theta)
    job = resolve_labels(job, base)
    rows = open_rows(job, job.rows, config, job.seed if job.masking == "dynamic" else None)
    if base is not None and base.tokenizer_sha256 not in (None, rows.manifest.tokenizer_sha256):
        raise RowsError(
            f"the rows of {rows.folder} were made with the tokenizer {rows.manifest.tokenizer_sha256}, the weights of "
            f"{base.path} were trained with {base.tokenizer_sha256}: make the rows again with that tokenizer "
            "(tokenizer.source), or set init_checkpoint to a model trained with the tokenizer of the rows"
        )
    return job, base, config, rows


def open_rows(job: Job, folder: str, config: ModelConfig, masking_seed: Optional[int] = None) -> RowFolder:
    """Open rows of the kind that the job's head is trained on; `masking_seed` is that of dynamic masking, if any."""
    labels = len(job.labels or ())
    kinds, row_kind = heads.get_head(job.head).row_kinds(labels), read_manifest(Path(folder)).kind
    kind = row_kind if row_kind in kinds else kinds[0]
    if job.class_weights is not None and "class_labels" not in {x.name for x in get_columns(kind, config.vocab_size)}:
        raise ConfigError(f"job.class_weights needs rows with one class per sequence, found {kind}: set it to null")
    rows = RowFolder(Path(folder), kind, config, labels, masking_seed, job.class_weights)
    if job.distillation is not None and folder == job.rows and rows.manifest.teacher is None:
        raise RowsError(f"{folder} has no logits of a teacher, required by job.distillation: run the stage teacher")
    return rows


def resolve_labels(job: Job, base: Optional[ModelFolder]) -> Job:
    """Return the job with its class names: its own, else those of init_checkpoint; unchanged for heads without classes.

    Raises:
        ConfigError: the head has classes, but neither the job nor init_checkpoint names them.
        CheckpointError: the job names other classes than the model.
    """
    if not heads.get_head(job.head).labelled:
        return job
    labels = job.labels or (list(base.labels) if base is not None else [])
    if not labels:
        raise ConfigError(f"a {job.head} head needs job.labels: init_checkpoint has none")
    if base is not None and base.labels and list(base.labels) != labels:
        raise CheckpointError(
            f"the classes of {base.path} are {', '.join(base.labels)}, those of the job {', '.join(labels)}: start "
            "from a model without that head, or omit job.labels"
        )
    return dataclasses.replace(job, labels=labels)


def make_model(job: Job, config: ModelConfig, base: Optional[ModelFolder], emit: Emit) -> nn.Module:
    """Build the job's model on the host, with loaded or newly initialised weights.

    Raises:
        CheckpointError: init_checkpoint lacks more than a head, or lacks the head of a predict job.
    """
    with UndrawnWeights():
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
    if job.kind == "pretrain" and base.path == Path(str(job.init_checkpoint)):
        if heads.get_head(job.head).is_new(missing):
            emit("note", text="the model has no masked language modelling head: that head starts from random weights")
        if unused := sorted(name for name in base.state if name not in expected):
            emit("note", text=f"these weights of the model are not pre-trained and are left out: {', '.join(unused)}")
    return model


def read_original(job: Job, config: ModelConfig, model: nn.Module, runtime: str, emit: Emit) -> Optional[Original]:
    """Read the model to compare a pre-training with; None without one.

    `model`, that of the job, rotates positions as the original while that is evaluated. A program of IPUs has one
    rotation.

    Raises:
        CheckpointError: the folder is damaged, or of another architecture.
    """
    if job.original is None:
        return None
    head = heads.get_head(job.head)
    folder = read_model(Path(job.original)).for_head(head)
    with UndrawnWeights():
        expected = build_model(job.head, config).state_dict()
    is_new = head.is_new(missing_parameters(folder, expected))
    state = None if job.original == job.init_checkpoint else make_model(job, config, folder, emit).state_dict()
    original, new = (find_thetas(source) for source in (folder.config, config))
    if original != new and runtime == "ipu":
        emit("note", text=f"not compared with {job.original}: programs of IPUs have one base of the rotation")
        return None
    return Original(is_new, state, functools.partial(rotated_by, model, original))


def make_fingerprint(
    job: Job, plan: JobPlan, config: ModelConfig, rows: RowFolder, base: Optional[ModelFolder]
) -> Fingerprint:
    """Return everything that determines the weights of a run, by dotted name."""
    fields = {k: v for k, v in job.fields.items() if k not in (*NO_EFFECT, *COMPILATION, *RESOLVED)}
    planned = {k: v for k, v in dataclasses.asdict(plan).items() if k not in REASONS and v is not None}
    values: Dict[str, Any] = {
        **fields,
        "model": dataclasses.asdict(config),
        "plan": planned,
        "rows": {"manifest_sha256": rows.sha256, "content_sha256": hash_rows(rows)},
        "init_checkpoint": {"weights_sha256": base.sha256 if base is not None else None},
    }
    if job.evaluation is not None:  # it selects the resulting weights and may stop the training
        manifest = (Path(job.evaluation.rows) / MANIFEST).read_bytes()
        sha256 = hashlib.sha256(manifest).hexdigest()
        values["evaluation"] = {**dataclasses.asdict(job.evaluation), "rows": {"manifest_sha256": sha256}}
    return {name: value for name, value in flatten_keys(values).items() if not name.startswith(EXCLUDED_PREFIXES)}


def hash_rows(rows: RowFolder, blocks: int = 64, block_bytes: int = 1 << 16) -> str:
    """Return a SHA-256 over the sizes of the row files and evenly spaced blocks of each (files up to 4 MiB in full).

    The number of blocks is bounded, because hashing hundreds of gigabytes at every start would take too long. Blocks
    suffice: a changed text shifts everything after it.
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
