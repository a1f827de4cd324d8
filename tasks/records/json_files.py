"""Objects of JSON files, read one at a time.

A file has a list of objects, an object with such a list under "data", as in SQuAD, or objects one after the other, as
in JSON lines.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipu_model.core.files import parse_json, reject_duplicate_keys
from tasks.records.interpretation import BLANK_LINES, Interpretation
from tasks.records.text_files import BLOCK_BYTES, MAX_LINE_BYTES, WHOLE, ZERO_WIDTH, FileRange, file_suffix, read_text
from tasks.stage.errors import InputError
from tasks.stage.memory import limit_memory

Located = tuple[str, dict[str, Any]]
"""Position of a record, for messages, and its values by column."""
QUOTED = 40
"""Characters of the text shown where it is not JSON."""
NEAR = 16
"""Characters before the end of a block in which an error may be due to the cut."""
_SCALAR = r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\],]+'
_BEFORE = re.compile(rf'\s*\{{\s*(?:"[^"\\]*"\s*:\s*(?:{_SCALAR})\s*,\s*)*"data"\s*:\s*(?=\[\s*[{{\]])')
"""Text before the list "data", which only plain values may precede here."""
_FIRST, _NEXT, _SPACE = (re.compile(rf"[\s{ZERO_WIDTH}]*{sign}[\s{ZERO_WIDTH}]*") for sign in (r"\[", ",", ""))
"""Text before the first record of a list, before its others, and before a record without a list."""
_PARSER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)


def read_objects(path: Path, key: str, reading: Interpretation, part: FileRange = WHOLE) -> Iterator[Located]:
    """Yield the objects of a .json or .jsonl file, in order. A file that is divided has no list.

    Raises:
        InputError: not UTF-8, not JSON, something other than objects, or an object that is too long; the message has
            the record or its line.
    """
    return _Objects(path, key, reading, part).objects()


class _Objects:
    """Reader of one file: a window of its text, and a position in it."""

    def __init__(self, path: Path, key: str, reading: Interpretation, part: FileRange) -> None:
        self.path, self.key, self.reading = path, key, reading
        self.blocks = read_text(path, key, part)
        self.text, self.line, self.number = next(self.blocks, ""), part.line, 0
        """`line` is that of the position."""
        self.may_nest = file_suffix(path) != ".jsonl" and part.stop is None
        before = _BEFORE.match(self.text) if self.may_nest else None
        self.at = before.end() if before else 0
        self.place = "data[{}]" if before else "record {}" if self.text.lstrip().startswith("[") else ""
        """Position of a record in a list; empty: there is no list, and records are located by their lines."""
        self.required = f"{'' if self.place else 'one object per line, or '}a list of objects is required"

    def objects(self) -> Iterator[Located]:
        while (numbered := self._next()) is not None:
            where, values = numbered
            items = values.get("data") if isinstance(values, dict) and self.may_nest and not self.place else None
            if isinstance(items, list) and not self.number and not self.text[self.at :].strip():
                self._refuse_lists(values)
                for number, item in enumerate(items):  # other lists or objects precede "data"
                    yield f"data[{number}]", self._require_object(f"data[{number}]", item)
                return
            yield where, self._require_object(where, values)
            self.number += 1

    def _refuse_lists(self, values: dict[str, Any]) -> None:
        """Refuse records in other lists than "data"."""
        others = [name for name, value in values.items() if name != "data" and isinstance(value, list) and value]
        if any(isinstance(values[name][0], dict) for name in others):
            raise InputError(
                f'{self.path} has records in "data" and in {", ".join(map(repr, others))}: keep the list "data", or '
                f"write each list to a file of its own ({self.key})"
            )

    def _require_object(self, where: str, values: Any) -> dict[str, Any]:
        if not isinstance(values, dict):
            raise InputError(f"{self.path}, {where} is {type(values).__name__}; {self.required} ({self.key})")
        return values

    def _next(self) -> tuple[str, Any] | None:
        """Return the next value and its position, or None at the end."""
        while True:
            gap = (_FIRST if self.place and not self.number else _NEXT if self.place else _SPACE).match(
                self.text, self.at
            )
            start = gap.end() if gap else self.at
            line = self.line + self.text.count("\n", self.at, start)
            where = self.place.format(self.number) or f"line {line}"
            whole = f"{self.path}, {where}{f' (line {line})' if self.place else ''}"
            try:
                if gap is None:
                    raise json.JSONDecodeError("expecting ',' or ']'", self.text, self.at)
                is_long = len(self.text) > 4 * BLOCK_BYTES
                with limit_memory(f"{whole} ({self.key})") if is_long else contextlib.nullcontext():
                    values, stop = _PARSER.raw_decode(self.text, start)
            except json.JSONDecodeError as error:
                if error.pos >= len(self.text) - NEAR or error.msg.startswith("Unterminated"):
                    if len(self.text) - self.at > MAX_LINE_BYTES:
                        most = f"{MAX_LINE_BYTES >> 20} MB"
                        raise InputError(f"{whole} is longer than {most}: split it ({self.key})") from None
                    if self._read_on():
                        continue
                if self._is_end():
                    return None
                line = self.line + self.text.count("\n", self.at, error.pos)
                problem = f"{error.msg} in line {line}: {self.text[error.pos : error.pos + QUOTED]!r}"
                raise InputError(f"{whole} is not JSON ({problem}); {self.required} ({self.key})") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{whole} cannot be read ({error}) ({self.key})") from None
            if not self.place:
                self.reading.counts[BLANK_LINES] += max(0, line - self.line - bool(self.number))
            self.line, self.at = line + self.text.count("\n", start, stop), stop
            return where, values

    def _read_on(self) -> bool:
        """Double the text of the current record; return False at the end of the file."""
        parts, length = [self.text[self.at :]], 0
        for block in self.blocks:
            parts.append(block)
            length += len(block)
            if length >= len(parts[0]):
                break
        self.text, self.at = "".join(parts), 0
        return length > 0

    def _is_end(self) -> bool:
        rest = self.text[self.at :].strip(f"{ZERO_WIDTH} \t\r\n")
        if not self.place:
            self.reading.counts[BLANK_LINES] += max(0, self.text.count("\n", self.at) - bool(self.number))
            return not rest
        if not self.number:
            rest = rest.removeprefix("[").lstrip()
        if not rest.startswith("]"):
            return False
        with contextlib.suppress(ValueError):
            if self.place != "data[{}]":
                return rest == "]"
            self._refuse_lists(parse_json('{"data": 0' + rest[1:]))
            return True
        return False
