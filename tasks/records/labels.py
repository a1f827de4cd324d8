"""The names of classes that come from the training examples.

They stand beside the examples, in labels.json or in the Parquet files themselves, and the stage rows writes them into
features.parquet of every row folder, as rows are all that training and prediction are given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.files import read_json, write_json
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest

LABELS_FILE = "labels.json"
_KEY, _OTHERS = "labels", "others"


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


def with_labels(schema: pa.Schema, labels: Sequence[str], others: Sequence[str] = ()) -> pa.Schema:
    """The columns of a Parquet file, with the names of the classes beside them.

    Args:
        others: classes that cannot be learnt, as only development examples have them; their numbers follow.
    """
    return schema.with_metadata({_KEY: json.dumps(list(labels)), _OTHERS: json.dumps(list(others))})


def labels_of_rows(folder: Path) -> tuple[str, ...]:
    """The classes of the rows in `folder`.

    Where a manifest was restored alone, which is enough to build programs, the classes are there by number only and
    are called as Hugging Face calls classes without names.

    Raises:
        InputError: there are no such rows, or features.parquet is damaged.
    """
    if (Path(folder) / artifacts.FEATURES).is_file():
        return all_labels_in(Path(folder) / artifacts.FEATURES)[0]
    return tuple(f"LABEL_{number}" for number in range(read_manifest(folder).num_labels))


def all_labels_in(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes that a Parquet file names, and the others that cannot be learnt.

    Raises:
        InputError: it is missing or damaged, or names none.
    """
    try:
        stated = pq.read_schema(path).metadata or {}
        others = json.loads(stated.get(_OTHERS.encode(), b"[]"))
        return _checked(json.loads(stated[_KEY.encode()])), tuple(map(str, others))
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run its stage first") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} names no classes ({error}); run its stage again") from None


def _checked(labels: object) -> tuple[str, ...]:
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise ValueError("a list of names is required")
    return tuple(labels)
