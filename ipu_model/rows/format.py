"""Format of packed rows on disk, the data format of every runtime.

A row folder contains `rows-00000.arrow`, `rows-00001.arrow`, ... (Arrow IPC files, memory-mapped) and
`manifest.json`. Legend: L tokens per row, S maximum sequences per row, P maximum masked positions per row.
Needs numpy and pyarrow only, on Python 3.8 upwards.

Tokens have a type (0 first segment, 1 second) and a position, both from 0 in every sequence, and the number of their
sequence, 1..S or 0 for padding: they attend only to their own. `cls_positions` has the start of each sequence.
Every kind of rows adds its own columns: ipu_model/row_kinds has one file per kind.
Sequences are concatenated from position 0; padding is only at the end of the row.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np
import pyarrow as pa

from ipu_model import row_kinds
from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.core.files import read_json
from ipu_model.core.strict import read_strictly

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
DOCUMENTS = "documents.npy"
"""Optional file of a row folder: int32 [R, S], the number of the document of each sequence, -1 in an unused slot."""
IGNORED = -100
"""Label of a slot that is not part of the loss."""
DERIVED = ("packing_factor", "packing_efficiency")
"""Keys of a manifest that are informative only, computed from others."""
NOT_WRITTEN = (("pad_id", 0), ("unit", 1))
"""Defaults that a manifest leaves out."""
ABSENT = -1
"""Value of cls_positions and feature_ids in an unused slot."""
MAX_SEQUENCES = 255
"""sequence_ids are uint8 and 0 is padding."""
MAX_LOGIT = 10**6
"""Exclusive bound of a teacher's logits."""
MAX_ROW_LENGTH = 32767
"""Positions are int16."""


TOKENS, SEQUENCES, PREDICTIONS = "row_length", "max_sequences", "max_predictions"
SEQUENCE_LABELS, TOKEN_LABELS = "sequence_labels", "token_labels"
"""Widths of columns, as fields of Manifest: one value per token, sequence, masked position, or label of a sequence or
token."""


@dataclass(frozen=True)
class Column:
    """A column of rows with its type and range of values."""

    name: str
    type: str
    """NumPy name of the type."""
    width: str
    """TOKENS, SEQUENCES, PREDICTIONS or SEQUENCE_LABELS."""
    least: int
    """Minimum value, also the value of padding and unused slots if `padding` is None."""
    below: Union[str, float]
    """Exclusive upper bound of values: a number, or the name of a size (`Manifest.sizes`)."""
    padding: Optional[int] = None
    """Value of padding that is not `least`."""

    @property
    def unused(self) -> int:
        """Value of padding and unused slots."""
        return self.least if self.padding is None else self.padding

    def end(self, sizes: Mapping[str, int]) -> float:
        """Return the exclusive upper bound of values."""
        return sizes[self.below] if isinstance(self.below, str) else self.below


FEATURE_IDS = Column("feature_ids", "int32", SEQUENCES, ABSENT, 2**31 - 1)
"""Number of the sequence's example, or of its line in features.parquet: 0, 1, ..., each once. Kinds of rows used for
prediction have this column."""


MASKED_TOKENS = (
    Column("masked_positions", "int16", PREDICTIONS, 0, "row_length"),
    Column("masked_labels", "int32", PREDICTIONS, IGNORED, "vocab_size"),
)
"""Absolute positions of masked tokens in the row, and their original ids."""


def teacher_column(name: str, width: str) -> Column:
    """Return the column of rows with the teacher's values for the column `name` of a prediction file."""
    return Column(f"teacher_{name}", "float32", width, -MAX_LOGIT, MAX_LOGIT, padding=0)


@dataclass(frozen=True)
class TeacherRecord:
    """Origin of the teacher's logits in rows."""

    weights_sha256: str
    rows_sha256: str
    """SHA-256 of the manifest of the rows without logits."""


