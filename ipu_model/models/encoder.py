"""Encoder of BERT (arXiv 1810.04805) and its relatives in plain torch, with Hugging Face's parameter names of BERT.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, E embedding size (mostly
H), A heads, N sequences.

The model works on "tokens" in any layout: the leading dimensions are [T] on runtimes that drop padding, and [B, L] on
those that need fixed shapes. Only attention depends on the layout (flat.py).

Dropout masks are bit patterns, drawn separately from their use. A mask has int16 -1 (all bits set: kept) or 0 (dropped)
for every element and is applied with a bitwise and. On a CPU this takes less time than a comparison and a product, in
both passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ipu_model.models import families
from ipu_model.models.config import ModelConfig

WORDS = "bert.embeddings.word_embeddings.weight"
STEPS = 1 << 15
"""A probability is rounded to a multiple of 1 / STEPS, as the mask uses 15 random bits per element."""
LOW_BITS = 0x7FFF7FFF7FFF7FFF
"""All bits of four int16 in a 64-bit word except the signs."""
ACTIVATIONS: Dict[str, Any] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": nn.functional.gelu}
"""Family.activation -> function."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by the size of an element in bytes."""
Attention = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
"""(query, key, value, heads, dropout) -> context, all [..., H]."""


@dataclass(frozen=True)
class Tokens:
    """Inputs of the encoder."""

    input_ids: Tensor
    """[...] int64, like the next two."""
    token_type_ids: Tensor
    position_ids: Tensor
    attention: Attention
    lengths: Sequence[int] = ()
    """Tokens of each sequence without the filler, on the host; only where padding is dropped."""


class Dense(nn.Linear):
    """nn.Linear whose product may be computed with a low-precision copy of its weight (LowPrecisionCopies)."""

    copy: Optional[Tensor] = None
    """[out, in], a leaf that accumulates the gradient; None: use the weight itself."""

    @property
    def factor(self) -> Tensor:
        """Matrix of the product: the copy or the weight."""
        return self.weight if self.copy is None else self.copy

    def forward(self, values: Tensor) -> Tensor:
        """Compute [..., in] -> [..., out], in the precision of `factor`."""
        bias = None if self.bias is None else self.bias.to(self.factor.dtype)
        return nn.functional.linear(values.to(self.factor.dtype), self.factor, bias)


class TiedDecoder(nn.Module):
    """Head whose last matrix is the word table."""

    words_copy: Optional[Tensor] = None
    """Low-precision copy of the word table, as in Dense."""


class Embeddings(nn.Module):
    """Normalised sum of word, position and token type embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, self.offset = config.table_width, config.position_offset
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_id)
        self.position_embeddings = nn.Embedding(config.max_positions + self.offset, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout

    def forward(self, tokens: Tokens) -> Tensor:
        """Embed [...] -> [..., E]. Tables stay in fp32: hundreds of tokens add to one row of their gradient."""
        summed = self.word_embeddings(tokens.input_ids)
        if self.token_type_embeddings is not None:
            summed = summed + self.token_type_embeddings(tokens.token_type_ids)
        summed = summed + self.position_embeddings(shift_positions(tokens.position_ids, self.offset))
        dropout = self.dropout if self.training else 0.0
        return drop(self.LayerNorm(summed), draw_mask_for(summed, dropout), dropout)


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
        return normalise(summed, self.LayerNorm.weight, self.LayerNorm.bias, self.LayerNorm.eps)


def normalise(values: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Apply LayerNorm to [..., H], computed in fp32; the result has the precision of `values`."""
    if values.dtype == scale.dtype or values.device.type == "cpu":  # CPU kernels accept mixed precision
        return nn.functional.layer_norm(values, scale.shape, scale, shift, eps)
    return nn.functional.layer_norm(values.to(scale.dtype), scale.shape, scale, shift, eps).to(values.dtype)


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


class Bert(nn.Module):
    """Embeddings and encoder, with the pooler only if a head reads it."""

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
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        if pooler:
            self.pooler = nn.ModuleDict({"dense": Dense(config.hidden_size, config.hidden_size)})
            family = families.get_family(config.family)
            self.activation, self.drops_first = ACTIVATIONS[family.activation], family.drops_first

    @property
    def precision(self) -> torch.dtype:
        """Precision of products and of activations between layers."""
        layers: Any = self.encoder["layer"]
        return layers[0].attention["self"].query.factor.dtype

    def forward(self, tokens: Tokens) -> Tensor:
        """Encode [...] -> [..., H]."""
        hidden = self.embeddings_project(self.embeddings(tokens)).to(self.precision)
        for layer in self.encoder["layer"].children():
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(self.run_layer, layer, hidden, tokens.attention, use_reentrant=False)
            else:
                hidden = self.run_layer(layer, hidden, tokens.attention)
        return hidden

    def pool(self, first_tokens: Tensor) -> Tensor:
        """Pool the first tokens of the sequences [N, H] -> [N, H]."""
        return self.activation(self.pooler["dense"](first_tokens))


