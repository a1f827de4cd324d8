"""Memory and time of a job on IPUs, before anything compiles. Imports neither torch nor PopTorch."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.estimate import Interval, JobEstimate, Term, TimeEstimate
from ipu_model.estimates.ipu_constants import MK2, SWAP_SECONDS, Generation
from ipu_model.estimates.ipu_memory import estimate_memories
from ipu_model.estimates.ipu_time import IpuProgram, call_interval, update_seconds
from ipu_model.estimates.layout_search import Proposal, find_faster_layout
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.migration import ignore
from ipu_model.ipu.planning import IpuPlan, can_cut_table, decoder_factor, is_half, plan_ipu
from ipu_model.jobs.job import Job, OptimizerConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

ALONE = PopRunInstances()
"""One process, without PopRun."""
WORTHWHILE_SHARE = 0.01
"""Share of a training's time for its evaluations: if they take more, a message says how to reduce them."""


def plan_for_estimate(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> IpuPlan:
    """Return the plan of a job on IPUs: placement, replicas, accumulation.

    Args:
        instances: Instances under PopRun.

    Raises:
        ConfigError: the settings cannot work; the message has the arithmetic and a setting that works.
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
    """Estimate the memory of each IPU of a replica, and the time of the job.

    Args:
        model: architecture of the job, or of its init_checkpoint.
        manifest: manifest of its rows, or one with assumed counts before the rows exist.
        generation: ipu_constants.MK2 or BOW, or one of GENERATIONS by name; the memory is the same.
        instances: instances under PopRun.

    Raises:
        ConfigError: the job cannot run on IPUs with these settings.
        RowsError: the rows do not fill one update.
    """
    plan = plan_for_estimate(job, model, manifest, instances)
    device = f"{plan.placement.ipus_per_replica * plan.replicas} IPUs {generation.name}, "
    device += f"{plan.replicas} replica{'s' if plan.replicas > 1 else ''} of {plan.placement.ipus_per_replica}"
    device += f", {instances.count} instances" if instances.count > 1 else ""
    program = build_program(job, model, plan, RowShape.from_manifest(manifest), generation)
    predicting = job.kind == "predict"
    time = _prediction(manifest, plan, program) if predicting else _training(job, manifest, plan, program)
    return JobEstimate(device, estimate_memories(program), time)


def moment_bytes(optimizer: Optional[OptimizerConfig], half: bool) -> float:
    """Return the bytes of one weight's moments: the first in its precision, the second in fp32 (optimizers.py)."""
    if optimizer is None:
        return 0.0
    first = 2.0 if is_half(optimizer.first_moment_precision, half) else 4.0
    return first if optimizer.name == "sgd" else first + 4.0


def propose_layout(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> Proposal:
    """Propose a faster layout of a training on the same IPUs, if there is one; see layout_search.find_faster_layout.

    Raises:
        ConfigError: the job cannot run on IPUs with these settings.
    """
    plan = plan_for_estimate(job, model, manifest, instances)
    return find_faster_layout(build_program(job, model, plan, RowShape.from_manifest(manifest)), instances.count)


def describe_evaluations(
    job: Job, model: ModelConfig, plan: IpuPlan, manifest: Manifest, rows: int, updates: int
) -> str:
    """Describe the cost of the evaluations of a training.

    Args:
        rows: held-out rows there are.
        updates: updates of the training.
    """
    assert job.evaluation is not None
    rows, count = job.evaluation.count_rows(rows), job.evaluation.count_evaluations(updates)
    evaluation, training = plan.for_evaluation(), build_program(job, model, plan, RowShape.from_manifest(manifest))
    calls, iterations = math.ceil(rows / evaluation.rows_per_call), evaluation.config.inference_device_iterations
    forward = dataclasses.replace(
        training, placement=plan.inference_placement, accumulation=iterations, training=False, pipelined=True
    )
    each = SWAP_SECONDS + calls * call_interval(forward).likely
    training_seconds = updates / plan.updates_per_call * call_interval(training).likely
    share = count * each / training_seconds
    cost = (
        f"held-out rows are evaluated {count} times on the IPUs, between updates: about {each:.0f} s each, of which "
        f"{SWAP_SECONDS:.0f} s are assumed for changing programs, {share:.1%} of the training"
    )
    if share <= WORTHWHILE_SHARE:
        return cost
    fits = int(WORTHWHILE_SHARE * training_seconds / each)
    enough = f"evaluate at most {fits} times (evaluate_every_updates)" if fits else "set evaluate_every_updates to null"
    return f"{cost}; to stay under {WORTHWHILE_SHARE:.0%}, {enough}"


def describe_stops(job: Job, model: ModelConfig, plan: IpuPlan, manifest: Manifest) -> str:
    """Describe how a stop or the loss of the host affects a training: the host cannot react during a call."""
    seconds = call_interval(build_program(job, model, plan, RowShape.from_manifest(manifest))).likely
    saved = [f"{job.checkpoint_every_minutes:g} minutes"] * bool(job.checkpoint_every_minutes)
    saved += [f"{job.checkpoint_every_updates} updates"] * bool(job.checkpoint_every_updates)
    lost = (
        f"the last {' or '.join(saved)}, a call and the time of writing a checkpoint"
        if saved
        else "everything, as no checkpoints are saved during training (checkpoint_every_minutes)"
    )
    return (
        f"an IPU call takes about {seconds:.1f} s on Mk2 by published figures: a stop takes effect after the call, "
        f"with a checkpoint. A killed job loses at most {lost}"
    )


def build_program(
    job: Job, model: ModelConfig, plan: IpuPlan, rows: RowShape, generation: Generation = MK2
) -> IpuProgram:
    """Return the values that decide the memory and the time of a job's program."""
    predicting = job.kind == "predict"
    mode = plan.config.inference if predicting else plan.config.training
    sharded = plan.config.replicated_tensor_sharding and plan.replicas > 1
    return IpuProgram(
        model,
        plan.placement,
        rows,
        plan.micro_batch_size,
        accumulation=plan.updates_per_call if predicting else plan.accumulation,
        replicas=plan.replicas,
        updates_per_call=plan.updates_per_call,
        state_offchip=plan.config.optimizer_state_offchip,
        generation=generation,
        training=not predicting,
        pipelined=plan.pipelined_inference or not predicting,
        matmul_proportion=tuple(mode.matmul_proportion),
        weight_bytes=2.0 if plan.half else 4.0,
        gradient_bytes=2.0 if plan.half_accumulators else 4.0,
        moment_bytes=moment_bytes(job.optimizer, plan.half),
        shards=plan.local_replicas if sharded else 1,
        keeps_every_layer=plan.config.recompute_checkpoint_every_layer,
        table_pieces=plan.table_pieces,
        table_cuts=can_cut_table(job),
        decoder_pieces=decoder_factor(mode),
        labels=len(job.labels or ()) or 2,
    )


def _training(job: Job, manifest: Manifest, plan: IpuPlan, program: IpuProgram) -> TimeEstimate:
    updates = make_plan(job, manifest, Choice("ipu", ""), Choice("fp16", ""), plan).updates
    call, per_call = call_interval(program), program.updates_per_call
    seconds = Interval(call.low / per_call, call.likely / per_call, call.high / per_call)
    of_update = update_seconds(program)
    host = call.likely / per_call - of_update.likely
    terms = (*of_update.terms, Term("host between calls", host, "device_iterations: more updates in a call"))
    return TimeEstimate(terms, updates, seconds, _rate(program.rows_per_update * program.rows.packing_factor, seconds))


def _prediction(manifest: Manifest, plan: IpuPlan, program: IpuProgram) -> TimeEstimate:
    calls, seconds = math.ceil(manifest.rows / plan.rows_per_call), call_interval(program)
    terms = (Term("forward pass of a call", seconds.likely, "inference_replication_factor: more replicas"),)
    return TimeEstimate(terms, calls, seconds, _rate(plan.rows_per_call * program.rows.packing_factor, seconds))


def _rate(sequences: float, seconds: Interval) -> Interval:
    return Interval(sequences / seconds.high, sequences / seconds.likely, sequences / seconds.low)
