"""Records of TFRecord files, as integers per feature, without TensorFlow.

A record is length (8 bytes, little-endian), its CRC, the bytes of a tensorflow.Example, their CRC; both CRCs are masked
CRC-32C (tensorflow/core/lib/io/record_writer.h). Every CRC is checked. The files may be packed with GZIP.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from ipu_model.files import open_regular
from tasks.project.errors import InputError

ENDINGS = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
MAX_RECORD_BYTES = 4 << 20
"""A sequence of 512 tokens takes some 5 KB, one of the longest row 300 KB."""
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
"""tensorflow/core/example/example.proto and feature.proto."""


def read_examples(path: Path, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """The named features of every record, in order; one that a record lacks is left out.

    Args:
        path: the file.
        names: features that are asked for; of integers, or of floats that are whole numbers (weights).

    Raises:
        InputError: cut off, damaged (a CRC does not fit), no record of examples, or a feature of text, with its record.
    """
    wanted = set(names)
    for number, content in enumerate(_records(path)):
        where = f"{path}, record {number}"
        example = _example_class()()
        try:
            example.ParseFromString(content)
        except message.DecodeError:
            raise InputError(f"{where} is no tensorflow.Example: name files of create_pretraining_data") from None
        features = example.features.feature
        yield {name: _numbers(features[name], f"{where}, {name}") for name in sorted(wanted & set(features))}


def feature_names(path: Path) -> list[str]:
    """Names of the features of the first record, sorted; none where the file holds no record."""
    for content in _records(path):
        example = _example_class()()
        with contextlib.suppress(message.DecodeError):
            example.ParseFromString(content)
        return sorted(example.features.feature)
    return []


def _numbers(feature: Any, where: str) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if kind == "int64_list":
        return np.array(feature.int64_list.value, np.int64)
    if kind == "float_list":
        values = np.array(feature.float_list.value, np.float32)
        if np.all(values == np.rint(values)):
            return values.astype(np.int64)
    raise InputError(f"{where} must hold whole numbers, found {kind or 'nothing'}")


def _records(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _open(path) as stream:
            while header := stream.read(_HEADER.size):
                yield _record(stream, header, f"{path}, record {number}")
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is cut off or damaged in record {number} ({error}): copy or make it again") from None


def _record(stream: BinaryIO, header: bytes, where: str) -> bytes:
    cut = f"{where} is cut off: copy or make the file again"
    if len(header) < _HEADER.size:
        raise InputError(cut)
    length, crc = _HEADER.unpack(header)
    if _masked(header[:8]) != crc:
        raise InputError(f"{where} has a length whose CRC does not fit: the file is damaged, or is no TFRecord file")
    if length > MAX_RECORD_BYTES:
        raise InputError(f"{where} has {length:,} bytes; records up to {MAX_RECORD_BYTES:,} are read")
    content = stream.read(length + _CRC.size)
    if len(content) < length + _CRC.size:
        raise InputError(cut)
    if _masked(content[:length]) != _CRC.unpack_from(content, length)[0]:
        raise InputError(f"{where} does not fit its CRC: the file is damaged; copy or make it again")
    return content[:length]


def _open(path: Path) -> BinaryIO:
    with open_regular(path) as stream:
        head = stream.read(_HEADER.size)
    if head.startswith(_GZIP) and _masked(head[:8]) != int.from_bytes(head[8:], "little"):
        return gzip.open(open_regular(path), "rb")  # type: ignore[return-value]
    return open_regular(path)


def _masked(content: bytes) -> int:
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@functools.cache
def _example_class() -> Any:
    """Return tensorflow.Example, in a pool of its own: the default pool is for whoever else has these messages here."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
