"""Optimizers of the torch runtimes, including LAMB, and gradient clipping.

AdamW and LAMB on a CPU process the model block by block, so that each number crosses the memory bus only once. torch's
fused Adam kernel runs on blocks that fit the cache. The operations before it (gradients to fp32, clipping) and after it
(LAMB's norms, the low-precision copy) then find the block in the cache. Tensor by tensor, each operation would be a
pass over the whole model, and a step over 110 million weights is bound by memory traffic: 28 bytes per weight instead
of 52 (AdamW), 44 instead of about 140 (LAMB).
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.modeling import is_exempt

BLOCK = 1 << 18
"""Numbers per block, 1 MB of each tensor of an update: smaller blocks fit the cache better, larger ones need fewer
calls; 65,536 took 5% longer."""
Squares = Tuple[List[Tensor], List[Tensor]]
"""Squared norms of parts of a weight and of its direction."""
LATE = 1e7
"""A step count at which 1 - beta^step is 1: no bias correction."""
PLAIN: Dict[str, Any] = {"amsgrad": False, "maximize": False, "grad_scale": None, "found_inf": None}


class MomentOptimizer(torch.optim.Optimizer):
    """Base of AdamW and LAMB, with two moments per parameter, in fp32.

    Args:
        eps: Added to the root of the second moment.
        weight_decay: In LAMB a part of the direction, hence also scaled by the trust ratio.
        bias_correction: Divide the moments by 1 - beta^t.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ) -> None:
        rates: Dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "bias_correction": bias_correction, "trust_ratio": True})

    def moments_of(self, weight: Tensor) -> Dict[str, Tensor]:
        """Return `step` (0-dim), `exp_avg` and `exp_avg_sq` of a weight; zeros before its first update."""
        state: Dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state


