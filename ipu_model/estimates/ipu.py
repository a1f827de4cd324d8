"""What a job on IPUs will need, before anything compiles. Neither torch nor PopTorch is imported."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.estimate import Interval, JobEstimate, Term, TimeEstimate
from ipu_model.estimates.ipu_balance import Proposal, propose
from ipu_model.estimates.ipu_constants import MK2, Generation
from ipu_model.estimates.ipu_memory import ipu_memories
from ipu_model.estimates.ipu_program import IpuProgram
from ipu_model.estimates.ipu_time import call_interval, update_seconds
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.checks import is_half
from ipu_model.ipu.migration import ignore
from ipu_model.ipu.planning import IpuPlan, cuts_table, decoder_factor, plan_ipu
from ipu_model.jobs.job import Job, OptimizerConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

ALONE = PopRunInstances()
"""One process, without PopRun."""


def ipu_plan_of(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> IpuPlan:
    """How the job lies over its IPUs: placement, replicas, accumulation.

    Args:
        instances: As PopRun will be told of them.

    Raises:
        ConfigError: it cannot be; the message has the arithmetic and a setting that works.
    """
    half = job.precision in ("auto", "fp16")
    return plan_ipu(job, model, manifest.packing_factor or 1.0, half, instances, ignore)


def estimate_ipus(
    job: Job,
    model: ModelConfig,
    manifest: Manifest,
    generation: Generation = MK2,
    instances: PopRunInstances = ALONE,
) -> JobEstimate:
    """Memory of each IPU of a replica, and the time of the job.

    Args:
        model: architecture of the job; its own, or that of its init_checkpoint.
        manifest: of its rows; one made up with assumed counts serves before there are any.
        generation: ipu_constants.MK2 or BOW, or of GENERATIONS by name; the memory is the same.
        instances: as PopRun will be told of them.

    Raises:
        ConfigError: the job cannot run on IPUs as it is stated.
        RowsError: the rows do not fill one update.
    """
    plan = ipu_plan_of(job, model, manifest, instances)
    device = f"{plan.placement.ipus_per_replica * plan.replicas} IPUs {generation.name}, "
    device += f"{plan.replicas} replica{'s' if plan.replicas > 1 else ''} of {plan.placement.ipus_per_replica}"
    device += f", {instances.count} instances" if instances.count > 1 else ""
    program = program_of(job, model, plan, RowShape.of(manifest), generation)
    predicting = job.kind == "predict"
    time = _prediction(manifest, plan, program) if predicting else _training(job, manifest, plan, program)
    return JobEstimate(device, ipu_memories(program), time)


def moment_bytes(optimizer: Optional[OptimizerConfig], half: bool) -> float:
    """Bytes of the moments of one weight: the first in its precision, the second in fp32 (options of optimizers.py)."""
    if optimizer is None:
        return 0.0
    first = 2.0 if is_half(optimizer.first_moment_precision, half) else 4.0
    return first if optimizer.name == "sgd" else first + 4.0


def propose_cut(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> Proposal:
    """A faster way to lay a training over the same IPUs, if there is one; see ipu_balance.propose.

    Raises:
        ConfigError: the job cannot run on IPUs as it is stated.
    """
    plan = ipu_plan_of(job, model, manifest, instances)
    return propose(program_of(job, model, plan, RowShape.of(manifest)), instances.count)


def program_of(job: Job, model: ModelConfig, plan: IpuPlan, rows: RowShape, generation: Generation = MK2) -> IpuProgram:
    """What decides the memory and the time of the program of a job."""
    predicting = job.kind == "predict"
    mode = plan.config.inference if predicting else plan.config.training
    sharded = plan.config.replicated_tensor_sharding and plan.replicas > 1
    return dataclasses.replace(
        plan.program(model, rows, generation),
        accumulation=plan.updates_per_call if predicting else plan.accumulation,
        training=not predicting,
        pipelined=plan.pipelined_inference or not predicting,
        matmul_proportion=tuple(mode.matmul_proportion),
        weight_bytes=2.0 if plan.half else 4.0,
        gradient_bytes=2.0 if plan.half_accumulators else 4.0,
        moment_bytes=moment_bytes(job.optimizer, plan.half),
        shards=plan.local_replicas if sharded else 1,
        keeps_every_layer=plan.config.recompute_checkpoint_every_layer,
        table_pieces=plan.table_pieces,
        table_cuts=cuts_table(job),
        decoder_pieces=decoder_factor(mode),
        labels=len(job.labels or ()) or 2,
    )


def _training(job: Job, manifest: Manifest, plan: IpuPlan, program: IpuProgram) -> TimeEstimate:
    updates = make_plan(job, manifest, Choice("ipu", ""), Choice("fp16", ""), plan).updates
    call, per_call = call_interval(program), program.updates_per_call
    seconds = Interval(call.low / per_call, call.likely / per_call, call.high / per_call)
    of_update = update_seconds(program)
    host = call.likely / per_call - of_update.likely
    terms = (*of_update.terms, Term("the host, between calls", host, "device_iterations: more updates in a call"))
    return TimeEstimate(terms, updates, seconds, _rate(program.rows_per_update * program.rows.packing_factor, seconds))


def _prediction(manifest: Manifest, plan: IpuPlan, program: IpuProgram) -> TimeEstimate:
    calls, seconds = math.ceil(manifest.rows / plan.rows_per_call), call_interval(program)
    terms = (Term("one call, forward", seconds.likely, "inference_replication_factor: more replicas"),)
    return TimeEstimate(terms, calls, seconds, _rate(plan.rows_per_call * program.rows.packing_factor, seconds))


def _rate(sequences: float, seconds: Interval) -> Interval:
    return Interval(sequences / seconds.high, sequences / seconds.likely, sequences / seconds.low)
