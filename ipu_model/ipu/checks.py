"""Checks of an IPU job before anything is compiled; each message has the arithmetic and a setting that works.

Imports neither PopTorch nor torch: plans are also made on hosts that have neither.
"""

from __future__ import annotations

import math
from typing import List, Optional

from ipu_model.errors import LAUNCHER, ROWS, ConfigError
from ipu_model.ipu.placement import Placement
from ipu_model.jobs.job import OptimizerConfig

MAX_IPUS_PER_PROCESS = 64
"""IPUs that one process can attach to (PopTorch); more need several instances under poprun."""


def derive_accumulation(
    global_batch_size: int, micro_batch_size: int, replicas: int, packing_factor: float = 1.0
) -> int:
    """Return the micro-batches accumulated on each replica: global_batch_size / (micro_batch_size x replicas).

    With one sequence in a row (packing_factor 1) this must be a whole number. A packed row holds
    `packing_factor` sequences on average, so there the nearest whole number, at least 1, is taken.

    Raises:
        ConfigError: the division leaves a remainder; the message names the nearest global batches.
    """
    rows = micro_batch_size * replicas
    if packing_factor != 1.0:
        return max(1, math.floor(global_batch_size / packing_factor / rows + 0.5))
    accumulation, rest = divmod(global_batch_size, rows)
    if rest:
        near = [rows * count for count in (accumulation, accumulation + 1) if count]
        raise ConfigError(
            f"global_batch_size={global_batch_size} cannot be cut into micro-batches: micro_batch_size "
            f"{micro_batch_size} x {replicas} replicas = {rows} rows, {global_batch_size} / {rows} leaves {rest}. "
            f"Set global_batch_size to {' or '.join(map(str, near))}, or change micro_batch_size"
        )
    return accumulation


def check_accumulation(
    accumulation: int,
    placement: Placement,
    micro_batch_size: Optional[int] = None,
    replicas: int = 1,
    packing_factor: float = 1.0,
    global_batch_size: int = 0,
) -> None:
    """Require enough micro-batches in one update to fill the pipeline: at least 2F - 1 (1 without a pipeline).

    With `micro_batch_size` the message also names the smallest global batch that works.

    Args:
        global_batch_size: Sequences of one update, to tell whether rows of one sequence each would fill the pipeline.

    Raises:
        ConfigError: there are fewer; depends on ROWS where less densely packed rows would be enough.
    """
    needed = placement.training_stages
    if accumulation >= needed:
        return
    unpacked = global_batch_size / ((micro_batch_size or 1) * replicas) + 0.5
    packed_less = packing_factor != 1.0 and unpacked >= needed
    path = "-".join(str(ipu) for ipu, _ in placement.stages)
    works = f"Use at least {needed}"
    if micro_batch_size is not None:
        batch = math.ceil(needed * micro_batch_size * replicas * packing_factor)
        works += f": global_batch_size {batch} ({needed} x micro_batch_size {micro_batch_size} x {replicas} replicas"
        works += f" x {packing_factor:.2f} sequences in a row)" if packing_factor != 1.0 else ")"
    raise ConfigError(
        f"gradient_accumulation_steps={accumulation} cannot fill the pipeline: the blocks visit the IPUs {path}, "
        f"{placement.forward_stages} forward stages, 2x{placement.forward_stages}-1 = {needed} in training. {works}; "
        "or lower micro_batch_size or replication_factor, or use fewer IPUs per replica",
        ROWS if packed_less else "",
    )


def check_inference_iterations(device_iterations: int, placement: Placement) -> None:
    """Require a micro-batch for every forward stage in each call of pipelined inference.

    Raises:
        ConfigError: there are fewer.
    """
    needed = placement.forward_stages
    if device_iterations < needed:
        path = "-".join(str(ipu) for ipu, _ in placement.stages)
        raise ConfigError(
            f"inference_device_iterations={device_iterations} cannot fill the pipeline: the blocks visit the IPUs "
            f"{path}, which are {needed} stages. Set inference_device_iterations to at least {needed}, or "
            "inference_execution to sharded"
        )


def check_serialization(vocab_size: int, factor: int, what: str = "embedding") -> None:
    """Require that a table can be cut into `factor` parts of equal size.

    Args:
        vocab_size: entries of the table.
        factor: number of parts; 1 does not cut the table.
        what: `embedding` or `projection`, the table that the factor belongs to.

    Raises:
        ConfigError: the factor does not divide the vocabulary; the message names the nearest that do.
    """
    rest = vocab_size % factor
    if not rest:
        return
    divisors = [part for part in range(1, vocab_size + 1) if vocab_size % part == 0]
    near = [max(part for part in divisors if part < factor), *[part for part in divisors if part > factor][:1]]
    raise ConfigError(
        f"{what}_serialization_factor={factor} must divide the vocabulary of {vocab_size} entries: {vocab_size} / "
        f"{factor} leaves {rest}. Use {' or '.join(map(str, near))}",
        ROWS,
    )


