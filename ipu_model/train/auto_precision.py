"""Precision `auto` on a CPU: time one encoder layer of the job in fp32 and in bf16 before the job starts.

A second measurement could give another result, and a run must not change its precision. So the choice is recorded in
the run folder before training, and in every checkpoint, which also carries it to other hosts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np
import torch

from ipu_model.core.files import find_object, fingerprint, write_json
from ipu_model.core.progress import Emit
from ipu_model.distributed.instances import Instances
from ipu_model.estimates.shapes import dense_flops
from ipu_model.jobs.plan import Choice, JobPlan
from ipu_model.models.encoder import Layer, LowPrecisionCopies
from ipu_model.models.flat import SequenceAttention, flatten
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train.checkpoint import Checkpoints, Fingerprint

RECORD = "precision.json"
PRECISION_FIELD = "plan.precision"
MIN_SPEEDUP = 1.05
"""Minimum speedup of bf16: below it, fp32 costs next to nothing and rounds less."""
SHORT_FLOPS = 2e10
"""Operations of a prediction that take one core half a second, for example one question."""
FIRST_TOKENS, LEAST_TOKENS, ROUNDS, SECONDS = 8, 64, 5, 1.0
"""The first tokens determine how many fit into the time of all rounds. Larger batches are faster per token, so about
half the time is used."""
MAX_SLOWDOWN = 4
"""Slowdown of bf16 on the first tokens that ends the measurement: emulated bf16 would take seconds on more tokens."""


def resolve_precision(
    plan: JobPlan, run_fingerprint: Fingerprint, run_folder: Path, rows: RowFolder, instances: Instances, emit: Emit
) -> Choice:
    """Resolve `auto` for a job: the precision that its training started with, else the faster one.

    Instance 0 chooses for all. `run_fingerprint` is that of a training with `auto`; a prediction records nothing.
    """
    if plan.kind == "predict":
        return choose_faster(plan, rows)
    instances.join(plan.runtime)
    choice = Choice("fp32", "auto: chosen by instance 0")
    if instances.is_writer:
        choice = find_recorded(run_folder, run_fingerprint, emit) or choose_faster(plan, rows)
        record = {"job": fingerprint(run_fingerprint), "precision": choice.value, "reason": choice.reason}
        write_json(run_folder / RECORD, record)
    (low,) = instances.any_instance([instances.is_writer and choice.value == "bf16"])
    return Choice("bf16" if low else "fp32", choice.reason)


def find_recorded(run_folder: Path, run_fingerprint: Fingerprint, emit: Emit) -> Optional[Choice]:
    """Return the precision that this job started with, from its newest checkpoint or, without one, from its record."""
    record = find_object(run_folder / RECORD) or {}
    recorded, precision, reason = (record.get(name) for name in ("job", "precision", "reason"))
    state = Checkpoints(run_folder, run_fingerprint, emit).read_newest_state()
    if state is not None:
        recorded = fingerprint({**state["fingerprint"], PRECISION_FIELD: "auto"})
        precision, reason = state["fingerprint"].get(PRECISION_FIELD), state.get("precision_reason")
    if recorded != fingerprint(run_fingerprint) or precision not in ("fp32", "bf16"):
        return None
    emit("message", text=f"precision: {precision}, recorded when this run started")
    return Choice(str(precision), str(reason or "auto: recorded when this run started"))


def choose_faster(plan: JobPlan, rows: RowFolder) -> Choice:
    """Return the faster precision for a job on this host, or fp32 if the difference is small."""
    if plan.kind != "predict" and not plan.updates:
        return Choice("fp32", "auto: the job has no updates")
    if (
        plan.kind == "predict"
        and rows.model.num_layers * dense_flops(rows.model, rows.manifest.real_tokens) < SHORT_FLOPS
    ):
        return Choice("fp32", "auto: the prediction takes less time than a measurement")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other load disturbs several threads, but hardly the CPU time of a single one
    try:
        fp32, bf16 = measure_rates(plan, rows)
    except RuntimeError as error:
        if "primitive" not in str(error):  # oneDNN: no bf16 matrix product
            raise
        return Choice("fp32", "auto: this torch has no bf16 matrix products for this CPU")
    finally:
        torch.set_num_threads(threads)
    tie = f", a gain below {MIN_SPEEDUP - 1:.0%}" if fp32 < bf16 <= MIN_SPEEDUP * fp32 else ""
    reason = f"auto: measured bf16 {bf16:,.0f} and fp32 {fp32:,.0f} tokens/s per layer with 1 thread{tie}"
    return Choice("bf16" if bf16 > MIN_SPEEDUP * fp32 else "fp32", reason)


def measure_rates(plan: JobPlan, rows: RowFolder) -> Tuple[float, float]:
    """Return tokens per second of one layer in fp32 and in bf16; the decoder of masked tokens speeds up as much."""
    lengths = flatten(rows.take(np.arange(min(len(rows), plan.micro_batch_size)))).lengths
    tokens, training = FIRST_TOKENS, plan.kind != "predict"
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training):
        layers = [(Layer(rows.model).train(training), dtype) for dtype in (None, torch.bfloat16)]
        for count in (3, ROUNDS):
            chosen = np.minimum(lengths[:: -(-int(lengths.sum()) // tokens)], tokens).tolist()
            rounds = [[time_pass(layer, dtype, chosen) for layer, dtype in layers] for _ in range(count)]
            fp32, bf16 = (min(times) for times in zip(*rounds))
            if bf16 > MAX_SLOWDOWN * fp32:
                break
            tokens = max(LEAST_TOKENS, int(SECONDS / ROUNDS * sum(chosen) / (fp32 + bf16)))
    return sum(chosen) / fp32, sum(chosen) / bf16


def time_pass(layer: Layer, dtype: Optional[torch.dtype], lengths: List[int]) -> float:
    """Return the CPU seconds of a forward pass over random tokens, in training with the backward pass."""
    LowPrecisionCopies(layer, dtype)  # new copies without gradients, as in an update
    layer.zero_grad(set_to_none=True)
    hidden = torch.randn(sum(lengths), layer.output.dense.out_features, dtype=dtype, requires_grad=layer.training)
    began = time.process_time()
    total = (layer(hidden, SequenceAttention(lengths)) * hidden).sum()
    if layer.training:
        total.backward()
    return time.process_time() - began
