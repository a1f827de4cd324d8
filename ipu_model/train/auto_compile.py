"""Compilation `auto` on a GPU: try one compiled encoder layer of the job before it starts, and a plain one.

The trial also serves `model`: what cannot be compiled here, or gives other numbers, stays plain, with the reason.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ipu_model.core.progress import Emit
from ipu_model.core.units import parse_version
from ipu_model.jobs.plan import Choice, JobPlan
from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Layer, call_layer
from ipu_model.models.flat import flatten
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.masked_lm import Differentiate, differentiate_in_place
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train.measured_choices import MeasuredSetting

COMPILE = MeasuredSetting("compile", ("none", "model"))
COMPILE_SECONDS = 60.0
"""Assumed time of compiling. `auto` compiles nothing for a job whose layers take less: it could not earn the time."""
MIN_GAIN = 0.05
"""Minimum share of a layer's time that compiling saves."""
MOST_DIFFERENCE = 0.05
"""Maximum difference of plain and compiled results, as a share of the largest number: fusion rounds less often."""
ROUNDS = 10
Call = Callable[[Any, Tensor, Any], Tensor]


@dataclass(frozen=True)
class LayerTrial:
    """An encoder layer of a job with random weights and inputs on the job's device."""

    config: ModelConfig
    precision: torch.dtype
    lengths: List[int]
    """Tokens of the sequences of a micro-batch."""
    training: bool
    device: torch.device
    make_attention: Callable[[Tensor, int], Any]
    """Attention of the device (cuda.choose_attention)."""
    clock: Callable[[], float]
    """Seconds, after all work of the device has ended."""

    def make_layer(self, dropout: bool) -> Layer:
        """Return a layer; without dropout, plain and compiled results can be compared."""
        layer = Layer(self.config).to(self.device).train(self.training)
        LowPrecisionCopies(layer, None if self.precision == torch.float32 else self.precision)
        if not dropout:
            layer.dropout = layer.attention["self"].dropout = 0.0
        return layer

    def run(self, layer: Layer, call: Call, every: int = 1) -> Tuple[float, List[Tensor]]:
        """Return the seconds of a pass over every n-th sequence, in training with the backward pass, and its results.

        The inputs are the same in every call.
        """
        lengths = self.lengths[::every]
        offsets = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)).to(self.device)
        generator = torch.Generator().manual_seed(0)
        shape = (sum(lengths), self.config.hidden_size)
        hidden = torch.randn(shape, generator=generator).to(self.device, self.precision)
        hidden.requires_grad_(self.training)
        layer.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(self.training):
            began = self.clock()
            result = call(layer, hidden, self.make_attention(offsets, max(lengths)))
            if self.training:
                (result * hidden.detach()).sum().backward()
            seconds = self.clock() - began
        return seconds, [result.detach(), *([] if hidden.grad is None else [hidden.grad])]

    def compare(self, call: Call) -> float:
        """Return the largest difference of plain and compiled results, as a share of the largest number."""
        layer = self.make_layer(dropout=False)
        differences = []
        for every in (1, 2):
            plain, compiled = (self.run(layer, each, every)[1] for each in (call_layer, call))
            for baseline, other in zip(plain, compiled):
                differences.append(float((baseline.float() - other.float()).abs().max() / baseline.float().abs().max()))
        return max(differences)

    def time(self, call: Call) -> Tuple[float, float]:
        """Return the seconds of a plain and of a compiled pass: the fastest of several in turn, after two warm-ups."""
        layer = self.make_layer(dropout=True)
        calls = (call_layer, call)
        for every in (1, 2):
            for each in calls:
                self.run(layer, each, every)
        rounds = [[self.run(layer, each)[0] for each in calls] for _ in range(ROUNDS)]
        plain, compiled = (min(times) for times in zip(*rounds))
        return plain, compiled


