"""One call of an executable: micro-batches in order, gradients accumulated, one update per device iteration."""

import contextlib

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from poptorch import arithmetic
from poptorch.half import HalfOnCpu
from poptorch.kinds import OutputMode, refusal
from poptorch.poptorch_core import STATE

AT_ONCE = 64
"""Micro-batches in one vectorised pass."""
RANDOM = ("rand", "dropout", "bernoulli", "normal", "uniform", "exponential", "multinomial")


class PlainCrossEntropy(TorchFunctionMode):
    """Cross-entropy in simpler operations: torch 2.0 cannot vectorise an ignored label (-100) in its own."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not functional.cross_entropy or kwargs.get("reduction") != "none":
            return func(*args, **kwargs)
        logits, labels = args
        kept = labels != kwargs.get("ignore_index", -100)
        scores = torch.log_softmax(logits, 1).gather(1, torch.where(kept, labels, 0).unsqueeze(1)).squeeze(1)
        return torch.where(kept, -scores, 0.0)


class Runner:
    def __init__(self, executable):
        self._of = executable
        self._half = any(x.dtype == torch.float16 for x in executable.weights.values())
        random = any(part in name for name in executable.program.ops for part in RANDOM)
        half_sums = executable.training and executable.attributes.accum_type_half
        # A sum of fp32 gradients is the gradient of the summed losses: many micro-batches in one pass.
        self._at_once = 1 if self._half or half_sums or random else AT_ONCE

    def run(self, inputs):
        of, results = self._of, []
        per_update = of.accumulation * of.replicas
        for first in range(0, of.iterations * per_update, per_update):
            sums = {}
            for at in range(0, per_update, self._at_once):
                parts = range(first + at, first + min(at + self._at_once, per_update))
                results += self._pass([of.micro_batch(inputs, part) for part in parts], sums, at)
            if of.training:
                self._update(sums)
        mode = OutputMode(of.options["output_mode"])
        outputs = tuple(_returned(list(made), of.replicas, mode) for made in zip(*results))
        return outputs[0] if of.single_output else outputs

    def _pass(self, batches, sums, count):
        with HalfOnCpu() if self._half else contextlib.nullcontext():
            if len(batches) > 1:
                with torch.set_grad_enabled(self._of.training), PlainCrossEntropy():
                    stacked, loss = torch.func.vmap(self._forward)(*map(torch.stack, zip(*batches)))
                outputs = [[x[at] for x in stacked] for at in range(len(batches))]
            else:
                made, loss = self._forward(*batches[0])
                outputs = [made]
            if self._of.training:
                self._accumulate(loss, sums, count)
        return [[_on_host(x) for x in made] for made in outputs]

    def _forward(self, *leaves):
        outputs = self._of.forward(leaves)
        loss = STATE.losses[0] if self._of.training else torch.zeros(())
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs), loss

    def _accumulate(self, loss, sums, count):
        of = self._of
        if not loss.requires_grad:
            raise refusal("the final loss depends on no parameter")
        seed = torch.full_like(loss, of.attributes.loss_scaling)
        wanted = [of.weights[name] for name in of.groups]
        for name, gradient in zip(of.groups, torch.autograd.grad(loss, wanted, seed, allow_unused=True)):
            if gradient is not None:
                sums[name] = self._sum(sums.get(name), gradient.float(), count)

    def _sum(self, before, gradient, count):
        if not self._of.attributes.accum_type_half:
            return gradient.clone() if before is None else before.add_(gradient)
        old = torch.zeros_like(gradient) if before is None else before.float()
        # A sum of many would leave the range of fp16, so a mean is kept as it grows.
        return (old + (gradient - old) / (count + 1)).half()

    @torch.no_grad()
    def _update(self, sums):
        of = self._of
        of.ensure_state()
        parts = 1 if of.attributes.accum_type_half else of.accumulation * of.replicas
        gradients = {name: x.float() / (of.attributes.loss_scaling * parts) for name, x in sums.items()}
        for name, gradient in arithmetic.clip(gradients, of.attributes.max_grad_norm).items():
            arithmetic.update(of.attributes, of.groups[name], name, of.weights[name], gradient, of.state)


def _returned(results, replicas, mode):
    """Outputs of every micro-batch, in order of execution (replicas innermost) -> one tensor for the host."""
    if mode == OutputMode.Final:
        results = results[-replicas:]
    elif mode == OutputMode.Sum:
        results = [torch.stack(results[replica::replicas]).sum(0) for replica in range(replicas)]
    if len(results) == 1:
        return results[0]
    return torch.cat(results) if results[0].dim() else torch.stack(results)


def _on_host(x):
    types = {torch.int64: torch.int32, torch.float64: torch.float32}
    return x.detach().to(types.get(x.dtype, x.dtype)).clone()
