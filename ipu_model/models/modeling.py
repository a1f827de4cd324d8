"""The heads of BERT in plain torch, with Hugging Face's parameter names, and how their weights begin.

Legend: T tokens of all sequences one after the other, H hidden size, N sequences, M masked positions, V vocabulary
size, C classes. The heads pick tokens by their index in the flattened leading dimensions of the encoder (encoder.py).
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ipu_model.errors import ConfigError
from ipu_model.models.config import ModelConfig
from ipu_model.models.dropout import drop, mask_for
from ipu_model.models.encoder import Bert, Dense, Tokens, normalise


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


class BertForPreTraining(nn.Module):
    """Masked-token and next-sentence heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=True)
        self.cls = nn.ModuleDict(
            {"predictions": PredictionHead(config), "seq_relationship": Dense(config.hidden_size, 2)}
        )

    def forward(self, tokens: Tokens, masked_index: Tensor, cls_index: Tensor) -> Dict[str, Tensor]:
        """What both losses are made of, at the chosen tokens only.

        Args:
            masked_index: [M] positions in the flattened tokens.
            cls_index: [N] positions of the [CLS] tokens.

        Returns:
            masked_hidden [M, H], which `decoder` turns into logits, and next_sentence_logits [N, 2].
        """
        hidden = self.bert(tokens).flatten(0, -2)
        return {
            "masked_hidden": self.cls["predictions"](hidden[masked_index]),
            "next_sentence_logits": self.cls["seq_relationship"](self.bert.pool(hidden[cls_index])),
        }

    def decoder(self) -> Tuple[Tensor, Tensor]:
        """Word table [V, H] in the precision of products, and bias [V]: masked_hidden @ table.T + bias."""
        head: Any = self.cls["predictions"]
        words = self.bert.embeddings.word_embeddings.weight
        return words if head.words_copy is None else head.words_copy, head.bias


class BertForQuestionAnswering(nn.Module):
    """Start and end logits of every token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=False)
        self.qa_outputs = Dense(config.hidden_size, 2)

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [T, 2], the flattened tokens: column 0 start, column 1 end."""
        return self.qa_outputs(self.bert(tokens).flatten(0, -2))


class BertForSequenceClassification(nn.Module):
    """Logits of each sequence, from its pooled [CLS]; a single one is the value of a regression."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=True)
        self.classifier = Dense(config.hidden_size, labels)
        self.dropout = config.hidden_dropout

    def forward(self, tokens: Tokens, cls_index: Tensor) -> Tensor:
        """[...], [N] positions of the [CLS] tokens in the flattened tokens -> [N, C]."""
        pooled = self.bert.pool(self.bert(tokens).flatten(0, -2)[cls_index])
        dropout = self.dropout if self.training else 0.0
        return self.classifier(drop(pooled, mask_for(pooled, dropout), dropout))


def build_model(head: str, config: ModelConfig, labels: int = 0) -> nn.Module:
    """An untrained model with memory but no meaning yet: call initialise or load_state_dict next.

    Args:
        labels: C of a sequence_classification head, 1 for a regression; other heads have none.

    Raises:
        ConfigError: a sequence_classification head without labels.
    """
    if head == "sequence_classification":
        if labels < 1:
            raise ConfigError("a sequence_classification head needs at least one label: state them in job.labels")
        return BertForSequenceClassification(config, labels)
    return BertForPreTraining(config) if head == "pretraining" else BertForQuestionAnswering(config)


def initialise(model: nn.Module, config: ModelConfig, seed: int, only: Optional[List[str]] = None) -> None:
    """Set parameters as BERT does: weights normal(0, initializer_range), biases 0, LayerNorm 1 and 0.

    Every parameter draws from its own generator, of (seed, name): the same weights on every runtime,
    whichever other parameters are initialised.

    Args:
        only: Names to initialise; all by default.
    """
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
                values = torch.empty(parameter.shape).normal_(0, config.initializer_range, generator=generator)
                parameter.copy_(values)
        words = "bert.embeddings.word_embeddings.weight"
        if only is None or words in only:
            model.get_parameter(words)[0].zero_()  # [PAD], as Hugging Face's padding_idx


def is_exempt(name: str) -> bool:
    """Parameters without weight decay and without trust ratio: biases and LayerNorm."""
    return name.endswith("bias") or "LayerNorm" in name
