"""Precision `auto` on a CPU: time one encoder layer of the job in fp32 and in bf16 before the job starts."""

from __future__ import annotations

import time
from typing import Any, List, Optional, Tuple

import numpy as np
import torch

from ipu_model.estimates.shapes import dense_flops
from ipu_model.jobs.plan import Choice, JobPlan
from ipu_model.models.encoder import make_layer
from ipu_model.models.flat import SequenceAttention, flatten
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.rotary import RotaryAttention, RotaryLayer
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train.measured_choices import MeasuredSetting

PRECISION = MeasuredSetting("precision", ("fp32", "bf16"))
MIN_SPEEDUP = 1.05
"""Minimum speedup of bf16: below it, fp32 costs next to nothing and rounds less."""
SHORT_FLOPS = 2e10
"""Operations of a prediction that take one core half a second, for example one question."""
FIRST_TOKENS, LEAST_TOKENS, ROUNDS, SECONDS = 8, 64, 5, 1.0
"""The first tokens determine how many fit into the time of all rounds. Larger batches are faster per token, so about
half the time is used."""
MAX_SLOWDOWN = 4
"""Slowdown of bf16 on the first tokens that ends the measurement: emulated bf16 would take seconds on more tokens."""


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
        number = min(1, rows.model.num_layers - 1)  # the first of ModernBERT has a norm less, and no window
        layers = [(make_layer(rows.model, number).train(training), dtype) for dtype in (None, torch.bfloat16)]
        for count in (3, ROUNDS):
            chosen = np.minimum(lengths[:: -(-int(lengths.sum()) // tokens)], tokens).tolist()
            rounds = [[time_pass(layer, dtype, chosen) for layer, dtype in layers] for _ in range(count)]
            fp32, bf16 = (min(times) for times in zip(*rounds))
            if bf16 > MAX_SLOWDOWN * fp32:
                break
            tokens = max(LEAST_TOKENS, int(SECONDS / ROUNDS * sum(chosen) / (fp32 + bf16)))
    return sum(chosen) / fp32, sum(chosen) / bf16


def time_pass(layer: Any, dtype: Optional[torch.dtype], lengths: List[int]) -> float:
    """Return the CPU seconds of a forward pass over random tokens, in training with the backward pass."""
    LowPrecisionCopies(layer, dtype)  # new copies without gradients, as in an update
    layer.zero_grad(set_to_none=True)
    hidden = torch.randn(sum(lengths), layer.output.dense.out_features, dtype=dtype, requires_grad=layer.training)
    attention: Any = SequenceAttention(lengths)
    if isinstance(layer, RotaryLayer):
        attention = RotaryAttention(attention, torch.cat([torch.arange(length) for length in lengths]))
    began = time.process_time()
    total = (layer(hidden, attention) * hidden).sum()
    if layer.training:
        total.backward()
    return time.process_time() - began
