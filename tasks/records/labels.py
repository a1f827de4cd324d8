"""Class names taken from the training examples.

They are stored with the examples, in labels.json or in the Parquet files themselves. The stage rows copies them into
features.parquet of every row folder, because training and prediction read only rows.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.files import read_json, write_json
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest

LABELS_FILE = "labels.json"
_KEY, _OTHERS = "labels", "others"


def write_labels(folder: Path, labels: Sequence[str]) -> None:
    """Write labels.json to the folder of the examples."""
    write_json(folder / LABELS_FILE, {_KEY: list(labels)})


def read_example_labels(folder: Path, stage: str) -> tuple[str, ...]:
    """Return the classes of the examples in `folder`, which `stage` makes."""
    path = Path(folder) / LABELS_FILE
    try:
        return _require_names(read_json(path)[_KEY])
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: run the stage {stage}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no class names ({error}): rerun the stage {stage}") from None


def add_labels(schema: pa.Schema, labels: Sequence[str], others: Sequence[str] = ()) -> pa.Schema:
    """Return a Parquet schema with the class names in its metadata.

    Only development examples have the classes `others`, which cannot be learned; they are numbered after `labels`.
    """
    return schema.with_metadata({_KEY: json.dumps(list(labels)), _OTHERS: json.dumps(list(others))})


def read_row_labels(folder: Path) -> tuple[str, ...]:
    """Return the classes of the rows in `folder`.

    If only the manifest was restored, which is enough to compile programs, the number of classes is known but not
    their names. They get Hugging Face's default names, LABEL_0 and so on.
    """
    if (Path(folder) / artifacts.FEATURES).is_file():
        return read_parquet_labels(Path(folder) / artifacts.FEATURES)[0]
    return tuple(f"LABEL_{number}" for number in range(read_manifest(folder).num_labels))


def read_parquet_labels(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes that a Parquet file names, and the others that cannot be learned."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        others = json.loads(metadata.get(_OTHERS.encode(), b"[]"))
        return _require_names(json.loads(metadata[_KEY.encode()])), tuple(map(str, others))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: run its stage first") from None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no class names ({error}): rerun its stage") from None


def _require_names(labels: object) -> tuple[str, ...]:
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise ValueError("expected a list of names")
    return tuple(labels)
