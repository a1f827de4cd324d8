"""Windows of questions with their logits, and decoding to answers: character spans of the context, with scores.

`WindowFiles` is a checked join of features.parquet and logits.arrow. Two decoders consider the same spans of context
tokens: end not before start, at most `max_answer_length` tokens.

- `best_answers` is used for evaluation and follows transformers' `run_qa.py`: score = start logit + end logit, the best
  `n_best` over all windows of an example, probabilities by a softmax over these;
- `probable_answers` is used by `tasks.downstream.squad.ask` and follows the question-answering pipeline of transformers
  4: softmax of the start and end logits of a window, score = product of the two probabilities.

The null score of a question is the score of [CLS] (start logit + end logit), the minimum over its windows. Its odds are
the null score minus the score of the best span. Questions with odds above the no-answer threshold get no answer: Devlin
et al. 2019, section 4.3, and run_squad.py. The threshold is chosen on held-out questions.

Legend: F windows (features), C context tokens of all windows together, E examples (questions), B windows of a block, K
best tokens of a window.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import Array, FeatureFiles
from tasks.downstream.scoring.thresholds import ChosenThreshold, choose_threshold, read_recorded
from tasks.stage.errors import InputError

PART_TOKENS = 1 << 20
"""Approximate tokens in a part, exceeded by at most one example: about 30 MB of offsets and logits."""
LOGITS = ("start_logits", "end_logits")
_WINDOWS_AT_ONCE = 512
"""Memory limit: n_best 20 gives 400 candidate spans per window."""
NULL_THRESHOLD = "null_threshold"


@dataclass(frozen=True)
class SquadWindows:
    """Context tokens of all windows, in order of feature id."""

    example_index: Array
    """int [F]: line of the question; not decreasing."""
    bounds: Array
    """int [F + 1]: window f has the context tokens bounds[f] to bounds[f + 1] - 1."""
    characters: Array
    """int [C, 2]: start and end of each token in its context."""
    start_logits: Array
    """float32 [C]."""
    end_logits: Array
    """float32 [C]."""
    cls_logits: Array
    """float32 [F, 2]: start and end logit of each window's [CLS]."""

    def __len__(self) -> int:
        return len(self.example_index)


@dataclass(frozen=True)
class WindowFiles(FeatureFiles):
    """Files with the windows of questions: features.parquet (rows) and logits.arrow (predict job)."""

    example_ids: Sequence[str]
    """Id of every example, in order of the questions, [E]."""

    def parts(self) -> Iterator[tuple[slice, SquadWindows]]:
        """Yield parts: a slice of the examples, and their windows with `example_index` counted from its start.

        Raises:
            InputError: as `read`, or windows that are not in order of the questions.
        """
        for windows in self._read(PART_TOKENS):
            first, last = int(windows.example_index[0]), int(windows.example_index[-1])
            yield slice(first, last + 1), replace(windows, example_index=windows.example_index - first)

    def read(self) -> SquadWindows:
        """Return all windows, checked against the questions.

        Raises:
            InputError: an unreadable file; missing logits, logits of a wrong length or not finite; features of other
                questions, or an example without a feature.
        """
        [windows] = self._read()
        return windows

    def _read(self, tokens: int | None = None) -> Iterator[SquadWindows]:
        """Yield the windows in parts.

        Args:
            tokens: approximate tokens of a part; None: a single part.
        """
        index = self.read_numbers("example_id", "example_index", "n_tokens", "context_start")
        self._check_examples(index["example_index"], index.pop("example_id"))
        lengths = index["n_tokens"]
        stops = [len(lengths)] if tokens is None else self._stops(index, tokens)
        counts = np.diff([0, *stops]).tolist()
        logits, first = self.read_logits(LOGITS, lengths, counts), 0
        for count, offsets in zip(counts, self.read_lists("offsets", counts), strict=True):
            columns = {name: column[first : first + count] for name, column in index.items()}
            counted = self._context_tokens(columns, offsets, first)
            starts, ends = next(logits)
            yield _joined(columns, offsets.flatten().to_numpy().reshape(-1, 2), counted, starts, ends)
            first += count

    def windows_of_examples(self) -> list[int]:
        """Return the number of windows of each example."""
        index = self.read_numbers("example_index")["example_index"]
        return np.bincount(index, minlength=len(self.example_ids)).tolist()

    def _check_examples(self, index: Array, named: Array) -> None:
        count = len(self.example_ids)
        if len(index) and (index.min() < 0 or index.max() >= count):
            raise self.refuse_rows(f"has question {int(index.max())}, there are {count} questions")
        wanted = np.asarray(self.example_ids, dtype=object)[index]
        if len(other := np.flatnonzero(wanted != named)):
            line = int(other[0])
            raise self.refuse_rows(f"feature {line} belongs to question {named[line]!r}, expected {wanted[line]!r}")
        if len(missing := np.setdiff1d(np.arange(count), index)):
            first = self.example_ids[int(missing[0])]
            raise self.refuse_rows(f"no feature for {len(missing)} of {count} questions, first {first!r}")

    def _stops(self, index: dict[str, Array], tokens: int) -> list[int]:
        steps = np.diff(index["example_index"])
        if (steps < 0).any():
            raise self.refuse_rows("example_index must not decrease")
        ends = np.concatenate((np.flatnonzero(steps) + 1, [len(steps) + 1]))
        before = np.cumsum(index["n_tokens"], dtype=np.int64)[ends - 1] // tokens
        return [int(end) for end, full in zip(ends, np.diff(before, append=before[-1] + 1), strict=True) if full]

    def _context_tokens(self, index: dict[str, Array], offsets: pa.ListArray, first: int) -> Array:
        lengths = np.asarray(offsets.value_lengths())
        if (lengths % 2).any():
            raise self.refuse_rows("offsets must be pairs of start and end")
        over = index["context_start"] + lengths // 2 > index["n_tokens"]
        if over.any():
            raise self.refuse_rows(f"feature {first + int(np.argmax(over))} has more context tokens than tokens")
        return lengths // 2


