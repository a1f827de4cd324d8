"""Encoder of BERT (arXiv 1810.04805) and its relatives in plain torch, with Hugging Face's parameter names of BERT.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, E embedding size (mostly
H), A heads, N sequences.

The model works on "tokens" in any layout: the leading dimensions are [T] on runtimes that drop padding, and [B, L] on
those that need fixed shapes. Only attention depends on the layout (flat.py).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.families.modernbert import list_layers
from ipu_model.models.layers import Attention, Dense, Tokens, add_dropped, draw_mask_for, drop, make_norm, normalise
from ipu_model.models.rotary import RotaryAttention, RotaryLayer

ACTIVATIONS: Dict[str, Any] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}


class Embeddings(nn.Module):
    """Normalised sum of word, position and token type embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.offset = config.table_width, config.position_offset
        values = rotary_values(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_id)
        self.position_embeddings = None if values else nn.Embedding(config.max_positions + self.offset, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.LayerNorm = make_norm(width, config.layer_norm_eps, values.get("norm_bias", True))
        self.dropout = values.get("embedding_dropout", config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tensor:
        """Embed [...] -> [..., E]. Tables stay in fp32: hundreds of tokens add to one row of their gradient."""
        summed = self.word_embeddings(tokens.input_ids)
        if self.token_type_embeddings is not None:
            summed = summed + self.token_type_embeddings(tokens.token_type_ids)
        if self.position_embeddings is not None:
            summed = summed + self.position_embeddings(shift_positions(tokens.position_ids, self.offset))
        dropout = self.dropout if self.training else 0.0
        return drop(self.LayerNorm(summed), draw_mask_for(summed, dropout), dropout)


def rotary_values(config: ModelConfig) -> Dict[str, Any]:
    """Return the content of config.json for a model with rotary positions, else {}."""
    family = families.get_family(config.family)
    return family.write_values(config) if family.rotary else {}


def find_thetas(config: ModelConfig) -> List[float]:
    """Return the base of the rotation of each layer, for a model with rotary positions, else []."""
    values = rotary_values(config)
    return [theta for theta, _ in list_layers(values, config.num_layers)] if values else []


def shift_positions(positions: Tensor, offset: int) -> Tensor:
    """Return the positions in the table of positions; without an offset, nothing is computed."""
    return positions + offset if offset else positions


class SelfAttention(nn.Module):
    """Projections for query, key and value around the attention of the layout."""

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
    """End of both halves of a layer: LayerNorm(residual + dropout(dense(inner)))."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Dense(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, inner: Tensor, residual: Tensor, keep: Optional[Tensor], dropout: float) -> Tensor:
        """Compute [..., I], [..., H] -> [..., H]; `keep` is the dropout mask."""
        summed = add_dropped(residual, self.dense(inner), keep, dropout)
        return normalise(summed, self.LayerNorm)


class Layer(nn.Module):
    """One encoder layer. Modules are nested only for Hugging Face's parameter names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention: Any = nn.ModuleDict(
            {"self": SelfAttention(config), "output": Residual(config.hidden_size, config)}
        )
        self.intermediate = nn.ModuleDict({"dense": Dense(config.hidden_size, config.intermediate_size)})
        self.output = Residual(config.intermediate_size, config)
        self.dropout = config.hidden_dropout
        self.drops_attention = families.get_family(config.family).drops_attention

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        """Compute [..., H] -> [..., H]."""
        context = self.attention["self"](hidden, attention)
        dropout = self.dropout if self.training else 0.0
        after_attention = dropout if self.drops_attention else 0.0
        keep_attention, keep_output = draw_mask_for(hidden, after_attention), draw_mask_for(hidden, dropout)
        hidden = self.attention["output"](context, hidden, keep_attention, after_attention)
        inner = nn.functional.gelu(self.intermediate["dense"](hidden))  # erf, as BERT was trained
        return self.output(inner, hidden, keep_output, dropout)


def call_layer(layer: nn.Module, hidden: Tensor, attention: Attention) -> Tensor:
    """Compute [..., H] -> [..., H]."""
    result: Tensor = layer(hidden, attention)
    return result


def make_layer(config: ModelConfig, number: int) -> nn.Module:
    """Return a layer of the family of the model, with random weights."""
    values = rotary_values(config)
    return RotaryLayer(config, values, number) if values else Layer(config)


class Bert(nn.Module):
    """Embeddings and encoder, with the pooler only if a head reads it: all heads of a model with rotary positions."""

    recompute = False
    """True if training keeps only the input of each layer and recomputes the layer, with the same dropout, in the
    backward pass: the same numbers with less memory and more time."""
    run_layer: Callable[[nn.Module, Tensor, Any], Tensor] = staticmethod(call_layer)
    """Calls a layer with its input and the attention; compiled_layers.py replaces it."""

    def __init__(self, config: ModelConfig, pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        if config.table_width != config.hidden_size:
            self.embeddings_project: Any = Dense(config.table_width, config.hidden_size)
        else:
            self.embeddings_project = nn.Identity()
        family, values = families.get_family(config.family), rotary_values(config)
        norm = config.layer_norm_eps, values.get("norm_bias", True)
        layers = [make_layer(config, number) for number in range(config.num_layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        if values:
            self.encoder["LayerNorm"] = make_norm(config.hidden_size, *norm)
        if pooler:
            self.pooler = nn.ModuleDict(
                {"dense": Dense(config.hidden_size, config.hidden_size, values.get("classifier_bias", True))}
            )
            self.activation = ACTIVATIONS[values.get("classifier_activation", family.activation)]
            self.drops_first, self.pools_mean = family.drops_first, values.get("classifier_pooling") == "mean"
            if values:
                self.pooler["LayerNorm"] = make_norm(config.hidden_size, *norm)

    @property
    def precision(self) -> torch.dtype:
        """Precision of products and of activations between layers."""
        layers: Any = self.encoder["layer"]
        return layers[0].output.dense.factor.dtype

    def forward(self, tokens: Tokens) -> Tensor:
        """Encode [...] -> [..., H]."""
        hidden = self.embeddings_project(self.embeddings(tokens)).to(self.precision)
        attention: Any = tokens.attention
        if "LayerNorm" in self.encoder:
            attention = RotaryAttention(attention, tokens.position_ids)
        for layer in self.encoder["layer"].children():
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(self.run_layer, layer, hidden, attention, use_reentrant=False)
            else:
                hidden = self.run_layer(layer, hidden, attention)
        return normalise(hidden, self.encoder["LayerNorm"]) if "LayerNorm" in self.encoder else hidden

    def pool(self, hidden: Tensor) -> Tensor:
        """Transform the first tokens of the sequences, or their means, [N, H] -> [N, H]."""
        pooled = self.activation(self.pooler["dense"](hidden))
        return normalise(pooled, self.pooler["LayerNorm"]) if "LayerNorm" in self.pooler else pooled

    def select(self, hidden: Tensor, starts: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return what `pool` reads of each sequence, [T, H] -> [N, H]; starts [N] are their first tokens."""
        if not self.pools_mean:
            return hidden[starts]
        counts = torch.tensor(lengths, device=hidden.device)
        numbers = torch.repeat_interleave(torch.arange(len(starts), device=hidden.device), counts)
        wide = hidden[: len(numbers)].to(self.embeddings.LayerNorm.weight.dtype)
        sums = wide.new_zeros(len(starts), hidden.shape[1]).index_add(0, numbers, wide)
        return (sums / counts[:, None]).to(hidden.dtype)