class Lamb(MomentOptimizer):
    """Layer-wise adaptive moments (You et al., arXiv 1904.00962, algorithm 2), with `torch._foreach`.

    For each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
        u = m' / (sqrt(v') + eps) + weight_decay w,   where m', v' are bias-corrected if requested
        w = w - lr * ratio * u,   ratio = phi(|w|) / |u|, or 1 where either norm is 0

    phi is the identity; PopTorch makes it min(|w|, the largest fp16 number). Groups with `trust_ratio=False`
    (biases, LayerNorm) take ratio 1, which makes them AdamW (arXiv 1711.05101).
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                directions = self._directions(weights, group)
                if group["trust_ratio"]:
                    # Stack the norms, so that an accelerator computes all ratios without waiting for the host.
                    norms, steps = (torch.stack(list(torch._foreach_norm(x))) for x in (weights, directions))
                    ratios = torch.where((norms > 0) & (steps > 0), norms / steps, torch.ones_like(norms))
                    for direction, ratio in zip(directions, ratios):
                        direction.mul_(ratio)
                torch._foreach_add_(weights, directions, alpha=-group["lr"])

    def _directions(self, weights: List[Tensor], group: Dict[str, Any]) -> List[Tensor]:
        """Advance the moments of `weights` and return u of the class, one tensor per weight."""
        moments = [self.moments_of(weight) for weight in weights]
        steps, first, second = ([x[name] for x in moments] for name in ("step", "exp_avg", "exp_avg_sq"))
        gradients = [w.grad for w in weights if w.grad is not None]
        beta1, beta2 = group["betas"]
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, gradients, alpha=1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        torch._foreach_add_(steps, 1)
        step = float(steps[0])  # equal for all weights of a run
        correction1 = 1 - beta1**step if group["bias_correction"] else 1.0
        correction2 = 1 - beta2**step if group["bias_correction"] else 1.0
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, correction2**0.5)
        torch._foreach_add_(denominators, group["eps"])
        directions = torch._foreach_div(first, denominators)
        torch._foreach_div_(directions, correction1)
        if group["weight_decay"]:
            torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
        return list(directions)


class BlockedAdamW(MomentOptimizer):
    """AdamW (arXiv 1711.05101) in blocks; its parameters, in fp32 on the CPU, are contiguous.

    Gradients of low-precision copies of the parameters are added, and each step updates the copies.
    """

    def __init__(self, params: Any, copies: Optional[LowPrecisionCopies] = None, **rates: Any) -> None:
        super().__init__(params, **rates)
        self._copies: Dict[Tensor, Tensor] = {} if copies is None else dict(copies.pairs)
        self._scale = 1.0
        self._buffer = torch.empty(BLOCK)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Add a group; torch's own method loads torch's compiler, which takes more than a second."""
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None; torch's own method loads the compiler as well."""
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, or whose copy has one."""
        for group in self.param_groups:
            for weight in group["params"]:
                copy = self._copies.get(weight)
                gradients = [x.grad.view(-1) for x in (weight, copy) if x is not None and x.grad is not None]
                if gradients:
                    self.moments_of(weight)["step"] += 1
                    self._update(weight, gradients, None if copy is None else copy.view(-1), group)

    def clip(self, gradients: List[Tensor], max_norm: Optional[float]) -> Tensor:
        """Return the norm of all gradients; the next step scales them to a norm of at most `max_norm`."""
        norm = float(torch.stack([_squared_norm(x.view(-1)) for x in gradients]).sum().sqrt())
        self._scale = max_norm / (norm + 1e-6) if max_norm is not None and norm > max_norm else 1.0
        return torch.tensor(norm)

    def rehearse(self) -> None:
        """Build compiled functions before the first step."""

    def _update(self, weight: Tensor, gradients: List[Tensor], copy: Optional[Tensor], group: Dict[str, Any]) -> None:
        flat = weight.view(-1)
        for block in split_blocks(len(flat)):
            target = flat[block]
            gradient = self._gradient(gradients, block)
            self._adam(target, weight, gradient, block, group, group["lr"], group["weight_decay"])
            if copy is not None:
                copy[block].copy_(target)

    def _gradient(self, gradients: List[Tensor], block: slice) -> Tensor:
        first = gradients[0][block]
        if len(gradients) == 1 and first.dtype == torch.float32 and self._scale == 1.0:
            return first
        total = self._buffer[: len(first)].copy_(first)
        for other in gradients[1:]:
            total.add_(other[block])
        return total.mul_(self._scale) if self._scale != 1.0 else total

    def _adam(
        self,
        target: Tensor,
        weight: Tensor,
        gradient: Tensor,
        block: slice,
        group: Dict[str, Any],
        lr: float,
        decay: float,
    ) -> None:
        """Advance the moments m, v of a block; target = target (1 - lr decay) - lr m' / (sqrt(v') + eps)."""
        state = self.state[weight]
        step = state["step"] if group["bias_correction"] else torch.tensor(LATE)
        first, second = ([state[name].view(-1)[block]] for name in ("exp_avg", "exp_avg_sq"))
        rates = {"lr": lr, "weight_decay": decay, "eps": group["eps"], **dict(zip(("beta1", "beta2"), group["betas"]))}
        torch._fused_adamw_([target], [gradient], first, second, [], [step], **rates, **PLAIN)


class BlockedLamb(BlockedAdamW):
    """LAMB (arXiv 1904.00962) in blocks, with the formulas of Lamb; without a trust ratio it equals AdamW.

    A step of BERT base with fp32 gradients took 380 ms on one core of a Xeon (Sapphire Rapids), 760 ms tensor by
    tensor, and 265 ms with `advance` compiled (`make bench`, case lamb-base).
    """

    advance: Optional[Callable[..., Sequence[Tensor]]] = None
    """Compiled advance_lamb, which processes a whole tensor in one pass. None: process blocks."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        largest = max(weight.numel() for group in self.param_groups for weight in group["params"])
        self._directions = torch.empty(largest)
        self._scalars: Tuple[Tuple[float, ...], Tuple[Tensor, ...]] = ((), ())

    def rehearse(self) -> None:
        """Build `advance` for all types of gradients, on dummy tensors."""
        if self.advance is not None:
            for dtype in sorted({torch.float32, *(copy.dtype for copy in self._copies.values())}, key=str):
                weight, first, second, directions = (torch.zeros(BLOCK) for _ in range(4))
                state = {"exp_avg": first, "exp_avg_sq": second, "step": 1.0}
                self._advance_tensor(weight, torch.zeros(BLOCK, dtype=dtype), state, directions, self.param_groups[0])

    def _update(self, weight: Tensor, gradients: List[Tensor], copy: Optional[Tensor], group: Dict[str, Any]) -> None:
        if not group["trust_ratio"]:
            super()._update(weight, gradients, copy, group)
            return
        flat, directions = weight.view(-1), self._directions[: weight.numel()]
        # For smaller tensors the call itself would take longer.
        if self.advance is not None and len(gradients) == 1 and weight.numel() >= BLOCK:
            squares = self._advance_tensor(flat, gradients[0], self.state[weight], directions, group)
        else:
            squares = self._advance_blocks(weight, gradients, directions, group)
        norm, size = (float(torch.stack(parts).double().sum().sqrt()) for parts in squares)
        rate = group["lr"] * (norm / size if norm > 0 and size > 0 else 1.0)
        if copy is None:
            flat.sub_(directions, alpha=rate)
            return
        for target, direction, low in zip(flat.split(BLOCK), directions.split(BLOCK), copy.split(BLOCK)):
            low.copy_(target.sub_(direction, alpha=rate))

    def _advance_blocks(
        self, weight: Tensor, gradients: List[Tensor], directions: Tensor, group: Dict[str, Any]
    ) -> Squares:
        of_weight, of_direction = [], []
        parts = zip(weight.view(-1).split(BLOCK), directions.split(BLOCK), split_blocks(weight.numel()))
        for values, target, block in parts:
            # Start at decay * w, so that an Adam step with rate -1 gives u.
            torch.mul(values, group["weight_decay"], out=target)
            self._adam(target, weight, self._gradient(gradients, block), block, group, -1.0, 0.0)
            of_weight.append(values.dot(values))
            of_direction.append(target.dot(target))
        return of_weight, of_direction

    def _advance_tensor(
        self, flat: Tensor, gradient: Tensor, state: Mapping[str, Any], directions: Tensor, group: Dict[str, Any]
    ) -> Squares:
        assert self.advance is not None
        (beta1, beta2), step = group["betas"], float(state["step"])
        corrections = [1 / (1 - beta**step) if group["bias_correction"] else 1.0 for beta in (beta1, beta2)]
        values = (self._scale, 1 - beta1, 1 - beta2, *corrections, group["eps"], group["weight_decay"])
        if self._scalars[0] != values:
            # Pass tensors, because values that change between steps must not be compiled in as constants.
            self._scalars = (values, tuple(torch.tensor(x) for x in values))
        first, second = (state[name].view(-1) for name in ("exp_avg", "exp_avg_sq"))
        squares = self.advance(flat, gradient, first, second, directions, *self._scalars[1])
        return [squares[0]], [squares[1]]


