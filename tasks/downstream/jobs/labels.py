"""Classes of the rows of an entry, and their weights in the loss."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.params.entries import Entry
from tasks.records.labels import read_row_labels
from tasks.stage.row_folders import read_manifest


def labels_of(entry: Entry, rows: Path) -> tuple[str, ...]:
    """Return the labels of a model for the rows in this folder, in order; empty: it has none."""
    return entry.params.labels or (read_row_labels(rows) if entry.params.has_labels else ())


def weigh_classes(entry: Entry, rows: Path) -> list[float] | None:
    """Return the weights of `balanced`: all classes have the same weight in sum. Rows without files have 1.

    Returns:
        None if finetune.class_weights is not set, or the kind does not have it: all weights are 1.
    """
    if getattr(entry.params.finetune, "class_weights", None) is None:
        return None
    counts = np.zeros(len(labels_of(entry, rows)))
    for path in filter(Path.is_file, (rows / name for name in read_manifest(rows).files)):
        with pa.memory_map(str(path)) as source:
            labels = pa.ipc.open_file(source).read_all().column("class_labels").combine_chunks().values.to_numpy()
            counts += np.bincount(labels[labels >= 0], minlength=len(counts))
    weights: list[float] = (counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist()
    return weights if counts.any() else [1.0] * len(counts)
