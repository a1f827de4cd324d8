"""Forward passes of prediction on CPU: cache-sized pieces, equal shapes, attention by torch's fused kernel.

Legend: T tokens of all sequences one after the other, longest first; H hidden size, A heads, D = H / A.

Measured on 1 thread of a CPU with avx512_bf16 (others at work), 256 rows of SQuAD features, real tokens per CPU
second, against the same passes with the attention of training: tiny (2 layers of 128) fp32 75,000 to 97,000, bf16
139,000 to 206,000; base bf16 2,900 to 3,700. Equal shapes matter in bf16: oneDNN builds a kernel for each new shape,
1.9 ms for a matrix product of 1.1 ms, and remembers only so many; without rounding the tokens of a pass up, tiny fell
by a quarter.
"""

from __future__ import annotations

from typing import Iterator, List, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch

TOKENS_PER_PASS = 4096
"""Tokens of one forward pass of a prediction at most (but one sequence at least): more leave the cache, fewer cost
calls."""
ROUND_TO = 256
"""Tokens of a pass are a multiple of this; what is added is computed for nothing, 3% on the average."""


class EqualLengthAttention:
    """Attention inside each sequence, sequences of equal length together; no dropout, for no backward pass.

    Args:
        lengths: Tokens of each sequence, equal ones side by side. Tokens after the last sequence come out as zeros.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._runs: List[Tuple[int, int, int]] = []  # first token, sequences, tokens of each
        first = 0
        for length in lengths:
            if self._runs and self._runs[-1][2] == length:
                start, count, _ = self._runs[-1]
                self._runs[-1] = (start, count + 1, length)
            else:
                self._runs.append((first, 1, length))
            first += length
        self._tokens = first

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` is 0."""
        output = torch.empty_like(query)
        output[self._tokens :] = 0
        for first, count, length in self._runs:
            run = slice(first, first + count * length)
            split = (count, length, heads, query.shape[1] // heads)
            q, k, v = (x[run].view(split).transpose(1, 2) for x in (query, key, value))  # [count, A, length, D]
            output[run].view(split).copy_(scaled_dot_product_attention(q, k, v).transpose(1, 2))
        return output


def passes(flat: FlatBatch) -> Iterator[Tuple[int, Tokens, Tensor]]:
    """Cut a batch into forward passes.

    Yields:
        Real tokens of the pass, its tokens with what rounds them up at the end, and where its sequences start, [N].
    """
    lengths = flat.lengths.tolist()
    begin = first = 0
    while begin < len(lengths):
        end, tokens = begin + 1, lengths[begin]
        while end < len(lengths) and tokens + lengths[end] <= TOKENS_PER_PASS:
            tokens += lengths[end]
            end += 1
        rounding = (0, -tokens % ROUND_TO)
        ids, types, positions = (
            pad(x[first : first + tokens], rounding)
            for x in (flat.tokens.input_ids, flat.tokens.token_type_ids, flat.tokens.position_ids)
        )
        attention = EqualLengthAttention(lengths[begin:end])
        yield tokens, Tokens(ids, types, positions, attention), flat.starts[begin:end] - first
        begin, first = end, first + tokens
