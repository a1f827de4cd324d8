"""Packed rows on disk: the one data format of every runtime.

A row folder holds `rows-00000.arrow`, `rows-00001.arrow`, ... (Arrow IPC files, memory-mapped) and
`manifest.json`. Legend: L tokens per row, S sequences per row at most, P masked positions per row at
most. Needs numpy and pyarrow only, on Python 3.8 upwards.

| column                  | type             | meaning                                                    |
|-------------------------|------------------|------------------------------------------------------------|
| input_ids[L]            | uint16 or uint32 | token ids; 0 = [PAD]                                       |
| token_type_ids[L]       | uint8            | 0 first segment, 1 second; restart in every sequence       |
| position_ids[L]         | uint16           | 0.. in every sequence                                      |
| sequence_ids[L]         | uint8            | 1..S, 0 = padding; a token sees only tokens of its own id  |
| cls_positions[S]        | int16            | where each sequence starts, -1 = no such sequence          |

Every kind of rows adds columns of its own: ipu_model/row_kinds has one file a kind.
Sequences lie one after the other from position 0; padding only at the end of the row.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Tuple, Union

import numpy as np
import pyarrow as pa

from ipu_model import row_kinds
from ipu_model.errors import ConfigError, RowsError
from ipu_model.files import read_json
from ipu_model.strict import read_strictly

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
IGNORED = -100
"""Label of a slot that takes no part in the loss."""
DERIVED = ("packing_factor", "packing_efficiency")
"""Keys of a manifest for people, computed from others."""
ABSENT = -1
"""cls_positions and feature_ids of a sequence that is not there."""
MAX_SEQUENCES = 255
"""sequence_ids are uint8 and 0 is padding."""
MAX_ROW_LENGTH = 32767
"""Positions are int16."""


TOKENS, SEQUENCES, PREDICTIONS = "row_length", "max_sequences", "max_predictions"
"""Widths of columns, as fields of Manifest: one value for each token, sequence or masked position of a row."""


@dataclass(frozen=True)
class Column:
    """One column of rows, and what it may hold."""

    name: str
    type: str
    """The type of its numbers, as NumPy names it."""
    width: str
    """TOKENS, SEQUENCES or PREDICTIONS."""
    least: int
    """Also the value that means nothing: of padding and of unused slots."""
    below: Union[str, float]
    """Values are smaller than this number, or than the size of this name (`Manifest.sizes`)."""

    def end(self, sizes: Mapping[str, int]) -> float:
        """Return the number that values are smaller than."""
        return sizes[self.below] if isinstance(self.below, str) else self.below


FEATURE_IDS = Column("feature_ids", "int32", SEQUENCES, ABSENT, 2**31 - 1)
"""The number of the example, or of the line of features.parquet, that a sequence is of: 0, 1, ..., each once. Kinds of
rows that are predicted with have it."""


@dataclass(frozen=True)
class Manifest:
    """What a row folder says of itself; readers check it against the files and the job."""

    kind: str
    """The name of a file of ipu_model/row_kinds."""
    row_length: int
    max_sequences: int
    max_predictions: int
    """P; 0 where nothing is masked."""
    vocab_size: int
    tokenizer_sha256: str
    """SHA-256 of data/tokenizer/tokenizer.json."""
    seed: int
    rows: int
    sequences: int
    real_tokens: int
    """Tokens that are not padding."""
    files: Dict[str, int]
    """File name -> rows in it, in reading order (sorted names)."""
    num_labels: int = 0
    """Classes of the labels, 1 for the values of a regression, 0 for rows of other kinds."""
    schema_version: int = SCHEMA_VERSION

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its files."""
        return row_schema(self.kind, self.row_length, self.max_sequences, self.max_predictions, self.vocab_size)

    def sizes(self, vocab_size: int, type_vocab_size: int, max_positions: int) -> Dict[str, int]:
        """Return what bounds the values of columns, for a model or a tokenizer of these sizes."""
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
    def packing_efficiency(self) -> float:
        """Real tokens / all tokens, 0 to 1."""
        return self.real_tokens / (self.rows * self.row_length) if self.rows else 0.0

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        values["packing_factor"] = round(self.packing_factor, 4)
        values["packing_efficiency"] = round(self.packing_efficiency, 4)
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def kinds() -> List[str]:
    """The kinds of rows that there are: the files of ipu_model/row_kinds."""
    return sorted(module.name for module in pkgutil.iter_modules(row_kinds.__path__))


