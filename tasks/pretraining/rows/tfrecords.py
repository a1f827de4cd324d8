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
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from ipu_model.files import open_regular
from tasks.project.errors import InputError

ENDINGS = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
MAX_RECORD_BYTES = 4 << 20
"""A sequence of 512 tokens takes some 5 KB, one of the longest row 300 KB."""
_GZIP = b"\x1f\x8b\x08"
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8


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
    """tensorflow.Example (tensorflow/core/example/example.proto, feature.proto), in a pool of its own.

    The default pool is for whoever else has these messages in this process.
    """

    def field(name: str, number: int, kind: str, label: str = "OPTIONAL", **more: Any) -> dict[str, Any]:
        typed = {"typeName": kind, "type": "TYPE_MESSAGE"} if kind.startswith(".") else {"type": f"TYPE_{kind}"}
        return {"name": name, "number": number, "label": f"LABEL_{label}", **typed, **more}

    lists = [
        ("BytesList", "bytes_list", "BYTES"),
        ("FloatList", "float_list", "FLOAT"),
        ("Int64List", "int64_list", "INT64"),
    ]
    of_feature = [field(name, i, f".tensorflow.{kind}", oneofIndex=0) for i, (kind, name, _) in enumerate(lists, 1)]
    entry = {
        "name": "FeatureEntry",
        "options": {"mapEntry": True},
        "field": [field("key", 1, "STRING"), field("value", 2, ".tensorflow.Feature")],
    }
    messages = [{"name": kind, "field": [field("value", 1, scalar, "REPEATED")]} for kind, _, scalar in lists]
    messages += [
        {"name": "Feature", "field": of_feature, "oneofDecl": [{"name": "kind"}]},
        {
            "name": "Features",
            "nestedType": [entry],
            "field": [field("feature", 1, ".tensorflow.Features.FeatureEntry", "REPEATED")],
        },
        {"name": "Example", "field": [field("features", 1, ".tensorflow.Features")]},
    ]
    file = {"name": "example.proto", "package": "tensorflow", "syntax": "proto3", "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
