"""Readers of prepared pre-training data: Parquet, Arrow, Hub data sets and TFRecords.

There are two layouts. Tables have the columns of the Hub data sets Graphcore/wikipedia-bert-128 and -512: input_ids,
token_type_ids, attention_mask, labels, next_sentence_label. TFRecords have the features that create_pretraining_data of
google-research/bert writes: input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids, masked_lm_weights
(optional), next_sentence_labels. In both, 1 is a random next sentence.

TFRecord files are read without TensorFlow. A record consists of a length (8 bytes, little-endian), its CRC, the bytes
of a tensorflow.Example, and their CRC; both CRCs are masked CRC-32C (tensorflow/core/lib/io/record_writer.h) and are
checked. Files may be packed with GZIP.
"""

import functools
import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from ipu_model.core.files import open_regular
from tasks.params.sections import PhaseRowsParams
from tasks.pretraining.rows.prepared_sequences import PreparedSequences, make_lists
from tasks.records.hub_inputs import open_tables
from tasks.records.interpretation import Interpretation
from tasks.records.parquet import read_checked_batches, split_into_groups
from tasks.records.tables import ColumnSpec, match_columns, select_files
from tasks.rows.row_files import IGNORED
from tasks.stage.errors import InputError

ENDINGS = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
MAX_RECORD_BYTES = 4 << 20
"""A sequence of 512 tokens takes about 5 KB, one of the maximum row length 300 KB."""
_GZIP = b"\x1f\x8b\x08"
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_EXAMPLE = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".tensorflow.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 type_name: ".tensorflow.Features" } }
"""
"""Definitions from tensorflow/core/example/example.proto and feature.proto."""
SEQUENCES_AT_ONCE = 2048
NUMBERS_AT_ONCE = 8 << 20
"""Numbers per field and batch: batches of long sequences are smaller."""
LISTS = ("input_ids", "attention_mask", "token_type_ids", "labels")
NEXT = ("next_sentence_label", "next_sentence_labels")
COLUMNS = {
    **{name: ColumnSpec((name,), "pretrain_rows.source to corpus, if these are texts") for name in LISTS},
    NEXT[0]: ColumnSpec(NEXT, "pretrain_rows.source to corpus, if these are texts"),
}
PACKED = "packed_input_ids"
IDS, POSITIONS, WEIGHTS = "masked_lm_ids", "masked_lm_positions", "masked_lm_weights"
FEATURES = ("input_ids", "input_mask", "segment_ids", POSITIONS, IDS, "next_sentence_labels")
FEATURES_ALIKE = ("input_ids", "input_ids", "input_ids", IDS, IDS, "each record", IDS)
"""Feature with as many entries as each of FEATURES and WEIGHTS; a record itself has one."""
_TABLES = (".parquet", ".arrow")


def read_tfrecords(path: Path, names: Sequence[str], required: Sequence[str] = ()) -> Iterator[dict[str, np.ndarray]]:
    """Yield the named features of every record, without those that a record lacks.

    They are integers, or floats that are whole numbers (weights).

    Raises:
        InputError: cut off, damaged (wrong CRC), records of another type, or a feature that is not numeric, or that is
            `required` and missing; the message has the record.
    """
    wanted = set(names)
    for number, content in enumerate(_read_records(path)):
        where = f"{path}, record {number}"
        example = _example_class()()
        try:
            example.ParseFromString(content)
        except message.DecodeError:
            raise InputError(f"{where} is not a tensorflow.Example: use files of create_pretraining_data") from None
        features = example.features.feature
        present = set(features)
        if missing := [name for name in required if name not in present]:
            packed = ". Packed sequences are not supported, use the unpacked files" if PACKED in present else ""
            raise InputError(
                f"{where} has the features {', '.join(sorted(present))} but not {', '.join(missing)}; files of "
                f"create_pretraining_data are required{packed}"
            )
        yield {name: _read_integers(features[name], f"{where}, {name}") for name in sorted(wanted & present)}


def _read_integers(feature: Any, where: str) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    if kind == "float_list":
        values = np.array(feature.float_list.value, np.float32)
        if np.all(values == np.rint(values)):
            return values.astype(np.int64)
    raise InputError(f"{where} must be whole numbers, found {kind or 'nothing'}")


def _read_records(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _open(path) as stream:
            while header := stream.read(_HEADER.size):
                yield _read_record(stream, header, f"{path}, record {number}")
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is cut off or damaged at record {number} ({error}): copy or recreate it") from None


def _read_record(stream: BinaryIO, header: bytes, where: str) -> bytes:
    cut = f"{where} is cut off. Copy or create the file again"
    if len(header) < _HEADER.size:
        raise InputError(cut)
    length, crc = _HEADER.unpack(header)
    if _masked_crc(header[:8]) != crc:
        raise InputError(f"{where} has a length with a wrong CRC: the file is damaged, or not a TFRecord file")
    if length > MAX_RECORD_BYTES:
        raise InputError(f"{where} has {length:,} bytes; at most {MAX_RECORD_BYTES:,} are allowed")
    content = stream.read(length + _CRC.size)
    if len(content) < length + _CRC.size:
        raise InputError(cut)
    if _masked_crc(content[:length]) != _CRC.unpack_from(content, length)[0]:
        raise InputError(f"{where} has a wrong CRC: the file is damaged. Copy or create it again")
    return content[:length]


def _open(path: Path) -> BinaryIO:
    with open_regular(path) as stream:
        head = stream.read(_HEADER.size)
    if head.startswith(_GZIP) and _masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
        return gzip.open(open_regular(path), "rb")  # type: ignore[return-value]
    return open_regular(path)


def _masked_crc(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@functools.cache
def _example_class() -> Any:
    """Return tensorflow.Example from a separate pool: TensorFlow registers its own in the default pool."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def read_prepared_batches(
    params: PhaseRowsParams, source: str, section: str, reading: Interpretation
) -> Iterator[PreparedSequences]:
    """Yield all sequences in batches; memory does not grow with their number.

    The source is `files` or `hub` (pretrain_rows.source). Messages name the section of params.yaml.

    Raises:
        InputError: no data, another layout, damaged, or labels that mark unmasked tokens in two ways.
    """
    columns = _Columns(reading)
    if source == "hub":
        tables = open_tables(section, params.dataset, params.dataset_revision, SEQUENCES_AT_ONCE)
        yield from columns.read(tables, f"data set {params.dataset}")
        return
    for file in _list_files(Path(params.path), f"{section}.path", reading):
        reading.files += 1
        if file.name.lower().endswith(_TABLES):
            yield from columns.read(_read_table_batches(file), str(file))
        else:
            yield from _read_examples(file)
            reading.formats["TFRecords, 0 in unused slots"] += 1


