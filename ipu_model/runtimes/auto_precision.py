"""Precision `auto` on a CPU: one encoder layer of the job is timed in fp32 and in bf16 before the job begins.

A second measurement may differ, and weights trained in two precisions belong to no run. So the choice is recorded in
the run folder before anything is trained, and in every checkpoint, which takes it to other hosts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import List, Optional, Tuple

import numpy as np
import torch

from ipu_model.distributed.ranks import Instances
from ipu_model.estimates.shapes import dense_flops
from ipu_model.files import find_object, write_json
from ipu_model.jobs.fingerprint import fingerprint
from ipu_model.jobs.plan import Choice, Plan
from ipu_model.models.encoder import Layer, LowPrecisionCopies
from ipu_model.models.flat import SequenceAttention, flatten
from ipu_model.progress import Emit
from ipu_model.rows.reading import RowFolder
from ipu_model.train.checkpoint import Checkpoints, Fingerprint

RECORD = "precision.json"
PRECISION_FIELD = "plan.precision"
TIE = 1.05
"""Least speedup of bf16: below it fp32 costs next to nothing, and rounds less."""
LITTLE = 2e10
"""Operations of a prediction that one core does in half a second: a question, for example."""
FIRST_TOKENS, LEAST_TOKENS, ROUNDS, SECONDS = 8, 64, 5, 1.0
"""A few tokens tell how many fit into the time of all rounds; more of them are faster each, so about half is used."""
SLOW = 4
"""Slowdown of bf16 on the first tokens that decides: where it is emulated, more of them would take seconds."""


def resolve_precision(
    plan: Plan, of_run: Fingerprint, run_folder: Path, rows: RowFolder, instances: Instances, emit: Emit
) -> Choice:
    """Return what `auto` means for a job: the precision that its training began with, else the faster one.

    Instance 0 chooses for all. `of_run` is the fingerprint of a training with `auto`; a prediction records nothing.
    """
    if plan.kind == "predict":
        return choose_faster(plan, rows)
    instances.join(plan.runtime)
    choice = Choice("fp32", "auto: as instance 0 chose")
    if instances.is_writer:
        choice = find_recorded(run_folder, of_run, emit) or choose_faster(plan, rows)
        record = {"job": fingerprint(of_run), "precision": choice.value, "reason": choice.reason}
        write_json(run_folder / RECORD, record)
    low = instances.any_of(instances.is_writer and choice.value == "bf16")
    return Choice("bf16" if low else "fp32", choice.reason)


def find_recorded(run_folder: Path, of_run: Fingerprint, emit: Emit) -> Optional[Choice]:
    """Return what this very job began with, from its newest checkpoint or, where there is none, its record."""
    record = find_object(run_folder / RECORD) or {}
    begun, precision, reason = (record.get(name) for name in ("job", "precision", "reason"))
    state = Checkpoints(run_folder, of_run, emit).newest_state()
    if state is not None:
        begun = fingerprint({**state["fingerprint"], PRECISION_FIELD: "auto"})
        precision, reason = state["fingerprint"].get(PRECISION_FIELD), state.get("precision_reason")
    if begun != fingerprint(of_run) or precision not in ("fp32", "bf16"):
        return None
    emit("message", text=f"precision: {precision}, recorded when this run began")
    return Choice(str(precision), str(reason or "auto: recorded when this run began"))


def choose_faster(plan: Plan, rows: RowFolder) -> Choice:
    """Return the faster precision for a job on this host, and fp32 where they are near."""
    if plan.kind != "predict" and not plan.updates:
        return Choice("fp32", "auto: no update is made")
    if plan.kind == "predict" and rows.model.num_layers * dense_flops(rows.model, rows.manifest.real_tokens) < LITTLE:
        return Choice("fp32", "auto: so little is computed before a probe would end")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # other work on the host disturbs several threads, and hardly the CPU time of one
    try:
        fp32, bf16 = measure_rates(plan, rows)
    except RuntimeError as error:
        if "primitive" not in str(error):  # of oneDNN, which has no such product
            raise
        return Choice("fp32", "auto: this torch has no bf16 products for this CPU")
    finally:
        torch.set_num_threads(threads)
    near = ", too near for bf16" if fp32 < bf16 <= TIE * fp32 else ""
    reason = f"auto: measured bf16 {bf16:,.0f} and fp32 {fp32:,.0f} tokens/s per layer with 1 thread{near}"
    return Choice("bf16" if bf16 > TIE * fp32 else "fp32", reason)


def measure_rates(plan: Plan, rows: RowFolder) -> Tuple[float, float]:
    """Return tokens per second of one layer in fp32 and in bf16; the decoder of masked tokens gains as much."""
    lengths = flatten(rows.take(np.arange(min(len(rows), plan.micro_batch_size)))).lengths
    tokens, training = FIRST_TOKENS, plan.kind != "predict"
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training):
        layers = [(Layer(rows.model).train(training), dtype) for dtype in (None, torch.bfloat16)]
        for count in (3, ROUNDS):
            chosen = np.minimum(lengths[:: -(-int(lengths.sum()) // tokens)], tokens).tolist()
            rounds = [[time_pass(layer, dtype, chosen) for layer, dtype in layers] for _ in range(count)]
            fp32, bf16 = (min(times) for times in zip(*rounds))
            if bf16 > SLOW * fp32:
                break
            tokens = max(LEAST_TOKENS, int(SECONDS / ROUNDS * sum(chosen) / (fp32 + bf16)))
    return sum(chosen) / fp32, sum(chosen) / bf16


def time_pass(layer: Layer, dtype: Optional[torch.dtype], lengths: List[int]) -> float:
    """Return the CPU seconds of random tokens in a layer: forward, and in training backward."""
    LowPrecisionCopies(layer, dtype)  # new ones without gradients, as an update makes them
    layer.zero_grad(set_to_none=True)
    hidden = torch.randn(sum(lengths), layer.output.dense.out_features, dtype=dtype, requires_grad=layer.training)
    began = time.process_time()
    total = (layer(hidden, SequenceAttention(lengths)) * hidden).sum()
    if layer.training:
        total.backward()
    return time.process_time() - began
