"""The seam between the loop and a device. One step is one optimizer update on every runtime."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, Iterable, Optional, Protocol, Sequence, Union

import numpy as np
from torch import Tensor, nn

from ipu_model.errors import ConfigError
from ipu_model.job import Job, ModelConfig, OptimizerConfig
from ipu_model.plan import Choice, Plan
from ipu_model.progress import Emit
from ipu_model.rows.format import Manifest
from ipu_model.rows.reading import Batch

if TYPE_CHECKING:
    from ipu_model.distributed.ranks import Instances
    from ipu_model.ipu.planning import IpuPlan
    from ipu_model.runtimes.compiling import Compiler


@dataclass(frozen=True)
class StepMetrics:
    """What one update says of itself."""

    loss: float
    """Mean over the real labels of the update."""
    parts: Dict[str, float]
    """By part of the loss (losses.LOSS_PARTS)."""
    sequences: int
    real_tokens: int
    gradient_norm: Optional[float]
    """Before clipping; None where the device does not tell."""
    loss_scaling: Optional[float] = None
    """Of fp16 gradients; None where there is none."""


@dataclass(frozen=True)
class AnswerLogits:
    """Logits of one feature, over its own tokens: [n_tokens] fp32 each."""

    feature_id: int
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class ClassLogits:
    """Logits of one sequence: [C] fp32, C = 1 for a regression."""

    feature_id: int
    logits: np.ndarray


Logits = Union[AnswerLogits, ClassLogits]


class Runtime(Protocol):
    """One model on one device (or several copies of it that train as one).

    Weights travel under Hugging Face names and in fp32, whatever the device keeps; nothing outside
    shows how the model was cut.
    """

    program: Optional[str]
    """After compile, how a program that is kept came to be (JobResult.program); None where none is."""

    @property
    def reads_ahead(self) -> int:
        """Batches to prepare in another thread while one is computed; 0: each when it is needed."""

    def prepare(self, batch: Batch) -> Batch:
        """What can be done to a batch before its turn, on any thread; train_step and predict take either."""

    def compile(self, example: Batch) -> None:
        """Make ready for batches of this shape; the weights stay as they are.

        Raises:
            ConfigError: the batch does not fit the plan.
        """

    def train_step(self, batch: Batch, learning_rate: float) -> StepMetrics:
        """One host call over all rows of the batch: one update, or on IPU `plan.updates_per_call` of them.

        The figures are those of the update, or means over the updates of the call.

        Raises:
            UpdateGivenUp: the job is to stop, and the update would have taken long; all is as before it.
        """

    def predict(self, batch: Batch) -> Sequence[Logits]:
        """Logits of every feature or sequence in the batch, of the kind that the head gives; dropout off."""

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """evaluation.SUMS over labelled rows, dropout off; neither weights nor generators change.

        Every process of a training must call it with the same batches, and gets the same sums.
        """

    def state_dict(self) -> Dict[str, Tensor]:
        """Weights by Hugging Face name, on the host."""

    def load_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Set the weights."""

    def optimizer_state(self) -> Dict[str, Tensor]:
        """Moments and step counts by name, on the host."""

    def load_optimizer_state(self, state: Dict[str, Tensor]) -> None:
        """Set what optimizer_state gave."""

    def rng_state(self) -> Dict[str, Tensor]:
        """Generators of the device, by name."""

    def load_rng_state(self, state: Dict[str, Tensor]) -> None:
        """Set what rng_state gave."""

    def versions(self) -> Dict[str, str]:
        """Of what the device adds to torch; for result.json."""

    def peak_device_memory_mb(self) -> Optional[float]:
        """Peak of the device's own memory, MB of 2**20 bytes; None where it does not tell."""

    def close(self) -> None:
        """Let go of the device."""


class UpdateGivenUp(Exception):
    """An update was broken off between two micro-batches; weights, moments and generators are as before it."""


class Immediate:
    """Of runtimes that do everything in its turn, and have no memory to tell of that torch knows."""

    reads_ahead = 0
    program: Optional[str] = None

    def prepare(self, batch: Batch) -> Batch:
        """The batch itself."""
        return batch

    def peak_device_memory_mb(self) -> Optional[float]:
        """Nobody tells."""
        return None


def choose_runtime(requested: str) -> Choice:
    """The runtime of a job and why.

    Raises:
        ConfigError: a runtime that this version, or this host, does not have.
    """
    if requested == "auto":
        return _choose()
    if requested == "ipu":
        from ipu_model.runtimes.ipu import load_poptorch

        load_poptorch()  # what is missing is said before rows and weights are read
    if requested == "cuda":
        from ipu_model.runtimes.cuda import require_gpu

        require_gpu()
    return Choice(requested, "as asked")