def advance_lamb(
    weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, directions: Tensor, *scalars: Tensor
) -> Tuple[Tensor, Tensor]:
    """Advance the moments of one tensor [n] and write u into `directions`; return the squared norms of weight and u.

    `scalars` are the scale of the gradient; 1 - beta, twice; 1 / (1 - beta^t) or 1, twice (factors, because divisions
    are slow); eps; weight decay.
    """
    scale, rate1, rate2, correction1, correction2, eps, decay = scalars
    gradient = gradient.float() * scale
    moment1 = first + (gradient - first) * rate1
    moment2 = second + (gradient * gradient - second) * rate2
    direction = (moment1 * correction1) / ((moment2 * correction2).sqrt() + eps) + decay * weight
    first.copy_(moment1)
    second.copy_(moment2)
    # Write the same value that is summed: for its negative, inductor stored both, which took 1.4 to 2 times as long.
    directions.copy_(direction)
    return (weight * weight).sum(), (direction * direction).sum()


def _squared_norm(values: Tensor) -> Tensor:
    """Return the squared L2 norm of [n] in fp64."""
    # vector_norm returns bf16 for bf16, and with another dtype it first copies the whole tensor.
    parts = (values[block].float() for block in split_blocks(len(values)))
    return torch.stack([part.dot(part) for part in parts]).double().sum()