def _list_files(path: Path, key: str, reading: Interpretation) -> list[Path]:
    if (path / "dataset_dict.json").is_file():
        splits = sorted(p.name for p in path.iterdir() if p.is_dir())
        raise InputError(f"{key}={path} has several splits: name the folder of one of them ({', '.join(splits)})")
    known = (*_TABLES, *ENDINGS)
    files = select_files(
        path, key, lambda file: file.name.lower().endswith(known), f"{', '.join(known)} files", reading
    )
    if len({file.name.lower().endswith(_TABLES) for file in files}) > 1:
        raise InputError(f"{key}={path} contains both tables and TFRecords: move one kind to another folder")
    return files


def _read_table_batches(file: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from read_checked_batches(file, SEQUENCES_AT_ONCE, str(file))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read to its end ({error}). Copy or create it again") from None


class _Columns:
    """Reader of tables with columns of lists; unmasked tokens have the label -100, or 0, throughout."""

    def __init__(self, reading: Interpretation) -> None:
        self.reading = reading
        self.ignored: int | None = None

    def read(self, batches: Iterable[pa.RecordBatch], source: str) -> Iterator[PreparedSequences]:
        first = 0
        for batch in batches:
            names = match_columns(batch.schema.names, [COLUMNS], source, self.reading)
            for start in range(0, batch.num_rows, SEQUENCES_AT_ONCE):
                part = batch.slice(start, SEQUENCES_AT_ONCE)
                yield self._convert({name: part.column(column) for name, column in names.items()}, source, first)
                first += part.num_rows
        self.reading.formats[f"columns of lists, label {self.ignored} where nothing is masked"] += 1

    def _convert(self, columns: Mapping[str, Any], source: str, first: int) -> PreparedSequences:
        lists = {name: _read_lists(column, f"{source}, column {name}", first) for name, column in columns.items()}
        values, lengths = ({name: pair[part] for name, pair in lists.items()} for part in (0, 1))
        where = f"{source}, sequence", first
        for name in LISTS:
            _require_equal(*where, name, lengths[name], "input_ids", lengths["input_ids"])
        _require_equal(*where, NEXT[0], lengths[NEXT[0]], "each sequence", np.ones_like(lengths[NEXT[0]]))
        labels = values["labels"]
        for ignored in (IGNORED, 0):
            indices = np.flatnonzero(labels == ignored)
            if len(indices) and self.ignored is None:
                self.ignored = ignored
            elif len(indices) and self.ignored != ignored:
                raise InputError(
                    f"{source}, sequence {first + _find_owner(lengths['labels'], indices[0])} has the label {ignored}, "
                    f"but earlier ones mark unmasked tokens with {self.ignored}. Use one of {IGNORED} and 0 throughout"
                )
        lists_only = {name: values[name] for name in LISTS} | {
            "labels": np.where(labels == self.ignored, IGNORED, labels)
        }
        return PreparedSequences(
            source, first, lengths["input_ids"], next_sentence_labels=values[NEXT[0]], **lists_only
        )


def _read_lists(column: Any, where: str, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, int64[T], and the lengths, int64[N], of a column of lists of integers, or of integers."""
    if pa.types.is_integer(column.type):
        column = make_lists(np.ones(len(column), np.int64), column)
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not (pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)):
        raise InputError(f"{where} is {kind}; a list of integers is required")
    nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
    if len(nulls):
        raise InputError(f"{where} is null in sequence {first + nulls[0]}")
    values = column.flatten()
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where} has a null in sequence {first + _find_owner(lengths, at)}")
    return values.cast(pa.int64()).to_numpy(zero_copy_only=False), lengths


def _find_owner(lengths: np.ndarray, token: int) -> int:
    """Return the number of the sequence that has a token."""
    return int(np.searchsorted(np.cumsum(lengths), token, side="right"))


def _require_equal(source: str, first: int, name: str, lengths: np.ndarray, other: str, required: np.ndarray) -> None:
    """Require the lists `name` to be as long as those of `other`."""
    if len(wrong := np.flatnonzero(lengths != required)):
        at = wrong[0]
        raise InputError(
            f"{source} {first + at}: {name} has {lengths[at]:,} entries, but {other} has {required[at]:,}; equal "
            "numbers are required"
        )


def _read_examples(file: Path) -> Iterator[PreparedSequences]:
    """Yield the sequences of a file of TFRecords."""
    first = 0
    records = read_tfrecords(file, (*FEATURES, WEIGHTS), FEATURES)
    for group in split_into_groups(
        records, lambda record: len(record["input_ids"]), SEQUENCES_AT_ONCE, NUMBERS_AT_ONCE
    ):
        yield _join_examples(group, str(file), first)
        first += len(group)


def _join_examples(records: list[dict[str, np.ndarray]], source: str, first: int) -> PreparedSequences:
    names = [*FEATURES, *([WEIGHTS] if all(WEIGHTS in record for record in records) else [])]
    lengths = {name: np.array([len(record[name]) for record in records]) for name in names}
    values = {name: np.concatenate([record[name] for record in records]) for name in names}
    for name, other in zip(names, FEATURES_ALIKE, strict=False):
        _require_equal(
            f"{source}, record", first, name, lengths[name], other, lengths.get(other, np.ones(len(records)))
        )
    widths = lengths["input_ids"]
    owners = np.repeat(np.arange(len(records)), lengths[IDS])

    def refuse(wrong: np.ndarray, what: str) -> None:
        if wrong.any():
            raise InputError(f"{source}, record {first + int(owners[np.argmax(wrong)])} {what}")

    slots, positions = values[IDS], values[POSITIONS]
    used = slots != 0
    refuse(used & ((positions < 1) | (positions >= widths[owners])), f"has {POSITIONS} outside the sequence")
    refuse(~used & (positions != 0), f"has a position in an unused slot ({IDS} is 0)")
    if WEIGHTS in values:
        refuse(used != (values[WEIGHTS] != 0), f"has {WEIGHTS} that contradict {IDS}, where 0 is unused")
    places = (np.cumsum(widths) - widths)[owners] + positions
    repeated = used.copy()
    repeated[np.flatnonzero(used)[np.unique(places[used], return_index=True)[1]]] = False
    refuse(repeated, f"repeats a position in {POSITIONS}")
    labels = np.full(widths.sum(), IGNORED, np.int64)
    labels[places[used]] = slots[used]
    ids, mask, types = (values[name] for name in FEATURES[:3])
    return PreparedSequences(source, first, widths, ids, mask, types, labels, values[FEATURES[-1]])