def _joined(index: dict[str, Array], characters: Array, counts: Array, starts: Array, ends: Array) -> SquadWindows:
    """Return windows with `counts` context tokens; `starts` and `ends` are the logits of all tokens."""
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    first_token = np.concatenate(([0], np.cumsum(index["n_tokens"], dtype=np.int64)))[:-1]
    position = np.repeat(first_token + index["context_start"] - bounds[:-1], counts)
    position += np.arange(bounds[-1])  # in place: a long text has millions of tokens
    return SquadWindows(
        example_index=index["example_index"],
        bounds=bounds,
        characters=characters,
        start_logits=starts[position],
        end_logits=ends[position],
        cls_logits=np.stack([starts[first_token], ends[first_token]], axis=1),
    )


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
    window, first, last, scores = _best_spans(windows, n_best, max_answer_length)
    example = windows.example_index[window]
    order = np.lexsort((np.arange(len(example)), -scores, example))
    ranked = example[order]
    rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked)
    order = order[rank < n_best]
    grouped: list[list[Answer]] = [[] for _ in contexts]
    base = windows.bounds[:-1][window[order]]
    starts = windows.characters[base + first[order], 0]
    ends = windows.characters[base + last[order], 1]
    for index, start, end, score in zip(
        example[order].tolist(), starts.tolist(), ends.tolist(), scores[order].tolist(), strict=True
    ):
        grouped[index].append(_cut_answer(contexts[index], start, end, score, 0.0))
    return [add_probabilities(answers) for answers in grouped]


def _cut_answer(context: str, start: int, end: int, score: float, probability: float) -> Answer:
    """Return a span of the context, without the blank that tokens of some tokenizers (ModernBERT's) begin with."""
    text = context[start:end].strip(" ")
    start += context[start:end].find(text)
    return Answer(text, start, start + len(text), score, probability)


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
        words: word number of every context token, [C]; ascending in a window.
        max_answer_length: maximum length in tokens, before widening.
        null_threshold: odds above which no answer is returned; None: always return one.
    """
    by_span: dict[tuple[int, int], Answer] = {}
    count = range(len(windows))
    ranked, odds = zip(*(_rank_window(windows, n, context, words, top, max_answer_length) for n in count), strict=True)
    candidates = sorted(itertools.chain(*ranked), key=lambda candidate: -candidate.score)
    null = None if null_threshold is None else Answer("", 0, 0, min(odds), min(odds))
    for answer in candidates:
        if null and _log(null.score) - (null_threshold or 0.0) > _log(answer.score):
            by_span[0, 0], null = null, None
        by_span.setdefault((answer.start, answer.end), answer)
        if len(by_span) >= top:
            break
    return list(by_span.values())[:top]


def _rank_window(
    windows: SquadWindows, window: int, context: str, words: Array, top: int, max_answer_length: int
) -> tuple[list[Answer], float]:
    """Return the best `top` distinct answers of a window, best first, and its worst one; and the product of the two
    probabilities of [CLS].

    No other span can be among the best of all windows. Only the spans of one window are in memory.
    """
    part = slice(windows.bounds[window], windows.bounds[window + 1])
    logits = zip(windows.cls_logits[window], (windows.start_logits, windows.end_logits), strict=True)
    start, end = (_with_cls(cls, values[part]) for cls, values in logits)
    numbers, count = words[part], len(start) - 1
    length = np.arange(count)[None, :] - np.arange(count)[:, None] + 1
    first, last = np.nonzero((length >= 1) & (length <= max_answer_length))
    scores = start[1:][first] * end[1:][last]
    # Spans are widened to the first token of their first word, and to the last token of their last.
    begins = windows.characters[part, 0][np.searchsorted(numbers, numbers)[first]].tolist()
    stops = windows.characters[part, 1][np.searchsorted(numbers, numbers, side="right")[last] - 1].tolist()
    order = np.argsort(-scores, kind="stable").tolist()
    distinct: dict[tuple[int, int], int] = {}
    for index in order:
        distinct.setdefault((begins[index], stops[index]), index)
        if len(distinct) == top:
            break
    chosen = [(begins[n], stops[n], float(scores[n])) for n in (*distinct.values(), *order[-1:])]
    return [_cut_answer(context, *span, span[-1]) for span in chosen], float(start[0] * end[0])


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _with_cls(cls_logit: float, logits: Array) -> Array:
    both = np.concatenate(([cls_logit], logits)).astype(np.float64)
    weights = np.exp(both - both.max())
    return weights / weights.sum()


def _best_spans(windows: SquadWindows, keep: int, max_answer_length: int) -> tuple[Array, Array, Array, Array]:
    """Return up to `keep` best spans of every window, from its `keep` best starts and ends: window, first and last
    token, numbered within the window, and score."""
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
    window, first, last, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return window, first, last, score


def _best_tokens(values: Array, bounds: Array, keep: int) -> tuple[Array, Array]:
    """Return numbers and values [B, K] of each window's best tokens; K <= keep, padded with -inf."""
    counts = np.diff(bounds)
    table = np.full((len(counts), max(1, int(counts.max()))), -np.inf, dtype=values.dtype)
    table[np.arange(table.shape[1]) < counts[:, None]] = values[bounds[0] : bounds[-1]]
    order = np.argsort(-table, axis=1, kind="stable")[:, :keep]
    return order, np.take_along_axis(table, order, axis=1)