def split_blocks(count: int) -> List[slice]:
    """Split `count` numbers into blocks: split_blocks(300_000) == [slice(0, 262144), slice(262144, 300000)]."""
    return [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]


def make_optimizer(
    config: OptimizerConfig, model: nn.Module, copies: Optional[LowPrecisionCopies] = None
) -> torch.optim.Optimizer:
    """Make the optimizer of a job in its fastest form. Biases and LayerNorm get no weight decay and no trust ratio.

    The weight decay of adamw and lamb is decoupled from the gradient; that of adam and sgd is an L2 penalty in the
    gradient. sgd has one moment without bias correction, and ignores betas, eps and bias_correction.

    Raises:
        ConfigError: adam without bias correction.
    """
    if config.name == "adam" and not config.bias_correction:
        raise ConfigError(
            "optimizer.bias_correction=false with adam: Adam always corrects. "
            "Set bias_correction to true, or use adamw or lamb, which support it"
        )
    decayed = [p for p in model.parameters() if not is_exempt(p)]
    exempt = [p for p in model.parameters() if is_exempt(p)]
    groups: List[Dict[str, Any]] = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
    shared: Dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **shared)
    shared.update(betas=(config.beta1, config.beta2), eps=config.eps)
    if config.name == "adam":
        return torch.optim.Adam(groups, **shared)
    groups[1]["trust_ratio"] = False
    device = decayed[0].device.type
    if device == "cpu" and decayed[0].dtype == torch.float32 and _has_fused_adamw(device):
        blocked = BlockedLamb if config.name == "lamb" else BlockedAdamW
        return blocked(groups, bias_correction=config.bias_correction, copies=copies, **shared)
    if config.name == "lamb" or not config.bias_correction:  # torch's AdamW always corrects
        groups[0]["trust_ratio"] = config.name == "lamb"
        return Lamb(groups, bias_correction=config.bias_correction, **shared)
    return torch.optim.AdamW(groups, fused=True if _has_fused_adamw(device) else None, **shared)


@functools.lru_cache(maxsize=None)
def _has_fused_adamw(device: str) -> bool:
    """Try the kernel on one number: torch before 2.4 has none for CPUs, and its AdamW would load the compiler first."""
    weight, gradient, first, second, step = ([torch.zeros((), device=device)] for _ in range(5))
    rates: Dict[str, Any] = {"lr": 0.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1.0}
    try:
        torch._fused_adamw_(weight, gradient, first, second, [], step, **rates, **PLAIN)
    except RuntimeError:
        return False
    return True


def clip_gradients(gradients: List[Tensor], max_norm: Optional[float]) -> float:
    """Scale gradients to a global L2 norm of at most `max_norm`; None leaves them unchanged.

    Return the norm before clipping. If a gradient is NaN or infinite, so is the norm: the gradients are then useless,
    and the loss check stops the run.
    """
    norm = float(torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients)))))
    if max_norm is not None and norm > max_norm:
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> Dict[str, Tensor]:
    """Return the state as named tensors ('bert....weight/exp_avg' and so on), independent of the order of groups."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD without momentum stores None
                tensors[f"{name}/{key}"] = value.detach().clone().contiguous()
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Dict[str, Tensor]) -> None:
    """Set the state of an optimizer from the result of optimizer_tensors.

    Raises:
        CheckpointError: the model lacks a parameter of the state.
    """
    parameters = dict(model.named_parameters())
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"the optimizer state has {name}, which this model does not have")
        optimizer.state[parameters[name]][key] = value.clone()
