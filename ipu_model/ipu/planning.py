"""Plan of an IPU job, resolved and checked before anything is compiled.

Each message of a check has the arithmetic and a setting that works. Imports neither PopTorch nor torch: plans are also
made on hosts that have neither.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List

from ipu_model import heads
from ipu_model.core.errors import LAUNCHER, ROWS, VOCABULARY, ConfigError
from ipu_model.core.files import write_json
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu import placement as placing
from ipu_model.ipu.config import IpuConfig, ModeConfig, read_ipu_config
from ipu_model.ipu.migration import ignore
from ipu_model.ipu.placement import DeviceLayout, Placement
from ipu_model.jobs.job import BatchGeometry, Division, Job, OptimizerConfig
from ipu_model.models import families
from ipu_model.models.config import ModelConfig

CONFIG = "ipu_config.json"
MAX_IPUS_PER_PROCESS = 64
"""IPUs that one process can attach to (PopTorch); more need several instances under poprun."""
PARTIAL_LOSS = "the reported loss covers only the last micro-batch of each replica; with sum, the whole update"


@dataclass(frozen=True)
class IpuPlan:
    """Resolved IPU settings of a job."""

    head: str
    micro_batch_size: int
    config: IpuConfig
    placement: Placement
    """Placement in training, or in inference for a predict job."""
    inference_placement: Placement
    replicas: int
    """Replicas over all processes, in the mode of the job."""
    local_replicas: int
    accumulation: int
    """Micro-batches summed before one update; 1 in a predict job."""
    updates_per_call: int
    """Updates in one host call; in a predict job, which has none, micro-batches of a replica."""
    pipelined_inference: bool
    instances: PopRunInstances
    half: bool
    half_accumulators: bool
    table_pieces: int
    """Parameters that the word table is cut into, in training and evaluation, or in a predict job (device_model.py)."""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update, over all replicas and instances."""
        return self.accumulation * self.replicas

    @property
    def local_ipus(self) -> int:
        """IPUs that this process attaches as one device."""
        return self.placement.ipus_per_replica * self.local_replicas

    @property
    def division(self) -> Division:
        """Division of the rows of one update."""
        return Division(self.micro_batches * self.micro_batch_size, self.micro_batch_size, self.accumulation)

    @property
    def rows_per_call(self) -> int:
        """Rows of one call over all processes, in predict, or in evaluation with for_evaluation()."""
        mode = self.config.inference
        return self.micro_batch_size * mode.device_iterations * mode.replication_factor

    def for_evaluation(self) -> IpuPlan:
        """Return the plan of the program that evaluates held-out rows during this training.

        It has the replicas of training, whose IPUs are attached anyway, and it fills its pipeline, regardless of the
        inference settings in the ipu_config: neither changes its results.
        """
        config, stages = self.config, self.inference_placement.forward_stages
        same = self.inference_placement.ipus_per_replica == self.placement.ipus_per_replica
        config = dataclasses.replace(
            config,
            inference_replication_factor=self.replicas if same else config.inference_replication_factor,
            inference_device_iterations=max(config.inference_device_iterations, stages),
        )
        return dataclasses.replace(self, config=config, pipelined_inference=stages > 1)

    def suggest_batch(self, rows: int, packing_factor: float) -> str:
        """Return advice: a global batch that `rows` rows can fill, or the minimum that the pipeline needs."""
        step, stages = self.micro_batch_size * self.replicas, self.placement.training_stages
        if rows // step >= stages:
            return f"set global_batch_size to at most {round(rows // step * step * packing_factor)}"
        return (
            f"lower micro_batch_size or replication_factor: to fill {stages} pipeline stages an update takes at least "
            f"{stages} x micro_batch_size {self.micro_batch_size} x replication_factor {self.replicas} = "
            f"{stages * step} rows"
        )

    def layout(self, model: ModelConfig, inference: bool) -> DeviceLayout:
        """Return the partition and computation of the device model."""
        mode = self.config.inference if inference else self.config.training
        dropout = (0.0, 0.0) if inference else (model.hidden_dropout, model.attention_dropout)
        return DeviceLayout(
            self.inference_placement if inference else self.placement,
            self.table_pieces,
            decoder_factor(mode) if heads.get_head_spec(self.head).tied else 1,
            self.config.recompute_checkpoint_every_layer and not inference,
            *dropout,
        )

    def save(self, folder: Path) -> None:
        """Write ipu_config.json into a model folder, for Podium and for Optimum Graphcore.

        It includes the derived accumulation, as Optimum would use 1, and leaves out the host's cache folder.
        """
        config = dataclasses.replace(
            self.config, gradient_accumulation_steps=self.accumulation, executable_cache_dir=""
        )
        write_json(folder / CONFIG, config.to_dict())

    def as_dict(self) -> Dict[str, Any]:
        """Return the plan as plain data, for the printed plan, result.json and the fingerprint of checkpoints."""
        return {
            "ipus": self.placement.ipus_per_replica * self.replicas,
            "instances": self.instances.count,
            "placement": self.placement.as_dict(),
            "config": self.config.to_dict(),
        }


