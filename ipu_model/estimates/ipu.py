"""Memory and time of a job on IPUs, before anything compiles, and a faster layout of a training on the same IPUs.

The search for a layout varies the IPUs of a replica, the layers on each IPU, the micro-batch and recomputation.
Replicas follow from the available IPUs, and accumulation from the global batch; all other settings stay. The result is
a proposal: nothing is changed. Imports neither torch nor PopTorch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Iterator, List, Optional

from ipu_model.core.units import format_count
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.estimate import Interval, JobEstimate, Term, TimeEstimate
from ipu_model.estimates.ipu_constants import MK2, SWAP_SECONDS, Generation
from ipu_model.estimates.ipu_memory import estimate_memories, fits_memory
from ipu_model.estimates.ipu_time import IpuProgram, call_interval, micro_batch_seconds, update_seconds
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.config import MATMUL_PROPORTION
from ipu_model.ipu.migration import ignore
from ipu_model.ipu.placement import Placement
from ipu_model.ipu.planning import IpuPlan, can_cut_table, decoder_factor, is_half, plan_ipu
from ipu_model.jobs.job import Job, OptimizerConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

ALONE = PopRunInstances()
WORTHWHILE_SHARE = 0.01
"""Share of a training's time for its evaluations: if they take more, a message says how to reduce them."""
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batches that the search tries, in rows."""

WORTH_A_LINE = 0.03
"""Smallest gain that is reported; smaller ones are within the error of the estimates."""


def plan_for_estimate(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> IpuPlan:
    """Return the plan of a job on IPUs: placement, replicas, accumulation.

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
    """Estimate the memory of each IPU of a replica, and the time of the job; the counts of its rows may be assumed.

    Raises:
        ConfigError: the job cannot run on IPUs with these settings.
        RowsError: the rows do not fill one update.
    """
    plan = plan_for_estimate(job, model, manifest, instances)
    device = f"{plan.placement.ipus_per_replica * plan.replicas} IPUs {generation.name}, "
    device += f"{format_count(plan.replicas, 'replicas')} of {plan.placement.ipus_per_replica}"
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


def describe_evaluations(
    job: Job, model: ModelConfig, plan: IpuPlan, manifest: Manifest, rows: int, updates: int
) -> str:
    """Describe the cost of the evaluations of a training, on at most `rows` held-out rows."""
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
    host = program.fitted.host
    terms = (
        Term("forward pass of a call", seconds.likely - host, "inference_replication_factor: more replicas"),
        Term("host between calls", host, "inference_device_iterations: more rows in a call"),
    )
    return TimeEstimate(terms, calls, seconds, _rate(plan.rows_per_call * program.rows.packing_factor, seconds))


def _rate(sequences: float, seconds: Interval) -> Interval:
    return Interval(sequences / seconds.high, sequences / seconds.likely, sequences / seconds.low)


@dataclass(frozen=True)
class Proposal:
    """Current layout of a training on its IPUs, and a faster one."""

    current: IpuProgram
    proposed: Optional[IpuProgram]
    """None if no faster layout fits."""

    @property
    def gain(self) -> float:
        """Gain in rows a second, as a share of the current rate; 0 without a proposal."""
        return rows_per_second(self.proposed) / rows_per_second(self.current) - 1 if self.proposed else 0.0

    @property
    def margin(self) -> float:
        """Seconds that the embeddings of a row may take on IPU 0 before the gain is lost; 0 without a proposal.

        Embeddings are not a matrix product and not in the formula: IPU 0 is not the slowest in any published result,
        so that none shows their time.
        """
        if self.proposed is None:
            return 0.0
        as_fast = max(_row_seconds(self.current)) * self.proposed.replicas / self.current.replicas
        return as_fast - _row_seconds(self.proposed)[self.proposed.placement.embeddings]

    @property
    def is_worthwhile(self) -> bool:
        """True if the gain is large enough and IPU 0 has a margin; without one, the gain is unknown."""
        return self.gain >= WORTH_A_LINE and self.margin > 0

    def describe(self) -> str:
        """Format its settings, its gain, and the condition for it; empty without a proposal."""
        program = self.proposed
        if program is None:
            return ""
        layers, rows = ", ".join(map(str, program.placement.layers_per_ipu)), program.micro_batch_size
        others = "" if program.keeps_every_layer else ", recompute_checkpoint_every_layer false"
        if program.replicas != self.current.replicas:
            others += f", replication_factor {program.replicas}, matmul_proportion {program.matmul_proportion[0]:g}"
        return (
            f"{self.gain:.0%} more with layers_per_ipu [{layers}], micro_batch_size {rows}{others}, "
            f"as long as the embeddings take IPU 0 less than {1000 * self.margin:.2g} ms a row"
        )