def _choose() -> Choice:
    """IPUs, else a GPU, else the CPU."""
    from ipu_model.ipu.sdk import find_runtime
    from ipu_model.runtimes.cuda import find_gpu
    from ipu_model.runtimes.ipu import load_poptorch

    found, reason = find_runtime(os.environ, importlib.util.find_spec, load_poptorch)
    if found:
        return Choice("ipu", f"auto: {reason}")
    gpu, why = find_gpu()
    return Choice("cuda" if gpu else "cpu", f"auto: {reason}; {why}")


def choose_precision(requested: str, runtime: str) -> Choice:
    """The precision of a job and why; `auto` stays where a probe has to tell.

    Raises:
        ConfigError: a precision that the runtime does not compute.
    """
    if runtime == "ipu":
        if requested == "bf16":
            raise ConfigError("IPUs compute in fp16 or fp32: set device.precision to fp16, fp32 or auto")
        return Choice("fp16", "auto: what IPUs are built for") if requested == "auto" else Choice(requested, "as asked")
    if requested == "fp16":  # slow on CPUs; GPUs would need loss scaling, which bf16 does without
        raise ConfigError(f"the {runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    if requested != "auto":
        return Choice(requested, "as asked")
    if runtime == "cuda":
        from ipu_model.runtimes.cuda import fastest_precision

        return fastest_precision()
    return Choice("auto", "measured once it is known what is computed")  # auto_precision.py


def plan_device(
    job: Job, manifest: Manifest, config: ModelConfig, runtime: str, precision: str, instances: Instances, emit: Emit
) -> Optional[IpuPlan]:
    """What only the device of the job has to plan; None on CPU and CUDA.

    Raises:
        ConfigError: the job does not fit the device; the message has the arithmetic.
    """
    from ipu_model.distributed.poprun import PopRunInstances

    poprun = instances if isinstance(instances, PopRunInstances) else PopRunInstances()
    if runtime != "ipu":
        if job.compile_only and job.compile == "none":
            raise ConfigError(f"compile_only: the {runtime} runtime compiles nothing; set device.compile to all, too")
        if job.compile != "none":
            from ipu_model.runtimes.compiling import check_compiler

            check_compiler(runtime, os.environ)
        if poprun.count > 1:
            raise ConfigError(f"poprun starts jobs on IPUs: start the {runtime} runtime with torchrun, or alone")
        if job.kind == "predict" and instances.count > 1:
            raise ConfigError("a predict job runs as one process: start it without torchrun")
        return None
    if instances.count != poprun.count:
        raise ConfigError("torchrun starts jobs on CPUs and GPUs: start the ipu runtime with poprun, or alone")
    from ipu_model.ipu.planning import plan_ipu
    from ipu_model.runtimes.ipu import check_host

    half = precision == "fp16"
    plan = plan_ipu(job, config, manifest.packing_factor, half, poprun, lambda text: emit("message", text=text))
    check_host(plan, job.compile_only, emit)
    return plan


def make_runtime(
    plan: Plan, job: Job, model: nn.Module, config: ModelConfig, device: Optional[IpuPlan], emit: Emit,
    instances: Optional[Instances] = None, hurried: Callable[[], bool] = bool,
) -> Runtime:  # fmt: skip
    """Put a model with its weights on the device that the plan names.

    Args:
        job: Head, optimizer (None for predict) and seed.
        model: From modeling.build_model, initialised or loaded.
        config: Its architecture.
        device: From plan_device.
        instances: This process among those that train together; alone by default.
        hurried: Whether an update under way should be given up (StopRequest.hurried).

    Raises:
        ConfigError: there are fewer GPUs than processes.
        InstanceLost: the other processes did not come.
    """
    if device is not None:
        from ipu_model.runtimes.ipu import IpuRuntime, load_poptorch

        return IpuRuntime(load_poptorch(), job, device, model, config, emit)
    from ipu_model.distributed.ranks import Instances
    from ipu_model.runtimes.device import Device
    from ipu_model.runtimes.torch_device import TorchRuntime

    instances = instances or Instances()
    where: Optional[Device] = None
    if plan.runtime == "cuda":
        from ipu_model.runtimes.cuda import CudaDevice

        where = CudaDevice(instances.local_index, plan.precision, config.num_heads, config.hidden_size)
        emit("message", text=f"attention: {where.reason}")
    instances.join(plan.runtime)
    optimizer: Optional[OptimizerConfig] = job.optimizer if job.kind != "predict" else None
    compiler: Optional[Compiler] = None
    if job.compile != "none":
        from ipu_model.runtimes.compiling import Compiler

        compiler = Compiler(job.compile, os.environ, lambda text: emit("message", text=text))
    return TorchRuntime(
        model, job.head, plan.micro_batch_size, plan.precision, optimizer, job.seed, where, instances, compiler,
        hurried,
    )  # fmt: skip
