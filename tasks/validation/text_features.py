"""Scalar features of text columns in Parquet files; memory does not grow with the files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.records.parquet import open_stage_file, read_batches
from tasks.stage.errors import InputError

BATCH_RECORDS = 8192
BATCH_BYTES = 16 << 20
"""Approximate text decoded at a time; a batch has fewer records if they are long."""
CONFIRMED_HASHES = 1_000

_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{84}\x{86}-\x{9f}\x{fffd}]"
"""Control characters (C0, DEL and C1, without tab, line ends and NEL) and U+FFFD, which decoders write for invalid
bytes."""


def compare_schema(path: Path, required: pa.Schema) -> list[str]:
    """Describe how a file's columns differ from `required`; string and large_string are equivalent."""
    with open_stage_file(path, (), path.parent.name) as file:
        found = file.schema_arrow
    differences = []
    for column in required:
        index = found.get_field_index(column.name)
        if index < 0:
            differences.append(f"{path.name}: column {column.name} is missing")
        elif _simplify(found.field(index).type) != _simplify(column.type):
            differences.append(f"{path.name}: column {column.name} is {found.field(index).type}, not {column.type}")
    return differences


def _simplify(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_simplify(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct(sorted((kind.field(i).name, _simplify(kind.field(i).type)) for i in range(kind.num_fields)))
    return pa.int64() if pa.types.is_integer(kind) else kind


def read_text_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most BATCH_RECORDS records and about BATCH_BYTES of text.

    Raises:
        InputError: damaged content, or text that is not UTF-8.
    """
    with open_stage_file(path, columns, path.parent.name) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=0.0)
    records = int(min(BATCH_RECORDS, max(1, BATCH_BYTES // max(1, widest))))
    for batch in read_batches(path, columns, records, path.parent.name):
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is damaged ({error}): delete it and rerun its stage") from None
        yield batch


def count_characters(texts: pa.Array) -> np.ndarray:
    """Count the characters (code points) of every text, 0 for null. int64 [n]."""
    return pc.utf8_length(pc.fill_null(texts, "")).to_numpy(zero_copy_only=False).astype(np.int64)


def is_null(values: pa.Array) -> np.ndarray:
    """Return 1 for each null. int64 [n]."""
    return values.is_null().to_numpy(zero_copy_only=False).astype(np.int64)


def is_missing(texts: pa.Array) -> np.ndarray:
    """Return 1 for each text that is null or only white space. int64 [n]."""
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(texts, ""))), 0)
    return blank.to_numpy(zero_copy_only=False).astype(np.int64)


def count_controls(texts: pa.Array) -> np.ndarray:
    """Count the control characters and U+FFFD of every text. int64 [n]."""
    counts = pc.count_substring_regex(pc.fill_null(texts, ""), _CONTROL)
    return counts.to_numpy(zero_copy_only=False).astype(np.int64)


def to_strings(texts: pa.Array) -> np.ndarray:
    """Return Python strings, "" for null. object [n]."""
    return pc.fill_null(texts, "").to_numpy(zero_copy_only=False).astype(object)


def hash_strings(values: np.ndarray) -> np.ndarray:
    """Return 64-bit hashes of strings, the same on every machine. uint64 [n]."""
    from pandas.util import hash_array

    return hash_array(values, categorize=False)


class KeyCounter:
    """Detector of repeated keys in a large set, with 8 bytes per key.

    Keys with equal 64-bit hashes are read again and compared as strings, so a hash collision is never counted as a
    repetition. If more than CONFIRMED_HASHES hashes repeat, they are not confirmed: that many collisions do not happen
    by chance (0.03 are expected among 10**9 keys).
    """

    def __init__(self) -> None:
        self._hashes: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> None:
        """Add keys; object [n] of strings."""
        self._hashes.append(hash_strings(keys))

    def all_hashes(self) -> np.ndarray:
        """Return the sorted hashes of all keys, with repetitions. uint64 [n]."""
        return np.sort(np.concatenate(self._hashes)) if self._hashes else np.zeros(0, np.uint64)

    def repetitions(self, read_again: Callable[[], Iterable[np.ndarray]]) -> tuple[int, list[str]]:
        """Count the keys that repeat an earlier one, and describe some of them.

        Args:
            read_again: yields the keys that were added again, in arrays of strings.
        """
        ordered = self.all_hashes()
        extra = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(extra):
            return 0, []
        suspects = np.unique(extra)
        counts = count_keys(read_again(), suspects[:CONFIRMED_HASHES])
        repeated = {key: count for key, count in sorted(counts.items()) if count > 1}
        total = len(extra) if len(suspects) > CONFIRMED_HASHES else sum(repeated.values()) - len(repeated)
        return total, [f"{key} ({count} times)" for key, count in repeated.items()]


def count_keys(keys: Iterable[np.ndarray], wanted: np.ndarray) -> dict[str, int]:
    """Count each key whose hash is in `wanted` (uint64)."""
    return Counter(key for some in keys for key in some[np.isin(hash_strings(some), wanted)])