@dataclass(frozen=True)
class Manifest:
    """Manifest of a row folder; readers check it against the files and the job."""

    kind: str
    """Name of a file of ipu_model/row_kinds."""
    row_length: int
    max_sequences: int
    max_predictions: int
    """P; 0 without masked tokens."""
    vocab_size: int
    tokenizer_sha256: str
    """SHA-256 of data/tokenizer/tokenizer.json."""
    seed: int
    rows: int
    sequences: int
    real_tokens: int
    files: Dict[str, int]
    """File name -> rows in it, in reading order (sorted names)."""
    num_labels: int = 0
    """Number of classes, 1 for a regression, 0 for other kinds of rows."""
    pad_id: int = 0
    """Token id in padding; written if it is not 0."""
    unit: int = 1
    """Sequences of an example that share a row; above 1, every row is one example. Written if it is not 1."""
    schema_version: int = SCHEMA_VERSION
    mask_id: Optional[int] = None
    """Id of [MASK]; None without masked tokens."""
    special_ids: Optional[List[int]] = None
    """Ids that are never masked, and never replace a masked token; None without masked tokens."""
    teacher: Optional[TeacherRecord] = None
    """Origin of the logits in the columns TEACHER of the kind; None without them."""

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the row files."""
        shape = self.row_length, self.max_sequences, self.max_predictions
        return row_schema(self.kind, *shape, self.vocab_size, self.num_labels, self.teacher is not None)

    @property
    def sequence_labels(self) -> int:
        """Labels of all sequences of a row: those of one sequence follow each other."""
        return self.max_sequences * self.num_labels

    @property
    def token_labels(self) -> int:
        """Labels of all tokens of a row: those of one token follow each other."""
        return self.row_length * self.num_labels

    @property
    def columns(self) -> Tuple[Column, ...]:
        """Columns of the rows, in order."""
        return get_columns(self.kind, self.vocab_size, self.pad_id, self.teacher is not None)

    def sizes(self, vocab_size: int, type_vocab_size: int, max_positions: int) -> Dict[str, int]:
        """Return the upper bounds of column values by name, for a model or tokenizer of these sizes."""
        return {
            "vocab_size": vocab_size,
            "type_vocab_size": type_vocab_size,
            "max_positions": max_positions,
            "row_length": self.row_length,
            "sequence_numbers": self.max_sequences + 1,
            "num_labels": max(1, self.num_labels),
        }

    @property
    def packing_factor(self) -> float:
        """Sequences per row."""
        return self.sequences / self.rows if self.rows else 0.0

    @property
    def text_length(self) -> int:
        """Tokens of the longest sequence that fits."""
        return self.row_length // self.unit

    @property
    def batch_factor(self) -> float:
        """Number per row of what a batch counts: sequences, or examples of several sequences."""
        return 1.0 if self.unit > 1 else self.packing_factor

    @property
    def packing_efficiency(self) -> float:
        """Real tokens / all tokens, 0 to 1."""
        return self.real_tokens / (self.rows * self.row_length) if self.rows else 0.0

    def to_json(self) -> str:
        values = {k: x for k, x in dataclasses.asdict(self).items() if x is not None and (k, x) not in NOT_WRITTEN}
        values["packing_factor"] = round(self.packing_factor, 4)
        values["packing_efficiency"] = round(self.packing_efficiency, 4)
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def list_row_kinds() -> List[str]:
    """Return the names of all kinds of rows: the files of ipu_model/row_kinds."""
    return sorted(module.name for module in pkgutil.iter_modules(row_kinds.__path__))


@functools.lru_cache(maxsize=None)  # called for every batch
def get_columns(kind: str, vocab_size: int, pad_id: int = 0, taught: bool = False) -> Tuple[Column, ...]:
    """Return the columns of a kind of rows, in order; `taught`: with those of a teacher's logits.

    Raises:
        ConfigError: there is no such kind.
    """
    if kind not in list_row_kinds():
        raise ConfigError(f"rows of kind {kind!r} are not known; valid: {', '.join(list_row_kinds())}")
    module: Any = importlib.import_module(f"{row_kinds.__name__}.{kind}")
    return (
        Column("input_ids", "uint16" if vocab_size <= 65536 else "uint32", TOKENS, 0, "vocab_size", pad_id),
        Column("token_type_ids", "uint8", TOKENS, 0, "type_vocab_size"),
        Column("position_ids", "uint16", TOKENS, 0, "max_positions"),
        Column("sequence_ids", "uint8", TOKENS, 0, "sequence_numbers"),
        Column("cls_positions", "int16", SEQUENCES, ABSENT, "row_length"),
        *module.COLUMNS,
        *(module.TEACHER if taught else ()),
    )


def row_schema(
    kind: str,
    row_length: int,
    max_sequences: int,
    max_predictions: int,
    vocab_size: int,
    num_labels: int = 0,
    taught: bool = False,
) -> pa.Schema:
    """Return the Arrow schema of a row file; no column is nullable."""
    widths = {TOKENS: row_length, SEQUENCES: max_sequences, PREDICTIONS: max_predictions}
    widths.update({SEQUENCE_LABELS: max_sequences * num_labels, TOKEN_LABELS: row_length * num_labels})
    return pa.schema(
        [
            pa.field(x.name, pa.list_(pa.from_numpy_dtype(x.type), widths[x.width]), nullable=False)
            for x in get_columns(kind, vocab_size, taught=taught)
        ]
    )


def to_arrow(values: np.ndarray) -> pa.Array:
    """Return an Arrow array of the numbers of a contiguous array [n], without a copy.

    `pa.array` does the same, but first imports pandas if it is installed: 0.2 s of CPU time.
    """
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])


def from_arrow(numbers: pa.Array) -> np.ndarray:
    """Return the numbers [n] of an Arrow array without nulls, read-only and without a copy.

    `numbers.to_numpy()` does the same, but imports pandas as `pa.array` does.
    """
    name = str(numbers.type)
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))  # other names are equal in both
    if not len(numbers):  # there may be no buffer
        return np.empty(0, dtype)
    return np.frombuffer(numbers.buffers()[1], dtype, len(numbers), numbers.offset * dtype.itemsize)


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json` of a row folder.

    Raises:
        RowsError: missing, not JSON, of another schema version, or naming missing files.
    """
    path = Path(folder) / MANIFEST
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise RowsError(f"{path} is missing: {path.parent} is not a row folder, or is incomplete") from None
    except ValueError as error:
        raise RowsError(f"{path} is not JSON ({error}); make the rows again") from None
    try:
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if name not in DERIVED}
        manifest = read_strictly(Manifest, values, str(path))
    except ConfigError as error:
        raise RowsError(f"{error}; make the rows again with this version") from None
    if manifest.schema_version != SCHEMA_VERSION:
        raise RowsError(
            f"{path} has schema version {manifest.schema_version}, but this version reads {SCHEMA_VERSION}; "
            "make the rows again"
        )
    unsafe = [name for name in manifest.files if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name]
    if unsafe:
        raise RowsError(f"{path}: {unsafe[0]!r} is not a valid name of a row file; use names of files in its folder")
    missing = [name for name in manifest.files if not (Path(folder) / name).is_file()]
    if missing:
        raise RowsError(f"{folder} lacks {', '.join(missing)}, listed in its manifest; make the rows again")
    return manifest
