"""Attention over whole rows under a block mask: the plain reference for what computes every sequence by itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class RowAttention:
    """Attention inside each sequence of whole rows.

    Args:
        sequence_ids: [B, L], 1.. for the sequences of a row, 0 for padding.
    """

    def __init__(self, sequence_ids: Tensor) -> None:
        # Padding attends to padding: a row of scores without any key would make softmax NaN.
        self.allowed = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]  # [B, 1, L, L]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [B, L, H]."""
        rows, length, hidden = query.shape
        split = (rows, length, heads, hidden // heads)
        q, k, v = (x.view(split).transpose(1, 2) for x in (query, key, value))  # [B, A, L, D]
        scores = q @ k.transpose(-1, -2) / math.sqrt(hidden // heads)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        probabilities = scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
        probabilities = torch.nn.functional.dropout(probabilities, dropout).to(v.dtype)
        return (probabilities @ v).transpose(1, 2).reshape(rows, length, hidden)
