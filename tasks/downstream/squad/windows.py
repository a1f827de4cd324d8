"""Windows of questions with their logits: a checked join of features.parquet and logits.arrow.

Legend: F windows (features), C context tokens of all windows together, E examples (questions).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import Array, FeatureFiles

PART_TOKENS = 1 << 20
"""Approximate tokens in a part, exceeded by at most one example: about 30 MB of offsets and logits."""
LOGITS = ("start_logits", "end_logits")


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
            here = {name: column[first : first + count] for name, column in index.items()}
            counted = self._context_tokens(here, offsets, first)
            starts, ends = next(logits)
            yield _joined(here, offsets.flatten().to_numpy().reshape(-1, 2), counted, starts, ends)
            first += count

    def windows_of_examples(self) -> list[int]:
        """Return the number of windows of each example."""
        index = self.read_numbers("example_index")["example_index"]
        counts: list[int] = np.bincount(index, minlength=len(self.example_ids)).tolist()
        return counts

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
        counts: Array = lengths // 2
        return counts


def _joined(index: dict[str, Array], characters: Array, counts: Array, starts: Array, ends: Array) -> SquadWindows:
    """Return windows with `counts` context tokens; `starts` and `ends` are the logits of all tokens."""
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    first_token = np.concatenate(([0], np.cumsum(index["n_tokens"], dtype=np.int64)))[:-1]
    position = np.repeat(first_token + index["context_start"] - bounds[:-1], counts) + np.arange(bounds[-1])
    return SquadWindows(
        example_index=index["example_index"],
        bounds=bounds,
        characters=characters,
        start_logits=starts[position],
        end_logits=ends[position],
        cls_logits=np.stack([starts[first_token], ends[first_token]], axis=1),
    )