@functools.lru_cache(maxsize=None)  # every batch that is read asks, and the folder of kinds stays as it is
def columns_of(kind: str, vocab_size: int) -> Tuple[Column, ...]:
    """The columns of rows of this kind, in their order.

    Raises:
        ConfigError: there is no such kind.
    """
    if kind not in kinds():
        raise ConfigError(f"rows of kind {kind!r} are not known; valid: {', '.join(kinds())}")
    own: Tuple[Column, ...] = importlib.import_module(f"{row_kinds.__name__}.{kind}").COLUMNS
    return (
        Column("input_ids", "uint16" if vocab_size <= 65536 else "uint32", TOKENS, 0, "vocab_size"),
        Column("token_type_ids", "uint8", TOKENS, 0, "type_vocab_size"),
        Column("position_ids", "uint16", TOKENS, 0, "max_positions"),
        Column("sequence_ids", "uint8", TOKENS, 0, "sequence_numbers"),
        Column("cls_positions", "int16", SEQUENCES, ABSENT, "row_length"),
        *own,
    )


def row_schema(kind: str, row_length: int, max_sequences: int, max_predictions: int, vocab_size: int) -> pa.Schema:
    """The Arrow schema of a row file, no column nullable."""
    widths = {TOKENS: row_length, SEQUENCES: max_sequences, PREDICTIONS: max_predictions}
    return pa.schema(
        [
            pa.field(x.name, pa.list_(pa.from_numpy_dtype(x.type), widths[x.width]), nullable=False)
            for x in columns_of(kind, vocab_size)
        ]
    )


def to_arrow(values: np.ndarray) -> pa.Array:
    """The numbers of a contiguous array [n], not copied.

    `pa.array` does the same, but imports pandas first where it is installed: 0.2 s of CPU.
    """
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])


def from_arrow(numbers: pa.Array) -> np.ndarray:
    """The numbers [n] of an Arrow array without nulls, not copied; read-only.

    `numbers.to_numpy()` does the same, and imports pandas as `pa.array` does.
    """
    name = str(numbers.type)
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))  # the others are called alike
    if not len(numbers):  # there may be no buffer at all
        return np.empty(0, dtype)
    return np.frombuffer(numbers.buffers()[1], dtype, len(numbers), numbers.offset * dtype.itemsize)


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json` of a row folder.

    Raises:
        RowsError: missing, not JSON, of another schema version, or naming files that are not there.
    """
    manifest = parse_manifest(Path(folder) / MANIFEST)
    missing = [name for name in manifest.files if not (Path(folder) / name).is_file()]
    if missing:
        raise RowsError(f"{folder} lacks {', '.join(missing)}, which its manifest names; make the rows again")
    return manifest


def parse_manifest(path: Path) -> Manifest:
    """Read and check a manifest, wherever its rows are.

    Raises:
        RowsError: missing, not JSON, or of another schema version.
    """
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise RowsError(f"{path} is missing: {path.parent} is no row folder, or was not written to the end") from None
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
            f"{path} has schema version {manifest.schema_version}, this version reads {SCHEMA_VERSION}; "
            "make the rows again"
        )
    unsafe = [name for name in manifest.files if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name]
    if unsafe:
        raise RowsError(f"{path}: {unsafe[0]!r} is no name of a row file; required are names of files of its folder")
    return manifest
