"""Contract between the host's Python and the device's Python: the files job.json and result.json.

Standard library only, Python 3.8 upwards, because both interpreters import it. `tasks/jobs/device_job.py` writes
`job.json`. `python -m ipu_model job.json` reads it and writes `result.json` into the run folder. Reading is strict: an
unknown, missing or wrongly typed field is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.core.files import parse_json
from ipu_model.core.schedules import SCHEDULES, find_decay_problem
from ipu_model.core.strict import nearest, read_strictly
from ipu_model.models.config import Distillation, ModelConfig

KINDS = ("pretrain", "finetune", "predict")
RUNTIMES = ("auto", "cpu", "cuda", "ipu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "adam", "lamb", "sgd")
STATE_PRECISIONS = ("auto", "fp32", "fp16")
INFERENCE_MODES = ("auto", "sharded", "pipelined")
COMPILE_MODES = ("auto", "none", "optimizer", "model")
KEEP_CHOICES = ("last", "best")
MASKINGS = ("static", "dynamic")
LATER = (
    *("layers", "distillation", "head_settings", "decay_fraction", "global_rope_theta", "original"),
    *("first_batch_size", "batch_warmup_fraction"),
)
"""Fields of a job and of its parts that earlier versions do not have."""


@dataclass(frozen=True)
class BatchGeometry:
    """Batch sizes of an update. You set the sequences per update; the rest is derived (plan.py)."""

    global_batch_size: int
    """Sequences per update; an average over rows if sequences are packed."""
    micro_batch_size: int = 32
    """Rows per replica in one forward pass; affects speed and memory, not the result (up to rounding)."""
    replication_factor: int = 1
    first_batch_size: Optional[int] = None
    """Sequences of the first update, from which they grow (ScheduleConfig.batch_warmup_fraction); null: all alike."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size is not None and size < 1:
                raise ConfigError(f"geometry.{name}={size} must be at least 1")


@dataclass(frozen=True)
class Division:
    """Split of the rows of an update into micro-batches."""

    rows_per_update: int
    micro_batch_size: int
    gradient_accumulation_steps: int


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer settings; biases and LayerNorm parameters get no weight decay and, in LAMB, no trust ratio.

    Only fields that are not in params.yaml have a default here.
    """

    name: str
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    bias_correction: bool
    max_grad_norm: Optional[float]
    """Maximum global gradient norm; null turns clipping off."""
    loss_scaling: float
    """Factor on the loss so that fp16 gradients do not underflow; divided out before the update. Only ipu has fp16."""
    first_moment_precision: str
    """Precision of the first moment on ipu: fp32, fp16 or auto (that of the job). The second moment is always fp32,
    because squares of gradients leave fp16's range."""
    accumulator_precision: str = "auto"
    """Precision of the accumulated gradients on ipu, with the same values."""
    momentum: float = 0.9
    """Momentum of sgd; the other optimizers use betas."""

    def __post_init__(self) -> None:
        if not self.loss_scaling > 0:
            raise ConfigError(f"optimizer.loss_scaling={self.loss_scaling} must be above 0; 1 means no scaling")
        _require_one_of("optimizer.accumulator_precision", self.accumulator_precision, STATE_PRECISIONS)
        _require_one_of("optimizer.first_moment_precision", self.first_moment_precision, STATE_PRECISIONS)


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warm-up, then decay. Exactly one of `steps` and `epochs` is set."""

    steps: Optional[int] = None
    """Optimizer updates. 0 is allowed: the initial model is saved."""
    epochs: Optional[float] = None
    """Passes over the rows; rounded to whole updates, at least one."""
    warmup_fraction: float = 0.1
    """Share of the updates with rising learning rate."""
    shape: str = "linear"
    """Shape of the decay after the warm-up (train/training.py)."""
    decay_fraction: Optional[float] = None
    """Share of the updates, at the end, during which a shape of schedules.LATE_DECAYS decays; null for the others."""
    batch_warmup_fraction: Optional[float] = None
    """Share of the updates, at the start, during which the batch grows to its full size."""

    def __post_init__(self) -> None:
        _require_one_of("schedule.shape", self.shape, SCHEDULES)
        if (problem := find_decay_problem(self.shape, self.warmup_fraction, self.decay_fraction)) is not None:
            raise ConfigError(f"schedule.{problem}")
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(f"set either steps or epochs: found steps={self.steps}, epochs={self.epochs}")
        if not 0 <= self.warmup_fraction <= 1:
            raise ConfigError(f"warmup_fraction={self.warmup_fraction} must be between 0 and 1")


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on held-out rows: interval, selection of the resulting weights, and early stopping."""

    rows: str
    """Folder of packed rows not used for training, of the same kind and tokenizer as the training rows."""
    every_updates: float
    """Updates between evaluations, or their share of all updates if below 1; one more evaluation follows the last
    update."""
    max_rows: Optional[int] = None
    """Maximum number of evaluated rows, spread evenly over the folder; null: all rows."""
    keep: str = "last"
    """Resulting weights: `last`, those of the last update, or `best`, those of the best evaluation
    (Evaluator.result)."""
    patience: Optional[int] = None
    """Number of consecutive evaluations without improvement after which training stops; null: never."""

    def count_evaluations(self, updates: int) -> int:
        """Return the number of evaluations in a training of `updates` updates, including the one after the last."""
        return -(-updates // self.interval(updates))

    def interval(self, updates: int) -> int:
        """Return the updates between evaluations in a training of `updates` updates."""
        return max(1, math.ceil(updates * self.every_updates)) if self.every_updates < 1 else int(self.every_updates)

    def count_rows(self, rows: int) -> int:
        """Return how many of `rows` rows are evaluated."""
        return min(rows, self.max_rows or rows)

    def __post_init__(self) -> None:
        if self.every_updates <= 0:
            raise ConfigError(
                f"evaluation.every_updates={self.every_updates} must be above 0; to turn evaluation off, omit it"
            )
        if self.every_updates >= 1:  # JSON is read as a float, and checkpoints compare
            object.__setattr__(self, "every_updates", int(self.every_updates))
        _require_one_of("evaluation.keep", self.keep, KEEP_CHOICES)
        for name, value in (("max_rows", self.max_rows), ("patience", self.patience)):
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name}={value} must be at least 1, or null")


