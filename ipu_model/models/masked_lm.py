"""Masked language modelling (MLM): the model, its loss, and the base of the heads that have it.

Legend: T tokens of all sequences concatenated, H hidden size, E embedding size (mostly H), N sequences, M masked
positions, V vocabulary size.

Vocabulary logits of masked tokens and their loss are the most expensive part of a small BERT. Plain torch allocates six
fp32 tensors [M, V] for the logits and their gradient. Here the gradient replaces the logits in place, while a few rows
of them are in the cache: 23 ms for M = 640, V = 30522 in bf16 on one core of a Xeon (Sapphire Rapids), where
log_softmax and its gradient alone took 56 ms of a step. On accelerators, where memory is what ends, the logits exist in
chunks only, and the gradients of the word table are added up chunk by chunk.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.models import families
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert, rotary_values
from ipu_model.models.flat import TOKEN_TILE, FlatBatch, FlatIndex, append_filler, to_tensor
from ipu_model.models.head import Head, Losses, evaluate_logits
from ipu_model.models.layers import Dense, TiedDecoder, Tokens, normalise
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch

MAX_LOGITS = 1 << 24
"""Limit on the vocabulary logits of masked tokens in evaluation: fp32 numbers, 64 MB."""
LOGITS_IN_CACHE = 1 << 18
"""fp32 numbers that fit the cache of a core, 1 MB."""
LOGITS_PER_CHUNK = 1 << 26
"""Logits that an accelerator holds at once, 128 MB in bf16: enough rows for a product at full speed."""


Differentiate = Callable[[Tensor, Tensor, Tensor], Tuple[Tensor, Tensor]]
"""(logits [M, V] without bias, bias [V], labels [M]) -> the sum of the losses, and its gradient by the logits."""


def differentiate_in_place(logits: Tensor, bias: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    """Replace logits [M, V] by the gradient of the loss, softmax(logits + bias) - onehot for real labels, 0 for others.

    Return the sum of -log softmax(logits + bias)[label] over the real labels, in the precision of `bias` [V], which is
    fp32 or wider, and `logits`. `labels` are [M] int64, -100 = none.
    """
    real = (labels != IGNORED)[:, None]
    index = labels.clamp(min=0)[:, None]
    at_label = logits.gather(1, index) + bias[index]
    largest, total = to_gradient(logits, bias, real)
    probability = (at_label - largest).exp() / total
    logits.scatter_(1, index, ((probability - 1) * real).to(logits.dtype))
    return ((total.log() + largest - at_label) * real).sum(), logits


def softmax_gradient(logits: Tensor, bias: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
    """Return what `differentiate_in_place` returns, in a form that a compiler joins to one pass."""
    wide, real = logits + bias, (labels != IGNORED)[:, None]
    index = labels.clamp(min=0)[:, None]
    total = torch.logsumexp(wide, 1, keepdim=True)
    onehot = torch.arange(logits.shape[1], device=logits.device) == index
    gradient = ((wide - total).exp() - onehot.to(wide.dtype)) * real
    return ((total - wide.gather(1, index)) * real).sum(), gradient.to(logits.dtype)


def to_gradient(logits: Tensor, bias: Tensor, real: Tensor) -> Tuple[Tensor, Tensor]:
    """Turn logits [M, V] without bias into softmax(logits + bias), 0 in rows without a label, in place.

    Return the largest logit, and the sum of exponentials of all logits minus the largest, [M, 1] each, in the precision
    of `bias` [V], which is fp32 or wider. `real` is [M, 1] bool.
    """
    count, vocabulary = logits.shape
    rows = max(1, (LOGITS_IN_CACHE if logits.device.type == "cpu" else LOGITS_PER_CHUNK) // vocabulary)
    largest, total = bias.new_empty(count, 1), bias.new_empty(count, 1)
    buffer = bias.new_empty(min(rows, count), vocabulary)
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        wide = torch.add(logits[part], bias, out=buffer[: part.stop - start])
        torch.amax(wide, 1, keepdim=True, out=largest[part])
        torch.sum(wide.sub_(largest[part]).exp_(), 1, keepdim=True, out=total[part])
        torch.mul(wide, real[part] / total[part], out=logits[part])
    return largest, total


class PredictionHead(TiedDecoder):
    """MLM head: transforms hidden states for the tied decoder (the word table), and holds the bias of the logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        values, zeros = rotary_values(config), torch.zeros(config.vocab_size)
        if not values:
            self.transform = nn.ModuleDict(
                {
                    "dense": Dense(config.hidden_size, config.table_width),
                    "LayerNorm": nn.LayerNorm(config.table_width, eps=config.layer_norm_eps),
                }
            )
        if values.get("decoder_bias", True):
            self.bias = nn.Parameter(zeros)
        else:
            self.register_buffer("bias", zeros, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[M, H] -> [M, E]."""
        return normalise(nn.functional.gelu(self.transform["dense"](hidden)), self.transform["LayerNorm"])


class BertForMaskedLM(nn.Module):
    """Encoder with an MLM head, and with one for next sentences if `next_sentence` is set."""

    differentiate: Differentiate = staticmethod(differentiate_in_place)
    """Loss and gradient of the logits on accelerators; compiled_layers.py replaces it."""

    def __init__(self, config: ModelConfig, next_sentence: bool = False) -> None:
        super().__init__()
        self.transforms = not families.get_family(config.family).rotary
        self.bert = Bert(config, pooler=next_sentence or not self.transforms)
        self.cls = nn.ModuleDict({"predictions": PredictionHead(config)})
        if next_sentence:
            self.cls["seq_relationship"] = Dense(config.hidden_size, 2)

    def forward(self, tokens: Tokens, masked_index: Tensor, cls_index: Tensor) -> Dict[str, Tensor]:
        """Return the inputs of the losses: masked_hidden [M, E], which `decoder` turns into logits, and
        next_sentence_logits [N, 2] if there are any; masked_index [M] and cls_index [N] are flattened tokens."""
        hidden = self.bert(tokens).flatten(0, -2)
        transform: Any = self.cls["predictions"] if self.transforms else self.bert.pool
        outputs = {"masked_hidden": transform(hidden[masked_index])}
        if "seq_relationship" in self.cls:
            outputs["next_sentence_logits"] = self.cls["seq_relationship"](self.bert.pool(hidden[cls_index]))
        return outputs

    def decoder(self) -> Tuple[Tensor, Tensor]:
        """Return word table [V, E], in the precision of products, and bias [V]: masked_hidden @ table.T + bias."""
        head: Any = self.cls["predictions"]
        words = self.bert.embeddings.word_embeddings.weight if head.words_copy is None else head.words_copy
        return words, head.bias


class MaskedLmHead(Head):
    """Base of the heads with an MLM loss."""

    parts: Tuple[str, ...] = ("mlm_loss",)
    sums: Tuple[str, ...] = ("mlm_loss", "mlm_right", "mlm_labels")

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return BertForMaskedLM(config)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"mlm_loss": "masked_labels"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return masked_index [M] and masked_labels [M]; M is a multiple of TOKEN_TILE."""
        columns = places.columns
        rows, length = columns["input_ids"].shape
        flat_position = np.zeros(rows * length, dtype=np.int64)
        flat_position[places.source] = np.arange(len(places.source))
        row, slot = np.nonzero(columns["masked_labels"] != IGNORED)
        positions = columns["masked_positions"][row, slot].astype(np.int64)
        filler = -len(positions) % TOKEN_TILE
        return {
            "masked_index": to_tensor(append_filler(flat_position[row * length + positions], filler)),
            "masked_labels": to_tensor(append_filler(columns["masked_labels"][row, slot], filler, IGNORED)),
        }

    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        outputs = model(flat.tokens, flat.labels["masked_index"], flat.starts)
        return {name: loss / counts[name] for name, loss in self.sum_losses(model, outputs, flat.labels).items()}

    def sum_losses(self, model: Any, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Losses:
        """Return the sum of the losses over labels by part, from the outputs of the model."""
        hidden, (words, bias), masked = outputs["masked_hidden"], model.decoder(), labels["masked_labels"]
        if hidden.device.type == "cpu":
            return {"mlm_loss": MaskedTokenLoss.apply(hidden, words, bias, masked)}
        differentiate = getattr(model, "differentiate", differentiate_in_place)  # another if it was compiled
        return {"mlm_loss": ChunkedTokenLoss.apply(hidden, words, bias, masked, differentiate)}

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        outputs = model(flat.tokens, flat.labels["masked_index"], flat.starts)
        return torch.cat(self.evaluate(model, outputs, flat.labels))

    def evaluate(self, model: Any, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> List[Tensor]:
        """Return loss, correct predictions and number of labels, [3] fp64, of each part."""
        words, bias = model.decoder()
        hidden, masked = outputs["masked_hidden"], labels["masked_labels"]
        block = max(1, MAX_LOGITS // len(words))
        sums = [
            evaluate_logits(torch.mm(hidden[part], words.t()).float() + bias, masked[part])
            for part in (slice(first, first + block) for first in range(0, len(masked), block))
        ]
        return [torch.stack(sums).sum(0) if sums else torch.zeros(3, dtype=torch.float64, device=hidden.device)]

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return loss, accuracy from 0 to 1, and perplexity = exp(mlm_loss) of the masked tokens, as Devlin et al.
        (arXiv 1810.04805, table 6) report it for held-out text."""
        labels = max(1.0, sums["mlm_labels"])
        loss = sums["mlm_loss"] / labels
        return {
            "loss": loss,
            "mlm_loss": loss,
            "mlm_accuracy": sums["mlm_right"] / labels,
            "perplexity": math.exp(min(loss, 700.0)),
        }


class MaskedTokenLoss(torch.autograd.Function):
    """Sum of -log softmax(hidden words^T + bias)[label] over the real labels, a scalar in fp32 or wider."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, words: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """Args: hidden [M, E] in the precision of `words`, words [V, E], bias [V], labels [M] int64, -100 = none."""
        loss, d_logits = differentiate_in_place(torch.mm(hidden, words.t()), bias, labels)
        ctx.save_for_backward(hidden, words, d_logits)
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Tuple[Any, ...]:
        hidden, words, d_logits = ctx.saved_tensors
        d_hidden = torch.mm(d_logits, words).mul_(d_loss)
        d_words = torch.mm(d_logits.t(), hidden * d_loss)
        return d_hidden, d_words, sum_rows(d_logits).to(d_loss.dtype) * d_loss, None


class ChunkedTokenLoss(torch.autograd.Function):
    """The same sum on an accelerator, where no more than LOGITS_PER_CHUNK logits exist at once.

    Gradients are computed with the loss. They are added up in the precision of `bias`.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, words: Tensor, bias: Tensor, labels: Tensor, differentiate: Differentiate
    ) -> Tensor:
        """Args: see MaskedTokenLoss."""
        d_hidden, d_words = torch.empty_like(hidden), torch.zeros_like(words, dtype=bias.dtype)
        d_bias, total = torch.zeros_like(bias), bias.new_zeros(())
        rows = max(1, LOGITS_PER_CHUNK // len(words))
        for part in (slice(first, first + rows) for first in range(0, len(hidden), rows)):
            loss, d_logits = differentiate(torch.mm(hidden[part], words.t()), bias, labels[part])
            torch.mm(d_logits, words, out=d_hidden[part])
            d_words += torch.mm(d_logits.t(), hidden[part])
            d_bias += sum_rows(d_logits)
            total += loss
        ctx.save_for_backward(d_hidden, d_words, d_bias)
        ctx.precision = words.dtype
        return total

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> Tuple[Any, ...]:
        d_hidden, d_words, d_bias = ctx.saved_tensors
        return d_hidden * d_loss, (d_words * d_loss).to(ctx.precision), d_bias * d_loss, None, None


def sum_rows(values: Tensor) -> Tensor:
    """Sum [M, V] -> [V] as a product: four times as fast as sum() on a CPU, and accumulated in fp32."""
    return torch.mm(values.new_ones(1, len(values)), values)[0]
