"""Choice of the runtime and precision of a job, and construction of the runtime."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import nn

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.core.progress import Emit
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.jobs.job import Job, OptimizerConfig
from ipu_model.jobs.plan import Choice, JobPlan
from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from ipu_model.runtimes.runtime import Runtime

if TYPE_CHECKING:
    from ipu_model.ipu.planning import IpuPlan


def choose_runtime(requested: str) -> Choice:
    """Choose the runtime of a job; the result includes the reason.

    Raises:
        ConfigError: this version or this host does not have the requested runtime.
    """
    if requested == "auto":
        from ipu_model.ipu.sdk import detect_ipus
        from ipu_model.runtimes.cuda import find_gpu
        from ipu_model.runtimes.ipu import load_poptorch

        has_ipus, reason = detect_ipus(os.environ, importlib.util.find_spec, load_poptorch)
        if has_ipus:
            return Choice("ipu", f"auto: {reason}")
        gpu, why = find_gpu()
        return Choice("cuda" if gpu else "cpu", f"auto: {reason}; {why}")
    if requested == "ipu":
        from ipu_model.runtimes.ipu import load_poptorch

        load_poptorch()  # report missing packages before reading rows and weights
    if requested == "cuda":
        from ipu_model.runtimes.cuda import find_gpu

        gpu, why = find_gpu()
        if not gpu:
            raise ConfigError(
                f"runtime cuda needs a GPU and a torch built for CUDA: {why}. Install such a torch into the Python "
                "of PODIUM_DEVICE_PYTHON, or set device.runtime to cpu or auto"
            )
    return Choice(requested, "as requested")


def choose_precision(requested: str, runtime: str) -> Choice:
    """Choose the precision of a job, with the reason; `auto` remains if it must be measured.

    Raises:
        ConfigError: the runtime does not support the precision.
    """
    if runtime == "ipu":
        if requested == "bf16":
            raise ConfigError("IPUs compute in fp16 or fp32: set device.precision to fp16, fp32 or auto")
        fastest = Choice("fp16", "auto: the fastest precision of IPUs")
        return fastest if requested == "auto" else Choice(requested, "as requested")
    if requested == "fp16":  # slow on CPUs; on GPUs it needs loss scaling, which bf16 does not
        raise ConfigError(f"the {runtime} runtime has no fp16: set device.precision to fp32, bf16 or auto")
    if requested != "auto":
        return Choice(requested, "as requested")
    if runtime == "cuda":
        from ipu_model.runtimes.cuda import fastest_precision

        return fastest_precision()
    return Choice("auto", "measured before the job starts")  # auto_precision.py


def plan_compilation(requested: str, runtime: str) -> Choice:
    """Choose what inductor compiles; `auto` remains if it must be measured.

    Raises:
        ConfigError: the runtime cannot compile it.
    """
    if requested == "model" and runtime != "cuda":
        why = "IPUs always compile the whole model" if runtime == "ipu" else "on a CPU it is not faster"
        raise ConfigError(f"compile: model is for the cuda runtime ({why}): set device.compile to auto or none")
    if requested in ("auto", "model") and runtime == "cuda":
        return Choice("auto", "measured before the job starts")  # auto_compile.py
    return Choice("none", "auto: for cuda only") if requested == "auto" else Choice(requested, "as requested")


def plan_device(
    job: Job, manifest: Manifest, config: ModelConfig, runtime: str, precision: str, instances: Instances, emit: Emit
) -> Optional[IpuPlan]:
    """Make the device-specific plan of a job; None on CPU and CUDA.

    Raises:
        ConfigError: the job does not fit the device; the message shows the calculation.
    """
    poprun = instances if isinstance(instances, PopRunInstances) else PopRunInstances()
    if runtime != "ipu":
        if job.compile_only and job.compile != "optimizer":
            raise ConfigError(f"compile_only: the {runtime} runtime does not compile; set device.compile to optimizer")
        if job.compile == "optimizer":
            from ipu_model.runtimes.compilation import check_compiler

            check_compiler(runtime, os.environ)
        if poprun.count > 1:
            raise ConfigError(f"poprun is for IPUs only: start the {runtime} runtime with torchrun or as one process")
        if job.kind == "predict" and instances.count > 1:
            raise ConfigError("a predict job runs as one process: start it without torchrun")
        return None
    if not hasattr(heads.get_head(job.head), "on_ipu"):
        raise ConfigError(f"a {job.head} head does not run on IPUs: set device.runtime to cpu or cuda")
    if instances.count != poprun.count:
        raise ConfigError("torchrun is for CPUs and GPUs only: start the ipu runtime with poprun or as one process")
    if job.recompute:
        raise ConfigError(
            "device.recompute applies to cpu and cuda only: set it to false. On IPUs, "
            "recompute_checkpoint_every_layer of the ipu_config.json controls recomputation"
        )
    from ipu_model.estimates.ipu import describe_stops
    from ipu_model.ipu.planning import plan_ipu
    from ipu_model.ipu.sdk import check_hardware
    from ipu_model.runtimes.ipu import load_poptorch, read_versions

    def say(text: str) -> None:
        emit("message", text=text)

    plan = plan_ipu(job, config, manifest.packing_factor, precision == "fp16", poprun, say)
    poptorch = load_poptorch()
    versions = read_versions(poptorch, say)
    say(f"PopTorch {versions['poptorch']}: {check_hardware(poptorch, plan.local_ipus, job.compile_only)}")
    say(plan.placement.table(plan.replicas))
    if job.kind != "predict":
        say(describe_stops(job, config, plan, manifest))
    return plan


def make_runtime(
    plan: JobPlan,
    job: Job,
    model: nn.Module,
    config: ModelConfig,
    device: Optional[IpuPlan],
    emit: Emit,
    instances: Optional[Instances] = None,
    deadline_near: Callable[[], bool] = bool,
) -> Runtime:
    """Make the runtime of a plan: the model with its weights on its device; `deadline_near` aborts the current update.

    Raises:
        ConfigError: there are fewer GPUs than processes.
        InstanceLost: the other processes did not connect.
    """
    if device is not None:
        from ipu_model.runtimes.ipu import IpuRuntime, load_poptorch

        return IpuRuntime(load_poptorch(), job, device, model, config, emit)
    from ipu_model.runtimes.torch_device import Device, TorchRuntime

    instances = instances or Instances()
    where: Optional[Device] = None
    encoder: Any = getattr(model, "bert", model)
    encoder.recompute = job.recompute
    if plan.runtime == "cuda":
        from ipu_model.runtimes.cuda import CudaDevice

        sizes, windows = (config.num_heads, config.hidden_size), families.get_family(config.family).rotary
        where = CudaDevice(instances.local_index, plan.precision, *sizes, windows)
        if encoder is not model:  # transformers' modules have their own
            emit("message", text=f"attention: {where.reason}")
    instances.join(plan.runtime)
    optimizer: Optional[OptimizerConfig] = job.optimizer if job.kind != "predict" else None
    compiling: Optional[Callable[[Optional[torch.optim.Optimizer]], None]] = None
    if plan.compile == "model":
        from ipu_model.runtimes.compiled_layers import compile_model

        compile_model(model)
    if job.compile == "optimizer":
        from ipu_model.runtimes.compilation import compile_optimizer

        compiling = partial(compile_optimizer, environ=os.environ, say=lambda text: emit("message", text=text))
    computing = (plan.micro_batch_size, plan.precision, optimizer, job.seed, where)
    further = (instances, compiling, deadline_near, job.distillation, job.head_settings)
    return TorchRuntime(model, job.head, *computing, *further)
