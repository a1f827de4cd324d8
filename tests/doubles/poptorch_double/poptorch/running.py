"""One call of an executable: micro-batches in order, gradients accumulated, one update per device iteration."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from poptorch import arithmetic
from poptorch.enums import OutputMode
from poptorch.errors import refusal
from poptorch.half import HalfOnCpu
from poptorch.outputs import returned
from poptorch.program import LossWatch, is_random
from poptorch.state import STATE

AT_ONCE = 64
"""Micro-batches in one vectorised pass."""


class PlainCrossEntropy(TorchFunctionMode):
    """Cross-entropy in simpler operations: torch 2.0 cannot vectorise an ignored label (-100) in its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        more = ("weight", "size_average", "reduce", "label_smoothing")
        if func is not functional.cross_entropy or len(args) != 2 or any(kwargs.get(name) for name in more):
            return func(*args, **kwargs)
        logits, labels = args
        kept = labels != kwargs.get("ignore_index", -100)
        scores = torch.log_softmax(logits, 1).gather(1, torch.where(kept, labels, 0).unsqueeze(1)).squeeze(1)
        losses = torch.where(kept, -scores, 0.0)
        reduction = kwargs.get("reduction", "mean")
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else losses.sum() / kept.sum()


class Runner:
    """Runs an executable on its inputs.

    Args:
        executable: Compiled and checked.
    """

    def __init__(self, executable: Any) -> None:
        self._of = executable
        halves = any(x.dtype == torch.float16 for x in executable.weights.values())
        implicit = executable.training and executable.loss[1]
        random = any(is_random(name) for name in executable.program.ops)
        half_sums = executable.training and executable.attributes.accum_type_half
        self._half, self._implicit = halves, implicit
        # A sum of fp32 gradients is the gradient of the summed losses: many micro-batches in one pass.
        self._together = not (halves or half_sums or implicit or random or executable.changed)

    def run(self, inputs: Any) -> Any:
        """All device iterations, accumulation steps and replicas of one call."""
        of = self._of
        leaves = tree_flatten(inputs)[0]
        results: List[List[Tensor]] = []
        for iteration in range(of.iterations):
            sums: Dict[str, Tensor] = {}
            parts = [self._part(iteration, *at) for at in product(range(of.accumulation), range(of.replicas))]
            size = AT_ONCE if self._together else 1
            for at in range(0, len(parts), size):
                results += self._pass(leaves, parts[at : at + size], sums, at)
            if of.training:
                self._update(sums)
        mode, period = OutputMode(of.options["output_mode"]), of.options["output_return_period"]
        outcomes = zip(zip(*results), of.outputs_vary)
        reduced = (returned(list(made), of.replicas, mode, period) if varies else made[-1] for made, varies in outcomes)
        outputs = [next(reduced) if isinstance(x, Tensor) else x for x in of.output_leaves]
        return tree_unflatten(outputs, of.output_structure)

    def _part(self, iteration: int, step: int, replica: int) -> int:
        of = self._of
        orthogonal = of.options["input_cgt"] == 2  # CommGroupType.Orthogonal
        group = replica % of.input_groups if orthogonal else replica // of.options["input_group_size"]
        return int((iteration * of.accumulation + step) * of.input_groups + group)

    def _pass(self, leaves: List[Any], parts: List[int], sums: Dict[str, Tensor], count: int) -> List[List[Tensor]]:
        """Forward and backward of some micro-batches; their outputs."""
        with self._modes():
            if len(parts) > 1:
                outputs, loss = self._vectorised(leaves, parts)
            else:
                made, loss = self._forward(self._of.micro_batch(leaves, parts[0]))
                outputs = [made]
            if self._of.training:
                self._accumulate(loss, sums, count)
        return [[_on_host(x) for x in made] for made in outputs]

    def _forward(self, leaves: List[Any]) -> Tuple[List[Tensor], Optional[Tensor]]:
        STATE.losses = []
        outputs = self._of.forward(leaves)
        if not self._of.training:
            return outputs, None
        number, implicit = self._of.loss
        marked = [x for x, name, _ in STATE.losses if implicit or name == "identity_loss"]
        return outputs, marked[number]

    def _vectorised(self, leaves: List[Any], parts: List[int]) -> Tuple[List[List[Tensor]], Optional[Tensor]]:
        batches = [self._of.micro_batch(leaves, part) for part in parts]
        where = [at for at, x in enumerate(batches[0]) if isinstance(x, Tensor)]
        stacked = [torch.stack([batch[at] for batch in batches]) for at in where]

        def one(*tensors: Tensor) -> Tuple[Tuple[Tensor, ...], Tensor]:
            filled = list(batches[0])
            for at, tensor in zip(where, tensors):
                filled[at] = tensor
            outputs, loss = self._forward(filled)
            return tuple(outputs), torch.zeros(()) if loss is None else loss

        with torch.set_grad_enabled(self._of.training), PlainCrossEntropy():
            outputs, losses = torch.func.vmap(one)(*stacked)
        return [[x[at] for x in outputs] for at in range(len(parts))], losses

    def _accumulate(self, loss: Optional[Tensor], sums: Dict[str, Tensor], count: int) -> None:
        of = self._of
        if loss is None or not loss.requires_grad:
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
        of.record["weight_updates"] += 1

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._half:
                stack.enter_context(HalfOnCpu())
            if self._implicit:
                stack.enter_context(LossWatch())
            yield


def _on_host(x: Tensor) -> Tensor:
    types = {torch.int64: torch.int32, torch.float64: torch.float32}
    return x.detach().to(types.get(x.dtype, x.dtype)).clone()
