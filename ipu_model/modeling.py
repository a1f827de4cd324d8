"""BERT (arXiv 1810.04805) and its heads in plain torch, with Hugging Face's parameter names.

Legend: T tokens of all sequences one after the other (or B rows of L tokens), H hidden size, A heads,
N sequences, M masked positions, V vocabulary size.

The model is written over "tokens" and does not care how they are laid out: the leading dimensions are [T]
on runtimes that drop pads and [B, L] on those that need fixed shapes. Only attention knows (attention.py),
and the heads pick tokens by their index in the flattened leading dimensions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional

import torch
from torch import Tensor, nn

from ipu_model.dropout import Dropout
from ipu_model.job import ModelConfig

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


class Embeddings(nn.Module):
    """Sum of word, position and token type embeddings, normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(config.max_positions, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [..., H]."""
        summed = self.word_embeddings(tokens.input_ids) + self.token_type_embeddings(tokens.token_type_ids)
        summed = summed + self.position_embeddings(tokens.position_ids)
        return self.dropout(self.LayerNorm(summed))


class SelfAttention(nn.Module):
    """Projections around the attention of the layout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.heads, self.dropout = config.num_heads, config.attention_dropout

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return attention(self.query(hidden), self.key(hidden), self.value(hidden), self.heads, dropout)


class Residual(nn.Module):
    """LayerNorm(residual + dropout(dense(hidden))), the end of both halves of a layer."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout)

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(residual + self.dropout(self.dense(hidden)))


class Layer(nn.Module):
    """One encoder layer. The nesting of modules only serves Hugging Face's parameter names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(config), "output": Residual(config.hidden_size, config)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = Residual(config.intermediate_size, config)

    def forward(self, hidden: Tensor, attention: Attention) -> Tensor:
        """[..., H] -> [..., H]."""
        hidden = self.attention["output"](self.attention["self"](hidden, attention), hidden)
        inner = nn.functional.gelu(self.intermediate["dense"](hidden))  # the erf form, as BERT was trained
        return self.output(inner, hidden)


class Bert(nn.Module):
    """Embeddings and encoder; the pooler only where a head reads it."""

    def __init__(self, config: ModelConfig, pooler: bool) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        if pooler:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size)})

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [..., H]."""
        hidden = self.embeddings(tokens)
        for layer in self.encoder["layer"].children():
            hidden = layer(hidden, tokens.attention)
        return hidden

    def pool(self, first_tokens: Tensor) -> Tensor:
        """[N, H] of the [CLS] tokens -> [N, H]."""
        return torch.tanh(self.pooler["dense"](first_tokens))


class PredictionHead(nn.Module):
    """Vocabulary logits; the decoder is the word embedding, so it has only a bias of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform = nn.ModuleDict(
            {
                "dense": nn.Linear(config.hidden_size, config.hidden_size),
                "LayerNorm": nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps),
            }
        )
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """[M, H], [V, H] -> [M, V]."""
        hidden = self.transform["LayerNorm"](nn.functional.gelu(self.transform["dense"](hidden)))
        return nn.functional.linear(hidden, word_embeddings, self.bias)


class BertForPreTraining(nn.Module):
    """Masked-token and next-sentence heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=True)
        self.cls = nn.ModuleDict(
            {"predictions": PredictionHead(config), "seq_relationship": nn.Linear(config.hidden_size, 2)}
        )

    def forward(self, tokens: Tokens, masked_index: Tensor, cls_index: Tensor) -> Dict[str, Tensor]:
        """Logits at the chosen tokens only: the decoder is the dearest matrix of a small BERT.

        Args:
            masked_index: [M] positions in the flattened tokens.
            cls_index: [N] positions of the [CLS] tokens.

        Returns:
            prediction_logits [M, V] and next_sentence_logits [N, 2].
        """
        hidden = self.bert(tokens).flatten(0, -2)
        words = self.bert.embeddings.word_embeddings.weight
        return {
            "prediction_logits": self.cls["predictions"](hidden[masked_index], words),
            "next_sentence_logits": self.cls["seq_relationship"](self.bert.pool(hidden[cls_index])),
        }


class BertForQuestionAnswering(nn.Module):
    """Start and end logits of every token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def forward(self, tokens: Tokens) -> Tensor:
        """[...] -> [T, 2], the flattened tokens: column 0 start, column 1 end."""
        return self.qa_outputs(self.bert(tokens).flatten(0, -2))


def build_model(head: str, config: ModelConfig) -> nn.Module:
    """An untrained model with memory but no meaning yet: call initialise or load_state_dict next."""
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
