"""Feature preparation of the peer: tokenize with overflow, then search the answer token by token."""

from __future__ import annotations

from typing import Any


def prepare_train_features(
    examples: dict[str, Any], tokenizer: Any, row_length: int, doc_stride: int, pad: bool
) -> dict[str, Any]:
    """Prepare features like the question-answering example of transformers, in our own implementation.

    Args:
        examples: Columns question, context, answers (list of {text, answer_start}), one batch.
        pad: True to pad to row_length, the example's default.

    Returns:
        input_ids, token_type_ids, attention_mask, start_positions, end_positions (0 if a window lacks the answer).
    """
    encoded = tokenizer(
        [question.lstrip() for question in examples["question"]],
        examples["context"],
        truncation="only_second",
        max_length=row_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if pad else False,
    )
    starts, ends = [], []
    example_of = encoded.pop("overflow_to_sample_mapping")
    for feature, offsets in enumerate(encoded.pop("offset_mapping")):
        answer = examples["answers"][example_of[feature]][0]
        first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        start, end = _answer_tokens(offsets, encoded.sequence_ids(feature), first, last)
        starts.append(start)
        ends.append(end)
    return {**encoded, "start_positions": starts, "end_positions": ends}


def _answer_tokens(
    offsets: list[tuple[int, int]], sequence_ids: list[int | None], first: int, last: int
) -> tuple[int, int]:
    """Return the tokens of the first and last character of first..last-1; (0, 0), the [CLS], if not all are inside."""
    start = 0
    while sequence_ids[start] != 1:
        start += 1
    end = len(offsets) - 1
    while sequence_ids[end] != 1:
        end -= 1
    if offsets[start][0] > first or offsets[end][1] < last:
        return 0, 0
    while start < len(offsets) and offsets[start][0] <= first:
        start += 1
    while offsets[end][1] >= last:
        end -= 1
    return start - 1, end + 1
