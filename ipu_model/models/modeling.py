"""Encoders with a head, their initial weights, and the parameters exempt from weight decay."""

from __future__ import annotations

import hashlib
import math
from typing import List, Optional

import torch
from torch import Tensor, nn

from ipu_model import heads
from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.layers import WORDS
from ipu_model.models.transformers_encoder import FlatModel


def build_model(head: str, config: ModelConfig, labels: int = 0) -> nn.Module:
    """Build a model with uninitialised weights: call initialise or load_state_dict next.

    `labels` is the number of classes of a head with classes, else 0.
    """
    return families.get_family(config.family).build(heads.get_head(head), config, labels)


def initialise(model: nn.Module, config: ModelConfig, seed: int, only: Optional[List[str]] = None) -> None:
    """Initialise parameters, or `only` some: weights normal as Family.initial_spread says, biases 0, LayerNorm 1 and 0.

    Every parameter has its own generator, seeded by (seed, name): weights are the same on every runtime and do not
    depend on which other parameters are initialised.
    """
    if isinstance(model, FlatModel):
        model.draw_weights(seed)
        return
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only is not None and name not in only:
                continue
            if name.endswith("bias"):
                parameter.zero_()
            elif "LayerNorm" in name:
                parameter.fill_(1.0)
            else:
                digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") % 2**63)
                std, most = families.get_family(config.family).initial_spread(name, config)
                if math.isinf(most):
                    values = torch.empty(parameter.shape).normal_(0, std, generator=generator)
                else:  # by the inverse of the normal distribution: torch 2.0 has trunc_normal_ without a generator
                    edge = math.erf(most / math.sqrt(2))
                    values = torch.empty(parameter.shape).uniform_(-edge, edge, generator=generator).erfinv_()
                    values.mul_(std * math.sqrt(2)).clamp_(-most * std, most * std)
                parameter.copy_(values)
        if only is None or WORDS in only:
            model.get_parameter(WORDS)[config.pad_id].zero_()  # as Hugging Face's padding_idx


def is_exempt(weight: Tensor) -> bool:
    """Return whether a parameter has no weight decay and no trust ratio: biases and norms, which are vectors."""
    return weight.dim() < 2
