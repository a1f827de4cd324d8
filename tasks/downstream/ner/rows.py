"""Sentences as sequences of rows: windows of their words, with features.parquet to find the way back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.ner import about
from tasks.downstream.ner.about import FEATURES_SCHEMA
from tasks.downstream.ner.params import WindowParams
from tasks.downstream.ner.windows import Windows, make_windows
from tasks.downstream.rows import RowsTask, Sequences, Sides, make_lists
from tasks.downstream.task import TRAIN
from tasks.reading.labels import labels_of_examples, with_labels
from tasks.rows.row_files import IGNORED, Layout

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Task(about.Task, RowsTask):
    """Each sentence becomes one window or several, of [CLS] words [SEP]."""

    chunk: ClassVar[int] = 16384
    columns: ClassVar[tuple[str, ...]] = ("tokens", "tags")

    @property
    def labels(self) -> tuple[str, ...]:
        """As the examples have them: rows that lie there may be of others."""
        return labels_of_examples(self.examples_file(TRAIN).parent, self.entry.stage("examples"))

    @property
    def features(self) -> pa.Schema:
        return with_labels(FEATURES_SCHEMA, self.labels)

    def hold_out(self, source: Path, fraction: float) -> Sides:
        """By hashes of the words."""
        return self.hold_out_by_hash(
            source, fraction, ("tokens",), lambda batch: map("\n".join, batch.column("tokens").to_pylist())
        )

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> Sequences:
        """Rows to predict are labelled, too; types that train has not have no label."""
        shape = self.entry.rows
        assert isinstance(shape, WindowParams)
        windows = make_windows(tokenizer, examples.column("tokens").to_pylist(), shape.row_length, shape.overlap)
        numbers = {name: number for number, name in enumerate(self.labels)}
        tags = [numbers.get(tag, IGNORED) for tags in examples.column("tags").to_pylist() for tag in tags]
        return Sequences(
            windows.token_ids,
            windows.lengths,
            second_starts=windows.lengths,
            labels={"token_labels": token_labels(windows, np.array(tags, dtype=np.int16))},
            features={
                "example_index": windows.example_index,
                "n_tokens": windows.lengths,
                "positions": make_lists(windows.own_words, windows.positions),
            },
            counts={
                "in several windows": windows.divided,
                "words that the tokenizer leaves nothing of, as [UNK]": windows.unknown,
                "words longer than a row, shortened": windows.shortened,
            },
        )

    def label_columns(self, layout: Layout, sequences: Sequences) -> dict[str, np.ndarray]:
        flat = np.full(len(layout.packs) * layout.row_length, IGNORED, dtype=np.int16)
        flat[layout.targets()] = sequences.labels["token_labels"]
        return {"token_labels": flat.reshape(len(layout.packs), layout.row_length)}


def token_labels(windows: Windows, labels: np.ndarray) -> np.ndarray:
    """int16 of each token of the windows: the label of the word whose first piece it is, else -100.

    Args:
        labels: int16 of each word.
    """
    first = np.cumsum(windows.lengths) - windows.lengths
    found = np.full(len(windows.token_ids), IGNORED, dtype=np.int16)
    found[np.repeat(first, windows.own_words) + windows.positions] = labels
    return found