def null_scores(windows: SquadWindows, examples: int) -> Array:
    """Return the null score of each example, [E]."""
    scores = np.full(examples, np.inf)
    np.minimum.at(scores, windows.example_index, windows.cls_logits[:, 0] + windows.cls_logits[:, 1])
    return scores


def rank_with_null(spans: Sequence[Answer], null_score: float, threshold: float) -> list[Answer]:
    """Return the chosen answer first, then the others by score, with probabilities; the null answer has no text.

    Args:
        spans: best spans of a question, best first; a single one without text means none.
        threshold: odds above which no answer is returned.
    """
    null = Answer("", 0, 0, null_score, 0.0)
    real = [span for span in spans if span.text]
    first = null if not real or null_score - real[0].score > threshold else real[0]
    others = sorted((answer for answer in (*real, null) if answer is not first), key=lambda answer: -answer.score)
    return add_probabilities([first, *others])


def best_span(answers: Sequence[Answer]) -> Answer:
    """Return the best answer with text from a result of `rank_with_null`, or an empty answer with score 0."""
    return next((answer for answer in answers if answer.text), Answer("", 0, 0, 0.0, 0.0))


def null_odds(answers: Sequence[Answer]) -> float:
    """Return the null score minus the score of the best span, from a result of `rank_with_null`."""
    null = next(answer for answer in answers if not answer.text)
    return null.score - best_span(answers).score


def odds_and_spans(answers: Sequence[Sequence[Answer]]) -> tuple[list[float], list[str]]:
    """Return `null_odds` and the text of `best_span` of each question."""
    return [null_odds(candidates) for candidates in answers], [best_span(candidates).text for candidates in answers]


def choose_null_threshold(odds: Sequence[float], f1: Sequence[float], has_answer: Sequence[bool]) -> ChosenThreshold:
    """Return the threshold with the best F1 over all questions, and the interval of this choice.

    It equals the odds of the last answered question; of equally good thresholds it is the lowest.

    Args:
        f1: F1 (0 to 1) of each best span.
    """
    # Gain over no answer: the score of the span, or minus one point for an unanswerable question.
    gains = np.where(has_answer, f1, -1.0)

    def place_at_odds(distinct: Array) -> Array:
        return np.concatenate([[math.nextafter(distinct[0], -math.inf)], distinct])

    return choose_threshold(np.asarray(odds, np.float64), [gains], lambda total: total, place_at_odds)


def read_null_threshold(folder: Path) -> float | None:
    """Return the no-answer threshold of a model folder; None: the model always answers.

    Raises:
        InputError: the recorded value is not a number.
    """
    threshold = read_recorded(folder).get(NULL_THRESHOLD)
    if not isinstance(threshold, int | float | None):
        raise InputError(f"{folder}: {NULL_THRESHOLD} must be a number, found {threshold!r:.40}")
    return None if threshold is None else float(threshold)