def choose_compilation(
    plan: JobPlan, config: ModelConfig, rows: RowFolder, local_index: int, emit: Emit, requested: str
) -> Choice:
    """Return whether the layers of a job on a GPU are compiled: `model` or `none`, and the reason.

    `requested` is auto or model.
    """
    from ipu_model.runtimes.compiled_layers import OLDEST, prepare_cache, shared_differentiate, shared_layers
    from ipu_model.runtimes.cuda import VarlenAttention, choose_attention

    if parse_version(torch.__version__) < OLDEST:
        return Choice("none", "{}: compiled layers need torch {}.{} or newer".format(requested, *OLDEST))
    if not families.get_family(config.family).own:
        return Choice("none", f"{requested}: transformers computes {config.family} models, which are not compiled")
    if families.get_family(config.family).rotary:
        return Choice("none", f"{requested}: layers with rotary positions are not compiled")
    if plan.kind != "predict" and not plan.updates:
        return Choice("none", f"{requested}: the job has no updates")
    device = torch.device("cuda", local_index)
    dtype = torch.bfloat16 if plan.precision == "bf16" else torch.float32
    attention, why = choose_attention(device, dtype, config.num_heads, config.hidden_size)
    if attention is not VarlenAttention:
        return Choice("none", f"{requested}: layers are compiled with flash attention only ({why})")

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    lengths = flatten(rows.take(np.arange(min(len(rows), plan.micro_batch_size)))).lengths.tolist()
    trial = LayerTrial(config, dtype, lengths, plan.kind != "predict", device, attention, clock)
    has_vocabulary = "masked_labels" in {x.name for x in rows.manifest.columns}
    with torch.random.fork_rng(devices=[device]):
        if requested == "auto" and (short := describe_short_job(plan, trial)):
            return Choice("none", short)
        prepare_cache(os.environ, lambda text: emit("message", text=text))
        return try_compiled(trial, shared_layers(), requested, shared_differentiate() if has_vocabulary else None)


def compare_losses(trial: LayerTrial, differentiate: Differentiate) -> float:
    """Return the largest difference of plain and compiled gradients of vocabulary logits, which are below 1."""
    differences = []
    for count in (64, 192):
        generator = torch.Generator().manual_seed(count)
        logits = torch.randn(count, trial.config.vocab_size, generator=generator).to(trial.device, trial.precision)
        labels = torch.arange(-1, count - 1, device=trial.device).remainder(trial.config.vocab_size)
        labels[::7] = IGNORED
        bias = torch.zeros(trial.config.vocab_size, device=trial.device)
        compiled = differentiate(logits, bias, labels)[1].float()
        plain = differentiate_in_place(logits, bias, labels)[1].float()
        differences.append(float((plain - compiled).abs().max()))
    return max(differences)


def describe_short_job(plan: JobPlan, trial: LayerTrial) -> Optional[str]:
    """Return why compiling could not earn its time; None if it could."""
    layer = trial.make_layer(dropout=True)
    seconds = min(trial.run(layer, call_layer)[0] for _ in range(3))
    passes = plan.updates * plan.gradient_accumulation_steps
    if plan.kind == "predict":
        passes = -(-plan.rows // plan.micro_batch_size)
    remaining = seconds * trial.config.num_layers * passes
    if remaining >= COMPILE_SECONDS:
        return None
    return f"auto: the layers take about {remaining:.0f} s in all, and compiling as much as {COMPILE_SECONDS:.0f} s"


def try_compiled(
    trial: LayerTrial, compiled: Call, requested: str, differentiate: Optional[Differentiate] = None
) -> Choice:
    """Return `model` if the compiled layer runs, gives the numbers of the plain one and, for `auto`, is faster.

    `differentiate` is the compiled gradient of vocabulary logits, of a job that has them.
    """
    try:
        began = trial.clock()
        difference = trial.compare(compiled)
        if differentiate is not None:
            difference = max(difference, compare_losses(trial, differentiate))
        compiling = trial.clock() - began
        plain, fast = trial.time(compiled)
    except (RuntimeError, ImportError, OSError, TypeError, AttributeError, NotImplementedError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return Choice("none", f"{requested}: compiling a layer failed here ({reason})")
    if not difference <= MOST_DIFFERENCE:
        return Choice("none", f"{requested}: a compiled layer gave different results here (by {difference:.2g})")
    tokens = sum(trial.lengths)
    measured = (
        f"{requested}: measured {tokens / fast:,.0f} tokens/s per layer compiled and {tokens / plain:,.0f} plain, "
        f"after {compiling:.0f} s of compiling"
    )
    if requested == "auto" and fast > (1 - MIN_GAIN) * plain:
        return Choice("none", f"{measured}, a gain below {MIN_GAIN:.0%}")
    return Choice("model", measured)