def check_ipu_count(ipus_per_replica: int, replicas: int, instances: int = 1) -> None:
    """Require a number of IPUs that can be attached: powers of two, at most 64 for each process.

    Args:
        ipus_per_replica: IPUs of one copy of the model.
        replicas: copies of the model over all instances.
        instances: processes that share the replicas (poprun).

    Raises:
        ConfigError: the number is not a power of two, or is too large; the message names the nearest that work.
    """
    if replicas % instances:
        raise ConfigError(
            f"{replicas} replicas cannot be shared by {instances} instances: {replicas} / {instances} leaves "
            f"{replicas % instances}. Start a number of replicas that is a multiple of the instances",
            LAUNCHER,
        )
    if not _is_power_of_two(ipus_per_replica):
        raise ConfigError(
            f"ipus_per_replica={ipus_per_replica} is not a power of two: IPUs are attached in 1, 2, 4, 8 ... Use "
            f"{_nearest_powers(ipus_per_replica)} entries in layers_per_ipu"
        )
    local = replicas // instances
    total = ipus_per_replica * local
    share = f" of each of {instances} instances" if instances > 1 else ""
    if not _is_power_of_two(total):
        raise ConfigError(
            f"{ipus_per_replica} IPUs x {local} replicas{share} = {total} IPUs is not a power of two. Set "
            f"replication_factor to {_nearest_powers(local, instances)}",
            LAUNCHER,
        )
    if total > MAX_IPUS_PER_PROCESS:
        most = MAX_IPUS_PER_PROCESS // ipus_per_replica
        ways = [f"set replication_factor to at most {most * instances}"] if most else []
        ways.append(f"start {total // MAX_IPUS_PER_PROCESS * instances} instances under poprun")
        raise ConfigError(
            f"{ipus_per_replica} IPUs x {local} replicas{share} = {total} IPUs, but a process attaches at most "
            f"{MAX_IPUS_PER_PROCESS}: {', or '.join(ways)}",
            LAUNCHER,
        )


def check_optimizer(config: OptimizerConfig) -> None:
    """Reject settings that an IPU would ignore or apply differently from torch. Does not need PopTorch.

    Raises:
        ConfigError: lists all such settings.
    """
    # Sources: popart_compiler/source/CompilerImpl.cpp (getPopartOptimizer) of PopTorch, and
    # willow/src/transforms/clipweightgradientsbynorm.cpp and willow/src/patterns/*decompose.cpp of PopART.
    problems: List[str] = []
    if not config.bias_correction and config.name in ("adam", "adamw"):
        # PopTorch accepts bias_correction=False for AdamW but passes AdamMode::Adam to PopART, which corrects.
        problems.append(
            f"optimizer.bias_correction=false with {config.name}: the IPU applies bias correction anyway. "
            "Set bias_correction to true, or use lamb, which supports false"
        )
    if config.max_grad_norm is not None:
        problem = _clipping_problem(config)
        if problem:
            problems.append(f"optimizer.max_grad_norm={config.max_grad_norm:g} with {config.name}: {problem}")
    if problems:
        raise ConfigError("; ".join(problems))


def _clipping_problem(config: OptimizerConfig) -> str:
    """Return why PopART would not clip the gradient as torch does; empty where it would."""
    if config.name == "lamb":
        return "PopTorch's LAMB has no clipping. Set max_grad_norm to null (the trust ratio bounds the update)"
    if config.name == "sgd":
        # PopART clips the updater of the variable: the velocity, or the sum of micro-batches times loss scaling.
        return "PopART clips the scaled velocity, not the gradient. Set max_grad_norm to null, or use adamw"
    if config.name == "adam" and config.weight_decay:
        # The L2 penalty is added before the accumulator that clipping looks for.
        return "PopART clips the gradient with the decay in it. Set weight_decay to 0, or use adamw"
    return ""


def is_half(precision: str, half: bool) -> bool:
    """Return whether accumulators or moments of `precision` are fp16; auto follows the weights (`half`)."""
    return half if precision == "auto" else precision == "fp16"


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _nearest_powers(number: int, times: int = 1) -> str:
    """Return the powers of two around `number`, which is not one, each multiplied by `times`."""
    below = 1 << (number.bit_length() - 1)
    powers: List[int] = [below * times, 2 * below * times]
    return " or ".join(map(str, powers))
