"""The encoder of BERT (arXiv 1810.04805) in plain torch, with Hugging Face's parameter names.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, A heads, N sequences.

The model is written over "tokens" and does not care how they are laid out: the leading dimensions are [T]
on runtimes that drop pads and [B, L] on those that need fixed shapes. Only attention knows (attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ipu_model.models.config import ModelConfig
from ipu_model.models.dropout import add_dropped, drop, mask_for

Attention = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
"""(query, key, value, heads, dropout) -> context, all [..., H]."""


@dataclass(frozen=True)
class Tokens:
    """What the encoder reads."""

    input_ids: Tensor
    """[...] int64, as the two below."""
    token_type_ids: Tensor
    position_ids: Tensor
    attention: Attention


class Dense(nn.Linear):
    """nn.Linear whose product may be computed with a low-precision copy of its weight (precision.py)."""

    copy: Optional[Tensor] = None
    """[out, in], a leaf that gathers the gradient; None: the weight itself."""

    @property
    def factor(self) -> Tensor:
        """What the product is computed with."""
        return self.weight if self.copy is None else self.copy

    def forward(self, values: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the precision of `factor`."""
        return nn.functional.linear(values.to(self.factor.dtype), self.factor, self.bias.to(self.factor.dtype))


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_positions, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [..., H]. Tables stay in fp32: hundreds of tokens add to one line of their gradient."""
        summed = self.word_embeddings(tokens.input_ids) + self.token_type_embeddings(tokens.token_type_ids)
        summed = summed + self.position_embeddings(tokens.position_ids)
        dropout = self.dropout if self.training else 0.0
        return drop(self.LayerNorm(summed), mask_for(summed, dropout), dropout)


class SelfAttention(nn.Module):
    """Projections around the attention of the layout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = Dense(config.hidden_size, config.hidden_size)
        self.key = Dense(config.hidden_size, config.hidden_size)
        self.value = Dense(config.hidden_size, config.hidden_size)
        self.heads, self.dropout = config.num_heads, config.attention_dropout

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return attention(self.query(hidden), self.key(hidden), self.value(hidden), self.heads, dropout)


class Residual(nn.Module):
    """LayerNorm(residual + dropout(dense(inner))), the end of both halves of a layer."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Dense(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, inner: Tensor, residual: Tensor, keep: Optional[Tensor], dropout: float) -> Tensor:
        """[..., I], [..., H] -> [..., H]; `keep` is the mask of the dropout."""
        summed = add_dropped(residual, self.dense(inner), keep, dropout)
        return normalise(summed, self.LayerNorm.weight, self.LayerNorm.bias, self.LayerNorm.eps)


def normalise(values: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """LayerNorm of [..., H], in fp32 inside; the result is as precise as `values`."""
    if values.dtype == scale.dtype or values.device.type == "cpu":  # where both precisions may meet in one kernel
        return nn.functional.layer_norm(values, scale.shape, scale, shift, eps)
    return nn.functional.layer_norm(values.to(scale.dtype), scale.shape, scale, shift, eps).to(values.dtype)


class Layer(nn.Module):
    """One encoder layer. The nesting of modules only serves Hugging Face's parameter names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention: Any = nn.ModuleDict(
            {"self": SelfAttention(config), "output": Residual(config.hidden_size, config)}
        )
        self.intermediate = nn.ModuleDict({"dense": Dense(config.hidden_size, config.intermediate_size)})
        self.output = Residual(config.intermediate_size, config)
        self.dropout = config.hidden_dropout

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        """[..., H] -> [..., H]."""
        context = self.attention["self"](hidden, attention)
        dropout = self.dropout if self.training else 0.0
        keep_attention, keep_output = mask_for(hidden, dropout), mask_for(hidden, dropout)
        hidden = self.attention["output"](context, hidden, keep_attention, dropout)
        inner = nn.functional.gelu(self.intermediate["dense"](hidden))  # erf, as BERT was trained
        return self.output(inner, hidden, keep_output, dropout)


class Bert(nn.Module):
    """Embeddings and encoder; the pooler only where a head reads it."""

    recompute = False
    """Whether training keeps the input of each layer alone and computes the layer once more on the way back, dropout
    included: the same numbers from less memory and more time."""

    def __init__(self, config: ModelConfig, pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        if pooler:
            self.pooler = nn.ModuleDict({"dense": Dense(config.hidden_size, config.hidden_size)})

    @property
    def precision(self) -> torch.dtype:
        """Precision of products and of what flows between layers."""
        layers: Any = self.encoder["layer"]
        return layers[0].attention["self"].query.factor.dtype

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [..., H]."""
        hidden = self.embeddings(tokens).to(self.precision)
        for layer in self.encoder["layer"].children():
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, tokens.attention, use_reentrant=False)
            else:
                hidden = layer(hidden, tokens.attention)
        return hidden

    def pool(self, first_tokens: Tensor) -> Tensor:
        """[N, H] of the [CLS] tokens -> [N, H]."""
        return torch.tanh(self.pooler["dense"](first_tokens))
