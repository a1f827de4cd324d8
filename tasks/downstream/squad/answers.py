"""-
- Decoding of start and end logits to answers: character spans of the context, with scores.

Two decoders consider the same spans of context tokens: end not before start, at most `max_answer_length` tokens.

- `best_answers` is used for evaluation and follows transformers' `run_qa.py`: score = start logit + end logit, the best
  `n_best` over all windows of an example, probabilities by a softmax over these;
- `probable_answers` is used by `tasks.downstream.squad.ask` and follows the question-answering pipeline of transformers
  4: softmax of the start and end logits of a window, score = product of the two probabilities.

Legend: F windows (features), C context tokens of all windows together, E examples, B windows of a block, K best tokens
of a window.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.downstream.squad.windows import Array, SquadWindows

_WINDOWS_AT_ONCE = 512
"""Memory limit: n_best 20 gives 400 candidate spans per window."""


@dataclass(frozen=True)
class Answer:
    """Predicted span of the context."""

    text: str
    start: int
    """First character in the context."""
    end: int
    """Character after the last one."""
    score: float
    """Sum of the two logits (`best_answers`) or probability (`probable_answers`)."""
    probability: float


@dataclass(frozen=True)
class _Spans:
    """Candidate spans; tokens are numbered within the window."""

    window: Array
    first: Array
    last: Array
    score: Array


def best_answers(
    windows: SquadWindows, contexts: Sequence[str], *, n_best: int, max_answer_length: int
) -> list[list[Answer]]:
    """Return the best answers of every example, best first; at most n_best, at least one.

    The n_best starts and n_best ends of a window are combined. Windows overlap, so a span may occur twice, as in
    run_qa.py. Ties go to the earlier window, then to the higher start logit. An example without context tokens gets the
    empty answer.

    Args:
        contexts: context of every example, [E].
        n_best: number of starts, ends and answers to keep.
        max_answer_length: maximum length in tokens.
    """
    spans = _best_spans(windows, n_best, max_answer_length)
    example = windows.example_index[spans.window]
    order = np.lexsort((np.arange(len(example)), -spans.score, example))
    ranked = example[order]
    rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
    order = order[rank < n_best]
    grouped: list[list[Answer]] = [[] for _ in contexts]
    base = windows.bounds[:-1][spans.window[order]]
    starts = windows.characters[base + spans.first[order], 0]
    ends = windows.characters[base + spans.last[order], 1]
    for index, start, end, score in zip(
        example[order].tolist(), starts.tolist(), ends.tolist(), spans.score[order].tolist(), strict=True
    ):
        grouped[index].append(Answer(contexts[index][start:end], start, end, score, 0.0))
    return [add_probabilities(answers) for answers in grouped]


def add_probabilities(answers: list[Answer]) -> list[Answer]:
    """Return the answers with a softmax of their scores; the empty answer if there are none."""
    if not answers:
        return [Answer("", 0, 0, 0.0, 1.0)]
    scores = np.array([answer.score for answer in answers])
    weights = np.exp(scores - scores.max())
    return [
        Answer(a.text, a.start, a.end, a.score, float(p)) for a, p in zip(answers, weights / weights.sum(), strict=True)
    ]


def probable_answers(
    windows: SquadWindows,
    context: str,
    words: Array,
    *,
    top: int,
    max_answer_length: int,
    null_threshold: float | None = None,
) -> list[Answer]:
    """Return the most probable distinct answers of one example over all its windows, best first, at most `top`.

    This follows the pipeline of transformers 4: in each window, softmax of the start logits and, separately, of the end
    logits over the context tokens and [CLS]; then [CLS] is removed, and the score of a span is the product of its start
    and end probability. Spans of different windows are compared directly. With a threshold, the empty answer is a
    candidate. Its score is the product of the two probabilities of [CLS] in the window where that is smallest. It
    precedes a span whose score is smaller by more than a factor exp(threshold). A threshold of 0 equals
    handle_impossible_answer of the pipeline; for a single window, any threshold equals evaluation. Spans are widened to
    whole words. Of several spans with the same characters the best is kept; the pipeline repeats them.

    Args:
        words: word number of every context token, [C]; the tokens of a word are neighbours.
        top: number of answers.
        max_answer_length: maximum length in tokens, before widening.
        null_threshold: odds above which no answer is returned; None: always return one.
    """
    candidates = sorted(_candidates(windows, context, words, top, max_answer_length), key=lambda one: -one.score)
    found: dict[tuple[int, int], Answer] = {}
    null = None if null_threshold is None else _null_answer(windows)
    for answer in candidates:
        if null and _log(null.score) - (null_threshold or 0.0) > _log(answer.score):
            found[0, 0], null = null, None
        found.setdefault((answer.start, answer.end), answer)
        if len(found) >= top:
            break
    return list(found.values())[:top]


def _candidates(
    windows: SquadWindows, context: str, words: Array, top: int, max_answer_length: int
) -> Iterator[Answer]:
    """Yield the best `top` distinct answers of each window, best first, and its worst one.

    No other span can be among the best of all windows. Only the spans of one window are in memory.
    """
    for window in range(len(windows)):
        part = slice(windows.bounds[window], windows.bounds[window + 1])
        start = _with_cls(windows.cls_logits[window, 0], windows.start_logits[part])[1:]
        end = _with_cls(windows.cls_logits[window, 1], windows.end_logits[part])[1:]
        length = np.arange(len(start))[None, :] - np.arange(len(start))[:, None] + 1
        first, last = np.nonzero((length >= 1) & (length <= max_answer_length))
        scores = start[first] * end[last]
        order = np.argsort(-scores, kind="stable").tolist()
        distinct: dict[tuple[int, int], int] = {}
        for index in order:
            distinct.setdefault(_widened(windows, words, window, int(first[index]), int(last[index])), index)
            if len(distinct) == top:
                break
        worst = [(_widened(windows, words, window, int(first[n]), int(last[n])), n) for n in order[-1:]]
        for (begin, stop), index in (*distinct.items(), *worst):
            yield Answer(context[begin:stop], begin, stop, float(scores[index]), float(scores[index]))


def _null_answer(windows: SquadWindows) -> Answer:
    """Return the empty answer, scored by the smallest product of [CLS] probabilities of a window."""
    bounds = zip(windows.bounds, windows.bounds[1:], windows.cls_logits, strict=False)
    products = [
        _with_cls(cls[0], windows.start_logits[first:stop])[0] * _with_cls(cls[1], windows.end_logits[first:stop])[0]
        for first, stop, cls in bounds
    ]
    return Answer("", 0, 0, float(min(products)), float(min(products)))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _widened(windows: SquadWindows, words: Array, window: int, first: int, last: int) -> tuple[int, int]:
    part = slice(windows.bounds[window], windows.bounds[window + 1])
    here, characters = words[part], windows.characters[part]
    first = int(np.flatnonzero(here == here[first])[0])
    last = int(np.flatnonzero(here == here[last])[-1])
    return int(characters[first, 0]), int(characters[last, 1])


def _with_cls(cls_logit: float, logits: Array) -> Array:
    both = np.concatenate(([cls_logit], logits)).astype(np.float64)
    weights = np.exp(both - both.max())
    found: Array = weights / weights.sum()
    return found


def _best_spans(windows: SquadWindows, keep: int, max_answer_length: int) -> _Spans:
    """Return up to `keep` best spans of every window, from its `keep` best starts and ends."""
    parts = [(np.empty(0, np.int64),) * 3 + (np.empty(0),)]
    for begin in range(0, len(windows), _WINDOWS_AT_ONCE):
        bounds = windows.bounds[begin : begin + _WINDOWS_AT_ONCE + 1]
        first, start = _best_tokens(windows.start_logits, bounds, keep)
        last, end = _best_tokens(windows.end_logits, bounds, keep)
        length = last[:, None, :] - first[:, :, None] + 1
        allowed = (length >= 1) & (length <= max_answer_length)
        scores = np.where(allowed, start[:, :, None] + end[:, None, :], -np.inf)  # [B, K, K]
        k = first.shape[1]
        flat = scores.reshape(len(first), k * k)
        order = np.argsort(-flat, axis=1, kind="stable")[:, :keep]
        rows, columns = np.nonzero(np.isfinite(np.take_along_axis(flat, order, axis=1)))
        chosen = order[rows, columns]
        parts.append((rows + begin, first[rows, chosen // k], last[rows, chosen % k], flat[rows, chosen]))
    return _Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _best_tokens(values: Array, bounds: Array, keep: int) -> tuple[Array, Array]:
    """Return numbers and values [B, K] of each window's best tokens; K <= keep, padded with -inf."""
    counts = np.diff(bounds)
    table = np.full((len(counts), max(1, int(counts.max()))), -np.inf, dtype=values.dtype)
    table[np.arange(table.shape[1]) < counts[:, None]] = values[bounds[0] : bounds[-1]]
    order = np.argsort(-table, axis=1, kind="stable")[:, :keep]
    return order, np.take_along_axis(table, order, axis=1)