def propose_layout(job: Job, model: ModelConfig, manifest: Manifest, instances: PopRunInstances = ALONE) -> Proposal:
    """Propose a faster layout of a training on the same IPUs, if there is one; for errors see `plan_for_estimate`."""
    plan = plan_for_estimate(job, model, manifest, instances)
    return find_faster_layout(build_program(job, model, plan, RowShape.from_manifest(manifest)), instances.count)


def find_faster_layout(training: IpuProgram, instances: int = 1) -> Proposal:
    """Return the fastest layout that fits the IPUs of this training, next to its own, for a number of instances."""
    now = rows_per_second(training)
    rates = [(rows_per_second(cut), cut) for cut in _candidates(training, instances)]
    faster = sorted((x for x in rates if x[0] > now), key=lambda x: -x[0])
    return Proposal(training, next((cut for _, cut in faster if fits_memory(cut)), None))


def rows_per_second(training: IpuProgram) -> float:
    """Return the likely rate of a training."""
    return training.rows_per_update * training.updates_per_call / call_interval(training).likely


def _row_seconds(training: IpuProgram) -> List[float]:
    """Return the seconds of each IPU for a row."""
    return [seconds / training.micro_batch_size for seconds in micro_batch_seconds(training)]


def _candidates(training: IpuProgram, instances: int) -> Iterator[IpuProgram]:
    """Yield every layout with the same rows of an update and a filled pipeline."""
    for of_pod in _pods(training, instances):
        for placement in _placements(of_pod.placement):
            for micro_batch in MICRO_BATCHES:
                accumulation, left = divmod(training.rows_per_update, micro_batch * of_pod.replicas)
                if left or accumulation < placement.training_stages:
                    continue
                cut = dataclasses.replace(
                    of_pod, placement=placement, micro_batch_size=micro_batch, accumulation=accumulation
                )
                for keeps in (True, False):
                    yield dataclasses.replace(cut, keeps_every_layer=keeps)


def _pods(training: IpuProgram, instances: int) -> Iterator[IpuProgram]:
    """Yield the division of the available IPUs into replicas: the current one first, then others."""
    current = training.placement
    yield training
    pod, ipus = current.ipus_per_replica * training.replicas, 1
    while ipus <= min(pod, len(current.layers)):
        if ipus != current.ipus_per_replica and pod % (ipus * instances) == 0:
            replicas = pod // ipus
            last = ipus - 1 if current.heads == current.ipus_per_replica - 1 else current.heads
            shares = training.matmul_proportion
            # A list for another number of IPUs does not apply (config.py).
            share = shares[0] if len(set(shares)) == 1 else MATMUL_PROPORTION
            yield dataclasses.replace(
                training,
                placement=dataclasses.replace(current, heads=last, ipus_per_replica=ipus),
                replicas=replicas,
                shards=replicas // instances if training.shards > 1 else 1,
                matmul_proportion=(share,) * ipus,
            )
        ipus *= 2


def _placements(current: Placement) -> Iterator[Placement]:
    """Yield other divisions of the layers: IPUs after the first get an even share of the rest, within one layer."""
    layers, ipus = len(current.layers), current.ipus_per_replica
    for first in range(layers // ipus + 2):
        for rest in _shares(layers - first, ipus - 1):
            counts = [first, *rest]
            # Next to the heads where these are with the embeddings, else next to the last layer.
            stays = current.pooler is None or current.pooler == current.embeddings
            pooler = current.pooler if stays else max(ipu for ipu, count in enumerate(counts) if count)
            yield dataclasses.replace(
                current,
                layers=tuple(ipu for ipu, count in enumerate(counts) for _ in range(count)),
                pooler=pooler,
            )


def _shares(layers: int, ipus: int) -> List[List[int]]:
    """Return ways to share layers evenly among `ipus` IPUs.

    A surplus goes to the first or to the last of them: which of the others has it makes no difference to the time.
    """
    if not ipus:
        return [[]] if not layers else []
    share, over = divmod(layers, ipus)
    if layers and not share:
        return []
    last = [share] * (ipus - over) + [share + 1] * over
    return [last] if not over else [last, last[::-1]]
