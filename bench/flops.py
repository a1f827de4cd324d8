"""Floating-point operations of a training step, to compare its speed with the matrix peak.

The count includes the matrix products of the model, two operations per multiply-add, on real tokens and masked
positions only; computation on padding is useless and is not counted. Softmax, LayerNorm, GELU, dropout and the
optimizer are excluded, so shares of the peak are slightly too low.

Forward, for one sequence of s tokens, hidden size h, inner size i, L layers, vocabulary V, m masked positions:

    per layer     8 h^2 s + 4 h i s     query, key, value, output (4 h^2 weights) and the two inner products
                  + 4 h s^2             scores and context: 2 h s^2 each
    MLM head      m (2 h^2 + 2 h V)
    NSP head      2 h^2 + 4 h           pooler and its two logits
    answers       4 h s                 start and end logit of every token

The backward pass costs twice the forward pass: one product for the gradients of inputs, one for weights. With i = 4 h
the sum is the usual 6 x weights per token plus 12 L h s^2 (Kaplan et al., arXiv 2001.08361, section 2.1; Chowdhery
et al., arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from collections.abc import Iterable

from ipu_model.models.config import ModelConfig

TRAINING = 3
"""Factor from forward to training: once forward, twice backward."""


def encoder_flops(config: ModelConfig, lengths: Iterable[int]) -> int:
    """Return the operations of one forward pass through the layers, for sequences of these lengths in tokens."""
    h, inner, total = config.hidden_size, config.intermediate_size, 0
    for s in lengths:
        total += config.num_layers * (8 * h * h * s + 4 * h * inner * s + 4 * h * s * s)
    return total


def pretraining_flops(config: ModelConfig, lengths: list[int], masked: int) -> int:
    """Return the operations of one pre-training update: forward and backward over `lengths`, `masked` predictions."""
    h = config.hidden_size
    heads = masked * (2 * h * h + 2 * h * config.vocab_size) + len(lengths) * (2 * h * h + 4 * h)
    return TRAINING * (encoder_flops(config, lengths) + heads)


def answering_flops(config: ModelConfig, lengths: list[int]) -> int:
    """Return the operations of one update of question answering."""
    return TRAINING * (encoder_flops(config, lengths) + 4 * config.hidden_size * sum(lengths))