@dataclass(frozen=True)
class Job:
    """A device job. Paths are absolute, or relative to the working directory of the job process."""

    kind: str
    """pretrain, finetune or predict."""
    head: str
    """Name of a file of ipu_model/heads."""
    rows: str
    """Folder of packed rows with its manifest.json."""
    output: str
    """Output of the job, written atomically at its end: a model folder (pretrain, finetune) or logits (predict)."""
    run_folder: str
    """Folder for job.json, job.log, history.csv, checkpoints and result.json; may persist between runs."""
    geometry: BatchGeometry
    runtime: str = "auto"
    precision: str = "auto"
    seed: int = 0
    model: Optional[ModelConfig] = None
    """Architecture to initialise; null to use that of `init_checkpoint`."""
    init_checkpoint: Optional[str] = None
    """Model folder (config.json, model.safetensors) to start from; a missing head is initialised."""
    optimizer: Optional[OptimizerConfig] = None
    schedule: Optional[ScheduleConfig] = None
    evaluation: Optional[EvaluationConfig] = None
    """Evaluation on held-out rows during training; null: none."""
    checkpoint_every_minutes: float = 0.0
    """Minutes between checkpoints, rounded up to the end of a host call; 0: none."""
    checkpoint_every_updates: int = 0
    """Updates between checkpoints, in addition to those by time; 0: none."""
    log_every_updates: int = 10
    ipu_config: Optional[Dict[str, Any]] = None
    """Keys of an ipu_config.json; only the ipu runtime uses them."""
    inference_execution: str = "auto"
    """On ipu: sharded (one IPU of a replica computes at a time), pipelined (all compute; needs enough
    inference_device_iterations), or auto (pipelined if the config allows it)."""
    compile: str = "auto"
    """Compilation with inductor: none, optimizer (LAMB's update, on cpu), model (the layers, on cuda), or auto: the
    faster of none and model on cuda, else none. ipu always compiles the whole model."""
    recompute: bool = False
    """On cpu and cuda: recompute layers in the backward pass instead of storing activations; ipu: see ipu_config."""
    compile_only: bool = False
    """Compile into the cache (on ipu without IPUs) and stop before training."""
    executables: Optional[str] = None
    """On ipu: folder of programs that can be copied between hosts. A compile_only job fills it; other jobs load
    verified programs from it that their host's cache lacks. null: no such folder."""
    masking: str = "static"
    """Masked tokens of a pretrain job: static, as in the rows, or dynamic, others in every epoch (held-out rows stay
    as they are)."""
    labels: Optional[List[str]] = None
    """Class names in order of their numbers, for a head with classes; one name for a regression. null: those of
    init_checkpoint, or a head without classes."""
    class_weights: Optional[List[float]] = None
    """Weight of each class in the loss of training, a weighted mean; null: all 1."""
    layers: Optional[int] = None
    """Layers of the model, copied evenly from those of init_checkpoint; null: all of them."""
    distillation: Optional[Distillation] = None
    """Weight of the teacher whose logits are in the rows of a finetune job; null: no teacher."""

    global_rope_theta: Optional[float] = None
    """Base of the rotation of positions in the layers with global attention, of a family that rotates them; null: that
    of the model."""
    head_settings: Optional[Dict[str, Any]] = None
    """Settings of the head (Head.configure); null: its defaults."""

    original: Optional[str] = None
    """Model folder that a pretrain job with `evaluation` continues: evaluated before the first update, for comparison.
    It is init_checkpoint, or that of an earlier phase. null: nothing is compared."""

    def __post_init__(self) -> None:
        _require_one_of("kind", self.kind, KINDS)
        _require_one_of("head", self.head, heads.list_heads())
        _require_one_of("runtime", self.runtime, RUNTIMES)
        _require_one_of("precision", self.precision, PRECISIONS)
        _require_one_of("inference_execution", self.inference_execution, INFERENCE_MODES)
        _require_one_of("compile", self.compile, COMPILE_MODES)
        _require_one_of("masking", self.masking, MASKINGS[: 1 + (self.kind == "pretrain")])
        if self.optimizer is not None:
            _require_one_of("optimizer.name", self.optimizer.name, OPTIMIZERS)
        if self.model is None and self.init_checkpoint is None:
            raise ConfigError("the job needs `model` (to initialise) or `init_checkpoint` (to load): set one of them")
        if self.kind != "predict" and (self.optimizer is None or self.schedule is None):
            raise ConfigError(f"a {self.kind} job needs `optimizer` and `schedule`")

    @property
    def fields(self) -> Dict[str, Any]:
        """Plain values by name. A field of LATER is left out if it is null, so that hashes of older jobs stay."""
        return dataclasses.asdict(
            self, dict_factory=lambda pairs: {name: x for name, x in pairs if x is not None or name not in LATER}
        )

    def to_json(self) -> str:
        return json.dumps(self.fields, indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Job:
        return read_strictly(Job, parse_json(text), "job")


@dataclass(frozen=True)
class JobResult:
    """Result of a finished job; `result.json`."""

    kind: str
    runtime: str
    runtime_reason: str
    precision: str
    steps: int
    """Updates that the saved weights have had (0 for predict)."""
    resumed_from_step: int
    final_loss: Optional[float]
    """Mean loss of the last logged window; null without updates."""
    final_losses: Dict[str, float]
    """Mean of each part of the loss in that window (Head.parts)."""
    sequences: int
    """Sequences processed by this process (not before a resume)."""
    real_tokens: int
    """Tokens without padding processed by this process."""
    train_seconds: float
    compile_seconds: float
    peak_memory_mb: float
    """Peak resident memory of the device process, MB of 2**20 bytes."""
    plan: Dict[str, Any] = field(default_factory=dict)
    """The resolved plan (plan.py): rows per update, updates, accumulation, devices."""
    versions: Dict[str, str] = field(default_factory=dict)
    peak_device_memory_mb: Optional[float] = None
    """Peak memory of tensors on the GPU of the first process, or of the fullest IPU if a profile reports it
    (ipu/watch.py), MB of 2**20 bytes; null otherwise."""
    evaluation: Optional[Dict[str, Any]] = None
    """Metrics of the saved weights on held-out rows (Evaluator.summary); null without evaluation."""
    energy: Optional[Dict[str, Any]] = None
    """Hardware and energy of a training (EnergyMeter.result); null for other jobs."""
    foretold: Optional[Dict[str, Any]] = None
    """Estimated and measured time and memory of the job (estimates/job.py); null without an estimate."""
    program: Optional[str] = None
    """On ipu, the origin of the program: built (and why), loaded from the cache, or restored from `executables`."""

    @property
    def real_tokens_per_second(self) -> float:
        return self.real_tokens / self.train_seconds if self.train_seconds > 0 else 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> JobResult:
        return read_strictly(JobResult, parse_json(text), "result")


def _require_one_of(name: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(valid)}{nearest(str(value), valid, '')}")
