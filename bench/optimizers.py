"""Optimizer step alone, on the parameters of a pre-training model: ours, and plain loops for comparison."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from bench.protocol import Session, Stopwatch
from bench.setup import OPTIMIZER, SEED, make_model_config
from ipu_model.models.modeling import build_model, initialise, is_exempt
from ipu_model.optim.optimizers import BlockedAdamW, make_optimizer
from ipu_model.runtimes.compilation import compile_optimizer
from ipu_model.runtimes.host import keep_freed_memory


class PlainLamb(torch.optim.Optimizer):
    """Plain LAMB, tensor by tensor: the formula of optim.optimizers.Lamb with bias correction."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__(groups, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step_of(weight, group)

    def _step_of(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state.update(step=0, first=torch.zeros_like(weight), second=torch.zeros_like(weight))
        state["step"] += 1
        first, second, beta1, beta2 = state["first"], state["second"], group["beta1"], group["beta2"]
        first.mul_(beta1).add_(weight.grad, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
        root = (second / (1 - beta2 ** state["step"])).sqrt() + group["eps"]
        direction = first / (1 - beta1 ** state["step"]) / root + group["weight_decay"] * weight
        ratio = 1.0
        if group["trust_ratio"]:
            weight_norm, direction_norm = float(weight.norm()), float(direction.norm())
            ratio = weight_norm / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
        weight.add_(direction, alpha=-group["lr"] * ratio)


def measure_steps(spec: dict[str, Any], session: Session) -> None:
    """Measure steps with fixed gradients; units are steps."""
    keep_freed_memory()  # for both sides, to compare the computation only
    torch.set_num_threads(spec["threads"])
    config = make_model_config(spec["size"])
    model = build_model("pretraining", config)
    initialise(model, config, SEED)
    optimizer = make_by_name(spec["settings"]["optimizer"], model)
    if isinstance(optimizer, BlockedAdamW):
        if spec["settings"].get("compile", "none") != "none":
            compile_optimizer(optimizer, os.environ, lambda text: print(text, file=sys.stderr))
        optimizer.rehearse()
    set_gradients(model)
    for _ in range(spec["warmup"]):
        optimizer.step()
    watch = Stopwatch()
    while session.next_round(parameters=sum(p.numel() for p in model.parameters())):
        samples = []
        watch.start()
        for _ in range(spec["updates"]):
            optimizer.step()
            samples.append(watch.sample(1))
        session.report(samples)


def set_gradients(model: nn.Module) -> None:
    """Set small random gradients, the same on every call, with a norm of about 1 over the model."""
    generator = torch.Generator().manual_seed(SEED)
    scale = 1 / math.sqrt(sum(p.numel() for p in model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter).normal_(0, scale, generator=generator)


def make_by_name(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Make an optimizer. lamb, adamw: as in a job; lamb-plain, adamw-plain: tensor by tensor."""
    if not name.endswith("-plain"):
        return make_optimizer(dataclasses.replace(OPTIMIZER, name=name), model)
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in named if not is_exempt(p)], "weight_decay": OPTIMIZER.weight_decay},
        {"params": [p for _, p in named if is_exempt(p)], "weight_decay": 0.0},
    ]
    lr, betas, eps = OPTIMIZER.learning_rate, (OPTIMIZER.beta1, OPTIMIZER.beta2), OPTIMIZER.eps
    if name == "adamw-plain":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, foreach=False, fused=False)
    groups[0]["trust_ratio"], groups[1]["trust_ratio"] = True, False
    return PlainLamb(groups, lr, *betas, eps)
