"""A JSON file that holds a list of records, read one record after the other."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipu_model.files import each_key_once
from tasks.project.errors import InputError
from tasks.reading.packed import opened
from tasks.reading.text_files import BLOCK_BYTES, MAX_LINE_BYTES

_BEGIN, _NEXT = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*")
"""What stands before the first record, and before the others."""
_EMPTY, _END = re.compile(r"\s*\[\s*\]\s*"), re.compile(r"\s*\]\s*")
_PARSER = json.JSONDecoder(object_pairs_hook=each_key_once)


def begins_array(path: Path, key: str) -> bool:
    """Whether a file holds a list, by its first sign that is not blank.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with opened(path) as stream:
            return stream.read(BLOCK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({key})") from None


def read_array(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, in order.

    Raises:
        InputError: not UTF-8, not JSON, something else than objects, or one that is too long; the record and the line
            in which it begins are named.
    """
    text, number, line = "", 0, 1
    for block, is_last in _blocks(path, key):
        text, at = text + block, 0
        while True:
            joint = (_NEXT if number else _BEGIN).match(text, at)
            start = joint.end() if joint else at
            where = f"{path}, record {number} (line {line + text.count(chr(10), at, start)})"
            try:
                if joint is None:
                    raise json.JSONDecodeError("expecting ',' or ']'", text, at)
                values, end = _PARSER.raw_decode(text, start)
            except json.JSONDecodeError as error:
                if not is_last and len(text) - at <= MAX_LINE_BYTES:
                    break  # the record may go on in the next block
                if (_END if number else _EMPTY).fullmatch(text, at):
                    return
                raise InputError(f"{where} is not JSON ({error.msg}): a list of objects is required ({key})") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} cannot be read ({error}) ({key})") from None
            if not isinstance(values, dict):
                raise InputError(f"{where} is {type(values).__name__}: a list of objects is required ({key})")
            yield values
            line += text.count("\n", at, end)
            number, at = number + 1, end
        text = text[at:]


def _blocks(path: Path, key: str) -> Iterator[tuple[str, bool]]:
    """Yield the text of a file in pieces, and whether one is the last, which is empty."""
    decoder, offset = codecs.getincrementaldecoder("utf-8-sig")(), 0
    try:
        with opened(path) as stream:
            while block := stream.read(BLOCK_BYTES):
                yield decoder.decode(block), False
                offset += len(block)
        yield decoder.decode(b"", final=True), True
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 (byte 0x{error.object[error.start]:02x} near offset {offset + error.start}); UTF-8 "
            f"is required; convert the file, e.g. iconv -f LATIN1 -t UTF-8 ({key})"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read from offset {offset} on ({error.strerror or error}) ({key})") from None
