"""One call of an executable: micro-batches in order, gradients accumulated, one update per device iteration."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from poptorch import arithmetic
from poptorch.enums import OutputMode
from poptorch.errors import refusal
from poptorch.half import HalfOnCpu
from poptorch.record import STATE

AT_ONCE = 64
"""Micro-batches in one vectorised pass."""
RANDOM = ("rand", "dropout", "bernoulli", "normal", "uniform", "exponential", "multinomial")


class PlainCrossEntropy(TorchFunctionMode):
    """Cross-entropy in simpler operations: torch 2.0 cannot vectorise an ignored label (-100) in its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.cross_entropy or kwargs.get("reduction") != "none":
            return func(*args, **kwargs)
        logits, labels = args
        kept = labels != kwargs.get("ignore_index", -100)
        scores = torch.log_softmax(logits, 1).gather(1, torch.where(kept, labels, 0).unsqueeze(1)).squeeze(1)
        return torch.where(kept, -scores, 0.0)


class Runner:
    def __init__(self, executable: Any) -> None:
        self._of = executable
        self._half = any(x.dtype == torch.float16 for x in executable.weights.values())
        random = any(part in name for name in executable.program.ops for part in RANDOM)
        half_sums = executable.training and executable.attributes.accum_type_half
        # A sum of fp32 gradients is the gradient of the summed losses: many micro-batches in one pass.
        self._together = not (self._half or half_sums or random)

    def run(self, inputs: Sequence[Tensor]) -> Any:
        of = self._of
        results: List[List[Tensor]] = []
        per_update, size = of.accumulation * of.replicas, AT_ONCE if self._together else 1
        for first in range(0, of.iterations * per_update, per_update):
            sums: Dict[str, Tensor] = {}
            for at in range(0, per_update, size):
                parts = range(first + at, first + min(at + size, per_update))
                results += self._pass([of.micro_batch(inputs, part) for part in parts], sums, at)
            if of.training:
                self._update(sums)
        mode = OutputMode(of.options["output_mode"])
        outputs = tuple(returned(list(made), of.replicas, mode) for made in zip(*results))
        return outputs[0] if of.single_output else outputs

    def _pass(self, batches: List[List[Tensor]], sums: Dict[str, Tensor], count: int) -> List[List[Tensor]]:
        with HalfOnCpu() if self._half else contextlib.nullcontext():
            if len(batches) > 1:
                with torch.set_grad_enabled(self._of.training), PlainCrossEntropy():
                    stacked, loss = torch.func.vmap(self._forward)(*map(torch.stack, zip(*batches)))
                outputs = [[x[at] for x in stacked] for at in range(len(batches))]
            else:
                made, loss = self._forward(*batches[0])
                outputs = [list(made)]
            if self._of.training:
                self._accumulate(loss, sums, count)
        return [[_on_host(x) for x in made] for made in outputs]

    def _forward(self, *leaves: Tensor) -> Tuple[Tuple[Tensor, ...], Tensor]:
        outputs = self._of.forward(leaves)
        loss = STATE.losses[self._of.loss][0] if self._of.training else torch.zeros(())
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs), loss

    def _accumulate(self, loss: Tensor, sums: Dict[str, Tensor], count: int) -> None:
        of = self._of
        if not loss.requires_grad:
            raise refusal("the final loss depends on no parameter")
        seed = torch.full_like(loss, of.attributes.loss_scaling)
        wanted = [of.weights[name] for name in of.groups]
        for name, gradient in zip(of.groups, torch.autograd.grad(loss, wanted, seed, allow_unused=True)):
            if gradient is not None:
                sums[name] = self._sum(sums.get(name), gradient.float(), count)

    @property
    def _mean(self) -> bool:
        return bool(self._of.options["accumulation_and_replication_reduction_type"] == 1)

    def _sum(self, before: Optional[Tensor], gradient: Tensor, count: int) -> Tensor:
        if not self._of.attributes.accum_type_half:
            return gradient.clone() if before is None else before.add_(gradient)
        old = torch.zeros_like(gradient) if before is None else before.float()
        # A sum of many would leave the range of fp16, so a mean is kept as it grows.
        return (old + (gradient - old) / (count + 1) if self._mean else old + gradient).half()

    @torch.no_grad()
    def _update(self, sums: Dict[str, Tensor]) -> None:
        of = self._of
        of.ensure_state()
        divide = self._mean and not of.attributes.accum_type_half
        parts = of.accumulation * of.replicas if divide else 1
        gradients = {name: x.float() / (of.attributes.loss_scaling * parts) for name, x in sums.items()}
        for name, gradient in arithmetic.clip(gradients, of.attributes.max_grad_norm).items():
            arithmetic.update(of.attributes, of.groups[name], name, of.weights[name], gradient, of.state)


def returned(results: List[Tensor], replicas: int, mode: OutputMode) -> Tensor:
    """Outputs of every micro-batch, in order of execution (replicas innermost) -> one tensor for the host."""
    if mode == OutputMode.Final:
        results = results[-replicas:]
    elif mode == OutputMode.Sum:
        results = [torch.stack(results[replica::replicas]).sum(0) for replica in range(replicas)]
    if len(results) == 1:
        return results[0]
    return torch.cat(results) if results[0].dim() else torch.stack(results)


def _on_host(x: Tensor) -> Tensor:
    types = {torch.int64: torch.int32, torch.float64: torch.float32}
    return x.detach().to(types.get(x.dtype, x.dtype)).clone()
