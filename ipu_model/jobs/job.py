"""The contract between the host's Python and the device's: a job goes in, a result comes out.

Standard library only, Python 3.8 upwards, because both interpreters import it. `job.json` is written
by `tasks/jobs/device_job.py` and read by `python -m ipu_model job.json`, which writes `result.json`
into the run folder. Reading is strict: an unknown, missing or wrongly typed field is refused.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ipu_model import heads
from ipu_model.errors import ConfigError
from ipu_model.files import parse_json
from ipu_model.models.config import ModelConfig
from ipu_model.strict import read_strictly

KINDS = ("pretrain", "finetune", "predict")
RUNTIMES = ("auto", "cpu", "cuda", "ipu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "adam", "lamb", "sgd")
NUMBERS = ("auto", "fp32", "fp16")
INFERENCE = ("auto", "sharded", "pipelined")
COMPILE = ("none", "optimizer")
KEPT = ("last", "best")
SCHEDULES = ("linear", "cosine", "square_root", "constant")


@dataclass(frozen=True)
class BatchGeometry:
    """How one update is cut up. The user states sequences per update; the rest is derived (plan.py)."""

    global_batch_size: int
    """Sequences behind one update, averaged over rows when sequences are packed."""
    micro_batch_size: int = 32
    """Rows per replica in one forward pass; changes speed and memory, not the result (up to rounding)."""
    replication_factor: int = 1
    """Data-parallel copies of the model."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ConfigError(f"geometry.{name}={size} must be at least 1")


@dataclass(frozen=True)
class Division:
    """How the rows of one update are cut up."""

    rows_per_update: int
    micro_batch_size: int
    gradient_accumulation_steps: int


@dataclass(frozen=True)
class OptimizerConfig:
    """One optimizer; biases and LayerNorm parameters get no weight decay and, in LAMB, no trust ratio.

    What params.yaml states has its default there; only what it does not state has one here.
    """

    name: str
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    bias_correction: bool
    max_grad_norm: Optional[float]
    """Global gradient norm above which gradients are scaled down; null switches clipping off."""
    loss_scaling: float
    """Factor on the loss so that fp16 gradients do not vanish; divided out before the update. Only ipu has fp16."""
    first_moment_precision: str
    """Precision of the first moment on ipu: fp32, fp16, or auto, that of the job; the second is always fp32, as
    squares of gradients leave fp16's range."""
    accumulator_precision: str = "auto"
    """The same for the accumulated gradients."""
    momentum: float = 0.9
    """Momentum of sgd; the others have their betas."""

    def __post_init__(self) -> None:
        if not self.loss_scaling > 0:
            raise ConfigError(f"optimizer.loss_scaling={self.loss_scaling} must be above 0; 1 means no scaling")
        _one_of("optimizer.accumulator_precision", self.accumulator_precision, NUMBERS)
        _one_of("optimizer.first_moment_precision", self.first_moment_precision, NUMBERS)


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warm-up, then decay. Exactly one of `steps` and `epochs` is given."""

    steps: Optional[int] = None
    """Optimizer updates. 0 is allowed: the model is saved as it was initialised."""
    epochs: Optional[float] = None
    """Passes over the rows; rounded to whole updates, at least one."""
    warmup_fraction: float = 0.1
    """Share of the updates with rising learning rate."""
    shape: str = "linear"
    """Shape of the decay after it: train/training.py."""

    def __post_init__(self) -> None:
        _one_of("schedule.shape", self.shape, SCHEDULES)
        if (self.steps is None) == (self.epochs is None):
            raise ConfigError(f"state one of steps and epochs: found steps={self.steps}, epochs={self.epochs}")
        if not 0 <= self.warmup_fraction <= 1:
            raise ConfigError(f"warmup_fraction={self.warmup_fraction} must lie between 0 and 1")


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out rows, how often the model is looked at on them, and what follows from it."""

    rows: str
    """Folder of packed rows that training never sees, of the same kind and tokenizer as the training rows."""
    every_updates: int
    """Updates between evaluations; one more follows the last update."""
    max_rows: Optional[int] = None
    """Rows looked at, at most, spread evenly over the folder; null: all."""
    keep: str = "last"
    """Which weights are the result: those of the last update, or the best of all evaluations (Evaluations.result)."""
    patience: Optional[int] = None
    """Training stops after so many evaluations in a row that were not better than the best; null: never."""

    def count(self, updates: int) -> int:
        """Evaluations of a training of so many updates, one of them after the last."""
        return -(-updates // self.every_updates)

    def rows_of(self, rows: int) -> int:
        """How many of so many rows are looked at."""
        return min(rows, self.max_rows or rows)

    def __post_init__(self) -> None:
        if self.every_updates < 1:
            raise ConfigError(
                f"evaluation.every_updates={self.every_updates} must be at least 1; without, leave it out"
            )
        if self.keep not in KEPT:
            raise ConfigError(f"evaluation.keep={self.keep!r} is not one of {', '.join(KEPT)}")
        for name in ("max_rows", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name}={value} must be at least 1, or null")


@dataclass(frozen=True)
class Job:
    """One device job. Paths are absolute or relative to the working directory of the job process."""

    kind: str
    """pretrain, finetune or predict."""
    head: str
    """One of the files of ipu_model/heads."""
    rows: str
    """Folder of packed rows with its manifest.json."""
    output: str
    """Folder that appears, whole, when the job is done: a model (pretrain, finetune) or logits (predict)."""
    run_folder: str
    """Folder for job.json, job.log, history.csv, checkpoints and result.json; may be kept between runs."""
    geometry: BatchGeometry
    runtime: str = "auto"
    precision: str = "auto"
    seed: int = 0
    model: Optional[ModelConfig] = None
    """Architecture to initialise; null when `init_checkpoint` brings its own."""
    init_checkpoint: Optional[str] = None
    """Model folder (config.json, model.safetensors) to start from; a missing head is initialised."""
    optimizer: Optional[OptimizerConfig] = None
    schedule: Optional[ScheduleConfig] = None
    evaluation: Optional[EvaluationConfig] = None
    """Held-out rows to look at while training; null: none."""
    checkpoint_every_minutes: float = 0.0
    """Minutes between checkpoints, counted to the next end of a host call; 0 makes none."""
    checkpoint_every_updates: int = 0
    """Updates between checkpoints, beside those by time; 0 makes none."""
    log_every_updates: int = 10
    ipu_config: Optional[Dict[str, Any]] = None
    """The keys of an ipu_config.json; only the ipu runtime reads it."""
    inference_execution: str = "auto"
    """On ipu: sharded (one IPU of a replica works at a time), pipelined (all do; needs enough
    inference_device_iterations), or auto, pipelined where the config allows it."""
    compile: str = "none"
    """What inductor compiles on a CPU: none, or optimizer (LAMB's update); ipu always compiles everything."""
    recompute: bool = False
    """On cpu and cuda: layers are computed once more on the way back in place of being kept; ipu: see ipu_config."""
    compile_only: bool = False
    """Compile into the cache, on ipu without IPUs, and stop before anything is trained."""
    executables: Optional[str] = None
    """On ipu: folder of programs that travels between hosts. A compile_only job fills it; others take from it, checked,
    what the cache of their host lacks. null: neither."""
    labels: Optional[List[str]] = None
    """Names of the classes in order of their numbers, for a head that has some; one name for the value of a
    regression. null: as init_checkpoint has them, or a head without."""

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, KINDS)
        _one_of("head", self.head, heads.names())
        _one_of("runtime", self.runtime, RUNTIMES)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("inference_execution", self.inference_execution, INFERENCE)
        _one_of("compile", self.compile, COMPILE)
        if self.optimizer is not None:
            _one_of("optimizer.name", self.optimizer.name, OPTIMIZERS)
        if self.model is None and self.init_checkpoint is None:
            raise ConfigError("the job needs either `model` (to initialise) or `init_checkpoint` (to load)")
        if self.kind != "predict" and (self.optimizer is None or self.schedule is None):
            raise ConfigError(f"a {self.kind} job needs `optimizer` and `schedule`")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Job:
        return read_strictly(Job, parse_json(text), "job")


