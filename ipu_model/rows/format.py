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
| masked_positions[P]     | int16            | absolute position in the row, 0 in unused slots            |
| masked_labels[P]        | int32            | token id to predict, -100 = unused slot                    |
| next_sentence_labels[S] | int8             | 0 = real next, 1 = random, -100 = none                     |
| start_positions[S]      | int16            | absolute in the row, -100 = none                           |
| end_positions[S]        | int16            | absolute in the row, inclusive, -100 = none                |
| feature_ids[S]          | int32            | row of features.parquet, or of the examples; -1 = none     |
| class_labels[S]         | int32            | class, 0..num_labels - 1, -100 = none                      |
| targets[S]              | float32          | value of a regression, -100 = none                         |

`pretrain` rows carry the masked_* and next_sentence columns, `question_answering` rows start_positions, end_positions
and feature_ids, `sequence_classification` rows feature_ids and class_labels, `sequence_regression` rows feature_ids and
targets.
Sequences lie one after the other from position 0; padding only at the end of the row.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Tuple

import numpy as np
import pyarrow as pa

from ipu_model.errors import ConfigError, RowsError
from ipu_model.files import read_json
from ipu_model.job import read_strictly

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
IGNORED = -100
"""Label of a slot that takes no part in the loss."""
DERIVED = ("packing_factor", "packing_efficiency")
"""Keys of a manifest for people, computed from others."""
ABSENT = -1
"""cls_positions and feature_ids of a sequence that is not there."""
KINDS = ("pretrain", "question_answering", "sequence_classification", "sequence_regression")
LABELS = {"sequence_classification": ("class_labels", pa.int32()), "sequence_regression": ("targets", pa.float32())}
"""Column of the labels of rows with one label for each sequence, and its type."""
MAX_SEQUENCES = 255
"""sequence_ids are uint8 and 0 is padding."""
MAX_ROW_LENGTH = 32767
"""Positions are int16."""


@dataclass(frozen=True)
class Manifest:
    """What a row folder says of itself; readers check it against the files and the job."""

    kind: str
    """Of KINDS."""
    row_length: int
    max_sequences: int
    max_predictions: int
    """P; 0 but for pretrain rows."""
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
    """Classes of sequence_classification rows, 1 for sequence_regression, 0 for others."""
    schema_version: int = SCHEMA_VERSION

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


def row_schema(kind: str, row_length: int, max_sequences: int, max_predictions: int, vocab_size: int) -> pa.Schema:
    """The Arrow schema of a row file, no column nullable."""
    if kind not in KINDS:
        raise ConfigError(f"rows of kind {kind!r} are not known; valid: {', '.join(KINDS)}")
    tokens = pa.uint16() if vocab_size <= 65536 else pa.uint32()
    columns: Tuple[Tuple[str, pa.DataType, int], ...] = (
        ("input_ids", tokens, row_length),
        ("token_type_ids", pa.uint8(), row_length),
        ("position_ids", pa.uint16(), row_length),
        ("sequence_ids", pa.uint8(), row_length),
        ("cls_positions", pa.int16(), max_sequences),
    )
    if kind == "pretrain":
        columns += (
            ("masked_positions", pa.int16(), max_predictions),
            ("masked_labels", pa.int32(), max_predictions),
            ("next_sentence_labels", pa.int8(), max_sequences),
        )
    elif kind == "question_answering":
        columns += (
            ("start_positions", pa.int16(), max_sequences),
            ("end_positions", pa.int16(), max_sequences),
            ("feature_ids", pa.int32(), max_sequences),
        )
    else:
        columns += (("feature_ids", pa.int32(), max_sequences), (*LABELS[kind], max_sequences))
    return pa.schema([pa.field(name, pa.list_(item, size), nullable=False) for name, item, size in columns])


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
    path = Path(folder) / MANIFEST
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise RowsError(f"{path} is missing: {folder} is no row folder, or was not written to the end") from None
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
    missing = [name for name in manifest.files if not (Path(folder) / name).is_file()]
    if missing:
        raise RowsError(f"{folder} lacks {', '.join(missing)}, which its manifest names; make the rows again")
    return manifest
