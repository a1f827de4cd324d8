"""Schema of the examples of an entry of texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.downstream.texts.task_table import TextTask


def make_schema(task: TextTask) -> pa.Schema:
    """Return the schema of the examples; `second` is null for single texts.

    A label is a value, the number of a class, or the numbers of all labels, ascending.
    """
    label = pa.float32() if task.is_regression else pa.list_(pa.int32()) if task.is_multilabel else pa.int32()
    return pa.schema(
        [
            pa.field("first", pa.string(), nullable=False),
            pa.field("second", pa.string()),
            pa.field("label", label, nullable=False),
            pa.field("id", pa.string(), nullable=False),
        ]
    )


def join_texts(batch: pa.RecordBatch) -> list[str]:
    """Return the text of each example, those of a pair with a tab between them."""
    pairs = zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
    return ["\t".join(part for part in pair if part is not None) for pair in pairs]


def make_flags(labels: pa.ListArray, count: int) -> np.ndarray:
    """Return int8 [examples, count]: 1 where an example has the label; other numbers of labels are left out."""
    flags = np.zeros((len(labels), count), np.int8)
    example, number = (array.to_numpy() for array in (pc.list_parent_indices(labels), pc.list_flatten(labels)))
    known = (number >= 0) & (number < count)
    flags[example[known], number[known]] = 1
    return flags