class LowPrecisionCopies:
    """Low-precision copies of all matrices of a model, used in products; the weights stay and are updated in fp32.

    torch.autocast creates such copies in every forward pass and casts every gradient back to fp32; these copies are
    made once per update. LayerNorms, biases and the look-up in the embedding tables stay in fp32.

    Args:
        model: From modeling.build_model, its weights in fp32 or wider.
        dtype: bfloat16; None creates no copies, and products use the weights.
    """

    def __init__(self, model: nn.Module, dtype: Optional[torch.dtype]) -> None:
        self.pairs: List[Tuple[Tensor, Tensor]] = []
        """(weight, copy)."""
        if dtype is None:
            return
        for module in model.modules():
            if isinstance(module, Dense):
                module.copy = self._add(module.weight, dtype)
        for module in model.modules():
            if isinstance(module, TiedDecoder):
                module.words_copy = self._add(model.get_parameter(WORDS), dtype)

    def _add(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        copy = weight.detach().to(dtype).requires_grad_()
        self.pairs.append((weight, copy))
        return copy

    def zero_grad(self) -> None:
        """Clear the gradients of the copies."""
        for _, copy in self.pairs:
            copy.grad = None

    def collect_gradients(self) -> None:
        """Add the gradients of the copies to those of the weights, in fp32; call it after every micro-batch."""
        for weight, copy in self.pairs:
            if copy.grad is not None:
                weight.grad = copy.grad.to(weight.dtype) if weight.grad is None else weight.grad.add_(copy.grad)
                copy.grad = None

    def gradients(self, parameters: Iterable[Tensor]) -> List[Tensor]:
        """Return every gradient of the model once: of a weight or its copy, or their sum if both have one."""
        for weight, copy in self.pairs:
            if weight.grad is not None and copy.grad is not None:  # the word table: looked up, and the decoder
                weight.grad.add_(copy.grad)
                copy.grad = None
        every = (*parameters, *(copy for _, copy in self.pairs))
        return [x.grad for x in every if x.grad is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the copies; call it after every change of the weights."""
        for weight, copy in self.pairs:
            copy.copy_(weight)


def draw_mask(shape: Sequence[int], probability: float) -> Tensor:
    """Draw a random mask on the CPU, from torch's generator: int16 -1 where a value is kept, 0 where it is dropped.

    Each random word gives four elements: seven to ten times faster than `bernoulli_`, and torch.manual_seed applies.
    """
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).bitwise_and_(LOW_BITS)
    # (dropped - 1 - bits) is negative where bits >= dropped, and its sign spread over all 16 bits is the mask.
    return words.view(torch.int16)[:count].neg_().add_(_dropped(probability) - 1).bitwise_right_shift_(15).view(shape)


def dropout_scale(probability: float) -> float:
    """Return the factor for kept values: 1 / (1 - probability), for the rounded probability."""
    return STEPS / (STEPS - _dropped(probability))


def _dropped(probability: float) -> int:
    return round(probability * STEPS)


def draw_mask_for(values: Tensor, probability: float) -> Optional[Tensor]:
    """Draw the mask that `drop` needs for values of this shape; None if nothing is dropped.

    Also None on accelerators, whose dropout kernel draws its own mask.
    """
    if probability == 0 or values.device.type != "cpu":
        return None
    return draw_mask(values.shape, probability)


def apply_mask(values: Tensor, keep: Tensor) -> Tensor:
    """Return kept values, and +0 elsewhere; no gradient flows through it."""
    integer = INTEGERS[values.element_size()]
    return torch.bitwise_and(values.view(integer), keep.to(integer)).view(values.dtype)


def drop(values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Apply dropout to `values`.

    Args:
        keep: Mask from draw_mask_for.
        probability: Share to drop; 0 returns `values`.
    """
    if probability == 0:
        return values
    if keep is None:
        return torch.nn.functional.dropout(values, probability)
    return _Drop.apply(values, keep, dropout_scale(probability))


def add_dropped(residual: Tensor, values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Return residual + drop(values, keep, probability), with one pass less over the numbers."""
    if keep is None or probability == 0:
        return residual + drop(values, keep, probability)
    return _AddDropped.apply(residual, values, keep, dropout_scale(probability))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return apply_mask(values, keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return apply_mask(gradient.contiguous(), keep).mul_(ctx.scale), None, None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.add(residual, apply_mask(values, keep), alpha=scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return gradient, apply_mask(gradient.contiguous(), keep).mul_(ctx.scale), None, None