@dataclass(frozen=True)
class JobResult:
    """What a finished job says of itself; `result.json`."""

    kind: str
    runtime: str
    runtime_reason: str
    precision: str
    steps: int
    """Updates behind the saved weights (0 for predict)."""
    resumed_from_step: int
    final_loss: Optional[float]
    """Mean loss of the last logged window; null when no update was made."""
    final_losses: Dict[str, float]
    """The same, by part of the loss (Head.parts)."""
    sequences: int
    """Sequences processed in this run (not before a resume)."""
    real_tokens: int
    """Tokens without padding processed in this run."""
    train_seconds: float
    compile_seconds: float
    peak_memory_mb: float
    """Peak resident memory of the device process, MB of 2**20 bytes."""
    plan: Dict[str, Any] = field(default_factory=dict)
    """The resolved plan (plan.py): rows per update, updates, accumulation, devices."""
    versions: Dict[str, str] = field(default_factory=dict)
    peak_device_memory_mb: Optional[float] = None
    """Peak memory of tensors on the GPU of the first process, or of the fullest IPU where a profile tells it
    (ipu/watch.py), MB of 2**20 bytes; null elsewhere."""
    evaluation: Optional[Dict[str, Any]] = None
    """Figures of the saved weights on held-out rows (Evaluations.summary); null without any."""
    foretold: Optional[Dict[str, Any]] = None
    """What was estimated of the job next to what it took (estimates/record.py); null where nothing was."""
    program: Optional[str] = None
    """On ipu, how the program came to be: built and why, loaded from the cache, or restored from `executables`."""

    @property
    def real_tokens_per_second(self) -> float:
        return self.real_tokens / self.train_seconds if self.train_seconds > 0 else 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> JobResult:
        return read_strictly(JobResult, parse_json(text), "result")


def _one_of(name: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        near: List[str] = difflib.get_close_matches(str(value), list(valid), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(valid)}{hint}")