def plan_ipu(
    job: Job,
    model: ModelConfig,
    packing_factor: float,
    half: bool,
    instances: PopRunInstances,
    say: Callable[[str], None],
) -> IpuPlan:
    """Resolve the IPU config of a job against its model and its batch.

    `packing_factor` is sequences per row; `half`: weights are fp16. `say` receives a line for every migrated key and
    every choice.

    Raises:
        ConfigError: the settings cannot work; the message has the arithmetic and a setting that works.
    """
    config = read_ipu_config(job.ipu_config or {}, "ipu_config", say)
    predicting = job.kind == "predict"
    mode = config.inference if predicting else config.training
    inference_placement = _place_stages(job.head, model, config, config.inference)
    placement = inference_placement if predicting else _place_stages(job.head, model, config, config.training)
    replicas = _replicas(job, mode)
    local_replicas = instances.replicas(replicas)
    if predicting and instances.count > 1:
        raise ConfigError(
            "a predict job runs as one process: start it without poprun (up to 64 IPUs serve one process)"
        )
    check_ipu_count(placement.ipus_per_replica, replicas, instances.count)
    instances.require_ipus(placement.ipus_per_replica)
    _check_evaluation(job, placement, inference_placement, instances)
    _check_factors(job.head, model, mode)
    if not predicting and job.optimizer is not None:
        check_optimizer(job.optimizer)
    half_accumulators = is_half("auto" if job.optimizer is None else job.optimizer.accumulator_precision, half)
    accumulation = 1
    if not predicting:
        check_loss_scaling(config, half_accumulators)
        accumulation = _accumulation(job, config, replicas, packing_factor)
        if config.output_mode in ("final", "default"):
            say(f"output_mode {config.output_mode}: {PARTIAL_LOSS}")
        check_accumulation(accumulation, placement, job.geometry, replicas, packing_factor)
    report = say if predicting else ignore  # a training job does not report its inference
    pipelined = _pipelined(job, config, inference_placement, report)
    placements, counts = (placement, inference_placement), (replicas, local_replicas, accumulation)
    shape = (job.head, job.geometry.micro_batch_size, config, *placements, *counts, mode.device_iterations)
    pieces = _table_pieces(job, mode, say)
    return IpuPlan(*shape, pipelined, instances, half, half_accumulators, pieces)


def _place_stages(head: str, model: ModelConfig, config: IpuConfig, mode: ModeConfig) -> Placement:
    if config.device_mapping is not None and config.pipeline_stages is not None:
        return placing.place_by_stages(head, model.num_layers, config.pipeline_stages, config.device_mapping)
    pools_in_head = families.get_family(model.family).pools_in_head
    return placing.place_by_layers(head, model.num_layers, mode.layers_per_ipu, mode.ipus_per_replica, pools_in_head)


def _replicas(job: Job, mode: ModeConfig) -> int:
    """Return the replicas from the IPU config; geometry may repeat the number but not contradict it."""
    replicas = job.geometry.replication_factor
    if replicas not in (1, mode.replication_factor):
        raise ConfigError(
            f"geometry.replication_factor={replicas} contradicts replication_factor={mode.replication_factor} of the "
            "IPU config: set it only in the IPU config"
        )
    return mode.replication_factor


def decoder_factor(mode: ModeConfig) -> int:
    """Return the pieces of the tied decoder.

    embedding_serialization_factor also sets them, as in Optimum's pre-training: there the tied table is looked up
    whole, and only the product with it is cut.
    """
    if mode.projection_serialization_factor != 1:
        return mode.projection_serialization_factor
    return mode.embedding_serialization_factor


def _check_evaluation(job: Job, training: Placement, inference: Placement, instances: PopRunInstances) -> None:
    """Require equal IPUs per replica under PopDist, which uses the replicas of training for every program."""
    ipus, needed = inference.ipus_per_replica, training.ipus_per_replica
    if job.evaluation is not None and instances.count > 1 and ipus != needed:
        raise ConfigError(
            f"{instances.count} instances evaluate held-out rows on the {needed} IPUs of a replica of training, but "
            f"inference has {ipus} IPUs per replica: use {needed} entries in inference_layers_per_ipu, or set "
            "evaluate_every_updates of this job to null"
        )


def _check_factors(head: str, model: ModelConfig, mode: ModeConfig) -> None:
    tied = heads.get_head_spec(head).tied
    factor = decoder_factor(mode) if tied else mode.embedding_serialization_factor
    cuts = "projection" if tied and mode.projection_serialization_factor != 1 else "embedding"
    check_serialization(model.vocab_size, factor, cuts)


def can_cut_table(job: Job) -> bool:
    """Return whether embedding_serialization_factor has an effect: on a tied decoder, or on the table without LAMB
    (device_model.py)."""
    by_lamb = job.kind != "predict" and job.optimizer is not None and job.optimizer.name == "lamb"
    return heads.get_head_spec(job.head).tied or not by_lamb


