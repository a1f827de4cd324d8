"""The names of the classes, which come from the training sentences: O, then B- and I- of every type in order.

The stage examples writes them to labels.json, the stage rows into features.parquet of every row folder, as rows are all
that training and prediction are given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.ner.tags import BEGIN, INSIDE, OUTSIDE
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json, write_json
from tasks.project.row_folders import read_manifest

LABELS_FILE = "labels.json"
_KEY = "labels"
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("positions", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per window: its sentence, its tokens, and the positions of the first pieces of the words that belong to it.
The words of a sentence's windows, one after the other, are the sentence's."""


def labels_of_types(types: Iterable[str]) -> tuple[str, ...]:
    """The classes of these types: labels_of_types(["b", "a"]) == ("O", "B-a", "I-a", "B-b", "I-b")."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in (BEGIN, INSIDE)))


def write_labels(folder: Path, labels: Sequence[str]) -> None:
    """Write labels.json beside the examples."""
    write_json(folder / LABELS_FILE, {_KEY: list(labels)})


def labels_of_examples(folder: Path, stage: str) -> tuple[str, ...]:
    """The classes of the examples in `folder`.

    Args:
        stage: that makes them, for the message.

    Raises:
        InputError: labels.json is missing or damaged.
    """
    path = Path(folder) / LABELS_FILE
    try:
        return _checked(read_json(path)[_KEY])
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run the stage {stage}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no names of classes ({error}); run the stage {stage} again") from None


def with_labels(schema: pa.Schema, labels: Sequence[str]) -> pa.Schema:
    """The columns of features.parquet, with the names of the classes beside them."""
    return schema.with_metadata({_KEY: json.dumps(list(labels))})


def labels_of_rows(folder: Path) -> tuple[str, ...]:
    """The classes of the rows in `folder`.

    Where a manifest was restored alone, which is enough to build programs, the classes are there by number only and
    are called as Hugging Face calls classes without names.

    Raises:
        InputError: there are no such rows, or features.parquet is damaged.
    """
    if (Path(folder) / artifacts.FEATURES).is_file():
        return labels_in(Path(folder) / artifacts.FEATURES)
    return tuple(f"LABEL_{number}" for number in range(read_manifest(folder).num_labels))


def labels_in(features: Path) -> tuple[str, ...]:
    """The classes that a features.parquet names.

    Raises:
        InputError: it is missing or damaged, or names none.
    """
    try:
        stated = (pq.read_schema(features).metadata or {})[_KEY.encode()]
        return _checked(json.loads(stated))
    except FileNotFoundError:
        raise InputError(f"{features} is not there; make the rows first") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{features} names no classes ({error}); make the rows again") from None


def _checked(labels: object) -> tuple[str, ...]:
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise ValueError("a list of names is required")
    return tuple(labels)
