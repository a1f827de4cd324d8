"""The answers that rows teach, decoded and compared with the reference answers of their questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tasks.downstream.squad.metrics import normalize_answer
from tasks.reading.parquet import group_batches
from tasks.validation.checks import Totals
from tasks.validation.row_rules import Examples

MAX_SHARE = 0.2
"""Largest share of targets that may differ. Tokens are whole pieces, so that a target may be wider than its answer
("square kilometres (2,700" for one cut off at "2,70"). With the vocabulary of bert-base-uncased 0.1 % of the targets
differ in SQuADShifts' questions on new Wikipedia, 0.3 % in twenty articles of SQuAD 2.0, and 8 % in a public set whose
answers are cut inside of words; offsets that are wrong by one token let nearly all differ."""
QUESTIONS_AT_ONCE, WINDOWS_AT_ONCE = 32, 1024
"""Few questions, as a context may have megabytes."""
NONE = -1


class Targets:
    """The targets of one folder of rows."""

    def __init__(self, features: Path, examples: Examples) -> None:
        """Prepare for windows of the file `features`, made from `examples`."""
        self._path, self._examples = features, examples
        self._spans = np.zeros((0, 2), np.int32)
        self.note = ""
        """What people must see, once `totals` has counted."""

    def prepare(self) -> None:
        """Make room for a span of each window."""
        self._spans = np.full((pq.read_metadata(self._path).num_rows, 2), NONE, np.int32)

    def add(self, windows: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
        """Note the targets of some windows: their first and last token, counted from the first of the context."""
        self._spans[windows] = np.stack([first, last], axis=1)

    def totals(self) -> Totals:
        """Return the share that differs, with a few examples."""
        targets, differ = int((self._spans[:, 0] != NONE).sum()), 0
        shown: list[str] = []
        for decoded, answers in self._decoded():
            if normalize_answer(decoded) not in map(normalize_answer, answers):
                differ += 1
                if len(shown) < 3:
                    shown.append(f"{decoded!r} for {answers[0]!r}")
        share = differ / max(1, targets)
        text = f"{differ:,} of {targets:,} targets ({share:.1%}) differ from every answer of their question"
        if differ:
            self.note = f"{text}, as their tokens are wider; for example {shown[0]}"
        return Totals({"targets": share}, {"targets": shown}, {"targets": text})

    def _decoded(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the characters of every target and the answers of its question; read alongside, a few at a time."""
        examples, before, batch = self._examples.read(("context", "answers"), QUESTIONS_AT_ONCE), 0, None
        for example, first, last in self._characters():
            while batch is None or example >= before + len(batch):
                before, batch = before + (0 if batch is None else len(batch)), next(examples)
            context = batch.column("context")[example - before].as_py()
            answers = batch.column("answers")[example - before].as_py()
            yield context[first:last], [one["text"] for one in answers]

    def _characters(self) -> Iterator[tuple[int, int, int]]:
        """Yield example, first and last character of every target, in order of the examples."""
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            line = 0
            for batch in group_batches(file, ["example_index", "offsets"], WINDOWS_AT_ONCE):
                spans = self._spans[line : line + len(batch)]
                line += len(batch)
                taught = np.flatnonzero(spans[:, 0] != NONE)
                lists = batch.column("offsets")
                starts, characters = lists.offsets.to_numpy(), lists.values.to_numpy()
                example = batch.column("example_index").to_numpy()[taught]
                first = characters[starts[taught] + 2 * spans[taught, 0]]
                last = characters[starts[taught] + 2 * spans[taught, 1] + 1]
                yield from zip(example.tolist(), first.tolist(), last.tolist(), strict=True)