def _table_pieces(job: Job, mode: ModeConfig, say: Callable[[str], None]) -> int:
    """Return the pieces of the word table: 1 with a tied decoder, and with LAMB."""
    pieces = 1 if heads.get_head_spec(job.head).tied else mode.embedding_serialization_factor
    if pieces > 1 and not can_cut_table(job):
        say(f"embedding_serialization_factor {pieces}: lamb uses 1, as its trust ratio is for the whole word table")
        return 1
    return pieces


def _accumulation(job: Job, config: IpuConfig, replicas: int, packing_factor: float) -> int:
    """Derive the accumulation from the global batch; a configured one must agree."""
    geometry = job.geometry
    derived = derive_accumulation(geometry.global_batch_size, geometry.micro_batch_size, replicas, packing_factor)
    configured = config.gradient_accumulation_steps
    if configured is not None and configured != derived:
        rows = geometry.micro_batch_size * replicas * configured
        raise ConfigError(
            f"gradient_accumulation_steps={configured} of the IPU config contradicts the global batch: "
            f"global_batch_size {geometry.global_batch_size} / packing factor {packing_factor:.2f} / "
            f"(micro_batch_size {geometry.micro_batch_size} x replication_factor {replicas}) = {derived}. Remove "
            f"gradient_accumulation_steps (it is derived), or set global_batch_size to "
            f"{round(rows * packing_factor)}",
            "" if packing_factor == 1.0 else ROWS,
        )
    return derived


def _pipelined(job: Job, config: IpuConfig, placement: Placement, say: Callable[[str], None]) -> bool:
    """Return whether the IPUs of a replica work in parallel in inference.

    Raises:
        ConfigError: a call of pipelined inference has fewer micro-batches than forward stages.
    """
    iterations, needed = config.inference.device_iterations, placement.forward_stages
    if job.inference_execution == "sharded" or (needed == 1 and job.inference_execution != "pipelined"):
        return False
    if iterations >= needed:
        return True
    if job.inference_execution == "pipelined":
        raise ConfigError(
            f"inference_device_iterations={iterations} cannot fill the pipeline: the blocks visit the IPUs "
            f"{placement.path}, which are {needed} stages. Set inference_device_iterations to at least {needed}, or "
            "inference_execution to sharded"
        )
    filled = f"{needed} stages; with {needed} or more, all IPUs work in parallel"
    say(f"inference is sharded, one IPU at a time: inference_device_iterations {iterations} cannot fill {filled}")
    return False


def derive_accumulation(global_batch_size: int, micro_batch_size: int, replicas: int, packing_factor: float) -> int:
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
    accumulation: int, placement: Placement, geometry: BatchGeometry, replicas: int, packing_factor: float
) -> None:
    """Require enough micro-batches in one update to fill the pipeline: at least 2F - 1 (1 without a pipeline).

    Raises:
        ConfigError: there are fewer; depends on ROWS where less densely packed rows would be enough.
    """
    needed, rows = placement.training_stages, geometry.micro_batch_size * replicas
    if accumulation >= needed:
        return
    packed_less = packing_factor != 1.0 and geometry.global_batch_size / rows + 0.5 >= needed
    packed = f" x {packing_factor:.2f} sequences in a row" if packing_factor != 1.0 else ""
    raise ConfigError(
        f"gradient_accumulation_steps={accumulation} cannot fill the pipeline: the blocks visit the IPUs "
        f"{placement.path}, {placement.forward_stages} forward stages, 2x{placement.forward_stages}-1 = {needed} in "
        f"training. Use at least {needed}: global_batch_size {math.ceil(needed * rows * packing_factor)} ({needed} x "
        f"micro_batch_size {geometry.micro_batch_size} x {replicas} replicas{packed}); or lower micro_batch_size or "
        "replication_factor, or use fewer IPUs per replica",
        ROWS if packed_less else "",
    )


def check_serialization(vocab_size: int, factor: int, what: str) -> None:
    """Require that a table, `embedding` or `projection`, can be cut into `factor` parts of equal size.

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
        VOCABULARY,
    )


def check_ipu_count(ipus_per_replica: int, replicas: int, instances: int) -> None:
    """Require a number of IPUs that can be attached: powers of two, at most 64 for each process (poprun's instance).

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


def check_loss_scaling(config: IpuConfig, half_accumulators: bool) -> None:
    """Require fp16 gradients for automatic loss scaling: PopART finds the scale from their histogram.

    Raises:
        ConfigError: they accumulate in fp32.
    """
    if config.auto_loss_scaling and not half_accumulators:
        raise ConfigError(
            "auto_loss_scaling=true watches gradients that accumulate in fp16, but here they accumulate in fp32: set "
            "optimizer.accumulator_precision to fp16 (precision fp16 implies it), or auto_loss_scaling to false and "
            "optimizer.loss_scaling to a number"
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
