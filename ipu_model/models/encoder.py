"""The encoder of BERT (arXiv 1810.04805) in plain torch, with Hugging Face's parameter names.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, A heads, N sequences.

The model is written over "tokens" and does not care how they are laid out: the leading dimensions are [T]
on runtimes that drop pads and [B, L] on those that need fixed shapes. Only attention knows (flat.py).

Dropout has masks of whole bit patterns, drawn apart from where they are used. A mask holds, for every element, int16 -1
(all bits set: kept) or 0 (dropped), and is applied with a bitwise and: on a CPU that takes less time than a comparison
and a product, forward and backward alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ipu_model.models.config import ModelConfig

WORDS = "bert.embeddings.word_embeddings.weight"
STEPS = 1 << 15
"""A probability is rounded to a multiple of 1 / STEPS, as the mask takes 15 random bits per element."""
LOW_BITS = 0x7FFF7FFF7FFF7FFF
"""All bits of four int16 in a word but their signs."""
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element."""
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
    """nn.Linear whose product may be computed with a low-precision copy of its weight (LowPrecisionCopies)."""

    copy: Optional[Tensor] = None
    """[out, in], a leaf that gathers the gradient; None: the weight itself."""

    @property
    def factor(self) -> Tensor:
        """What the product is computed with."""
        return self.weight if self.copy is None else self.copy

    def forward(self, values: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the precision of `factor`."""
        return nn.functional.linear(values.to(self.factor.dtype), self.factor, self.bias.to(self.factor.dtype))


class TiedDecoder(nn.Module):
    """A head whose last matrix is the word table."""

    words_copy: Optional[Tensor] = None
    """Low-precision copy of the word table, as in Dense."""


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


class LowPrecisionCopies:
    """Copies of all matrices of a model that products use in place of the weights, which stay and are updated in fp32.

    torch.autocast makes such copies in every forward pass and turns every gradient back into fp32; these are
    made once per update. LayerNorms, biases and the lookup in the embedding tables stay in fp32.

    Args:
        model: From modeling.build_model, its weights in fp32 or wider.
        dtype: bfloat16; None makes no copies, and products use the weights.
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

    @property
    def of_weights(self) -> Dict[Tensor, Tensor]:
        """Weight -> its copy."""
        return dict(self.pairs)

    def zero_grad(self) -> None:
        """Forget the gradients of the copies."""
        for _, copy in self.pairs:
            copy.grad = None

    def collect_gradients(self) -> None:
        """Add what the copies gathered to the gradients of the weights, in fp32; after every micro-batch."""
        for weight, copy in self.pairs:
            if copy.grad is not None:
                weight.grad = copy.grad.to(weight.dtype) if weight.grad is None else weight.grad.add_(copy.grad)
                copy.grad = None

    def gradients(self, parameters: Iterable[Tensor]) -> List[Tensor]:
        """The gradients of the model, each once: of a weight or of its copy; where both have one, they are added."""
        for weight, copy in self.pairs:
            if weight.grad is not None and copy.grad is not None:  # the word table: looked up, and the decoder
                weight.grad.add_(copy.grad)
                copy.grad = None
        every = (*parameters, *(copy for _, copy in self.pairs))
        return [x.grad for x in every if x.grad is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew; after every change of them."""
        for weight, copy in self.pairs:
            copy.copy_(weight)


def keep_mask(shape: Sequence[int], probability: float) -> Tensor:
    """A random mask on the CPU, from torch's generator: int16 -1 where a value is kept, 0 where it is dropped.

    Four elements from each random word: seven to ten times faster than `bernoulli_`, and it follows
    torch.manual_seed all the same.
    """
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).bitwise_and_(LOW_BITS)
    # (dropped - 1 - bits) is negative where bits >= dropped, and its sign spread over all 16 bits is the mask.
    return words.view(torch.int16)[:count].neg_().add_(_dropped(probability) - 1).bitwise_right_shift_(15).view(shape)


def kept_scale(probability: float) -> float:
    """What kept values are multiplied with: 1 / (1 - probability), of the rounded probability."""
    return STEPS / (STEPS - _dropped(probability))


def _dropped(probability: float) -> int:
    return round(probability * STEPS)


def mask_for(values: Tensor, probability: float) -> Optional[Tensor]:
    """What `drop` needs besides values of this shape; None where nothing is dropped.

    None on accelerators too, which draw inside the kernel that drops.
    """
    if probability == 0 or values.device.type != "cpu":
        return None
    return keep_mask(values.shape, probability)


def masked(values: Tensor, keep: Tensor) -> Tensor:
    """Values where they are kept, +0 elsewhere; no gradient flows through it."""
    integer = INTEGERS[values.element_size()]
    return torch.bitwise_and(values.view(integer), keep.to(integer)).view(values.dtype)


def drop(values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Dropout of `values`.

    Args:
        keep: From mask_for.
        probability: 0 where nothing is dropped.
    """
    if probability == 0:
        return values
    if keep is None:
        return torch.nn.functional.dropout(values, probability)
    return _Drop.apply(values, keep, kept_scale(probability))


def add_dropped(residual: Tensor, values: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """residual + drop(values, keep, probability), with a pass less over the numbers."""
    if keep is None or probability == 0:
        return residual + drop(values, keep, probability)
    return _AddDropped.apply(residual, values, keep, kept_scale(probability))


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return masked(values, keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return masked(gradient.contiguous(), keep).mul_(ctx.scale), None, None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, values: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return torch.add(residual, masked(values, keep), alpha=scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Any, ...]:
        (keep,) = ctx.saved_tensors
        return gradient, masked(gradient.contiguous(), keep).mul_(ctx.scale), None, None
