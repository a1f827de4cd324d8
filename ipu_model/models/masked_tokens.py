"""Vocabulary logits of masked tokens, and their loss: the dearest part of a small BERT.

Legend: M masked tokens, H hidden size, V vocabulary size.

Plain torch makes six fp32 tensors [M, V] of the logits and their gradient. Here the gradient is made in the
place of the logits while a few rows of them lie in the cache: 23 ms for M = 640, V = 30522 in bf16 on one core of
a Xeon (Sapphire Rapids), where log_softmax and its gradient alone took 56 ms of a step.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Dense, normalise
from ipu_model.rows.format import IGNORED

LOGITS_IN_CACHE = 1 << 18
"""fp32 numbers that stay in the cache of a core, 1 MB."""
LOGITS_ON_ACCELERATOR = 1 << 28
"""1 GB: there the number of calls counts, not the cache."""


class PredictionHead(nn.Module):
    """Hidden states that the word table turns into vocabulary logits, and the bias of these."""

    words_copy: Optional[Tensor] = None
    """Low-precision copy of the word table, as in Dense."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform = nn.ModuleDict(
            {
                "dense": Dense(config.hidden_size, config.hidden_size),
                "LayerNorm": nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps),
            }
        )
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """[M, H] -> [M, H]."""
        norm: Any = self.transform["LayerNorm"]
        return normalise(nn.functional.gelu(self.transform["dense"](hidden)), norm.weight, norm.bias, norm.eps)

    def decoder(self, words: Tensor) -> Tuple[Tensor, Tensor]:
        """The word table `words` [V, H] in the precision of products, and the bias [V]: hidden @ table.T + bias."""
        return words if self.words_copy is None else self.words_copy, self.bias


def masked_token_loss(hidden: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Sum of -log softmax(hidden words^T + bias)[label] over the real labels; a scalar in fp32 or wider.

    Args:
        hidden: [M, H], in the precision of `words`.
        words: [V, H].
        bias: [V].
        labels: [M] int64, -100 = none.
    """
    return _MaskedTokenLoss.apply(hidden, words, bias, labels)


class _MaskedTokenLoss(torch.autograd.Function):
    """d loss / d logits = softmax - onehot for real labels, 0 for others."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        logits = torch.mm(hidden, words.t())
        real = (labels != IGNORED)[:, None]
        index = labels.clamp(min=0)[:, None]
        at_label = logits.gather(1, index) + bias[index]
        largest, total = to_gradient(logits, bias, real)
        probability = (at_label - largest).exp() / total
        logits.scatter_(1, index, ((probability - 1) * real).to(logits.dtype))
        ctx.save_for_backward(hidden, words, logits)
        return ((total.log() + largest - at_label) * real).sum()

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Tuple[Any, ...]:
        hidden, words, d_logits = ctx.saved_tensors
        d_hidden = torch.mm(d_logits, words).mul_(d_loss)
        d_words = torch.mm(d_logits.t(), hidden * d_loss)
        # A sum over rows as a product: four times as fast as sum() on a CPU, and accumulated in fp32.
        d_bias = torch.mm(d_logits.new_ones(1, len(hidden)), d_logits)[0]
        return d_hidden, d_words, d_bias.to(d_loss.dtype) * d_loss, None


def to_gradient(logits: Tensor, bias: Tensor, real: Tensor) -> Tuple[Tensor, Tensor]:
    """Turn logits [M, V] without bias into softmax(logits + bias), 0 in rows without a label, in place.

    Args:
        bias: [V], at least fp32, like what comes back.
        real: [M, 1] bool.

    Returns:
        Largest logit, and sum of the exponentials of all after subtracting it; [M, 1] each.
    """
    count, vocabulary = logits.shape
    rows = max(1, (LOGITS_IN_CACHE if logits.device.type == "cpu" else LOGITS_ON_ACCELERATOR) // vocabulary)
    largest, total = bias.new_empty(count, 1), bias.new_empty(count, 1)
    buffer = bias.new_empty(min(rows, count), vocabulary)
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        wide = torch.add(logits[part], bias, out=buffer[: part.stop - start])
        torch.amax(wide, 1, keepdim=True, out=largest[part])
        torch.sum(wide.sub_(largest[part]).exp_(), 1, keepdim=True, out=total[part])
        torch.mul(wide, real[part] / total[part], out=logits[part])
    return largest, total
