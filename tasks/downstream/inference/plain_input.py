"""Input of `podium predict` in the forms that people have it: a text, lines of plain text, or standard input."""

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.downstream.inference.job import INPUT, PLAIN, Inference
from tasks.downstream.kind import kind_of
from tasks.params.entries import Entry
from tasks.plan.named_files import require_readable
from tasks.records.csv_files import SEPARATORS
from tasks.records.tables import find_layout
from tasks.records.text_files import file_suffix, peek, read_lines, refuse_empty
from tasks.stage.errors import InputError
from tasks.stage.scratch import scratch_folder

PEEKED_BYTES, PEEKED_LINES = 1 << 16, 20
MIN_TABLE_LINES = 3
"""Lines with equally many fields that make a table of unknown columns. Fewer are often alike by chance."""
JSON_START = re.compile(r'\{\s*(?:["}]|\Z)|\[\s*(?:[{\]"]|\Z)')
FORM_NAMES = {PLAIN: "plain text, one text a line", "csv": "a table", "json": "JSON", "jsonl": "JSON lines"}


@contextmanager
def open_input(entry: Entry, path: Path | None, texts: Sequence[str], *, plain: bool) -> Iterator[tuple[Path, str]]:
    """Yield a file that `predict` reads, and a note on a format that its name does not tell; it may be empty.

    Args:
        path: the file; None for standard input.
        texts: the texts of one example, which replace a file.
        plain: read lines of plain text, whatever the file looks like.

    Raises:
        ParamsError: the model does not read these texts.
        InputError: the file cannot be read.
    """
    task = kind_of(entry).inference(entry)
    with scratch_folder() as folder:
        name = "text" if texts else "standard-input" if path is None else path.name
        lines = folder / f"{name}.jsonl"
        if texts:
            lines.write_text(json.dumps(task.make_record(texts)), encoding="utf-8")
            yield lines, ""
            return
        source = path or folder / name
        if path is None:
            with source.open("wb") as stream:
                shutil.copyfileobj(sys.stdin.buffer, stream)
        else:
            require_readable(path, INPUT)
            if path.is_file():
                refuse_empty(path, INPUT)
        form = PLAIN if plain else detect_format(task, source) if path is None or file_suffix(path) == ".txt" else ""
        if path is not None and task.plain_hint and form not in ("", PLAIN):
            raise InputError(
                f"{path} looks like {FORM_NAMES.get(form, form)}. Set its suffix to .{form}{task.plain_hint}"
            )
        if form == PLAIN:
            with lines.open("w", encoding="utf-8") as file:  # blank lines stay, so that messages have the right line
                for line in read_lines(source, INPUT):
                    file.write(f"{json.dumps(task.make_record([line])) if line.strip() else ''}\n")
            source = lines
        elif path is None:
            source = source.rename(source.with_suffix(f".{form}"))
        reading = f"{path.name if path else 'standard input'} is read as {FORM_NAMES.get(form, form)}"
        yield source, reading if path is None or form == PLAIN else ""


def detect_format(task: Inference, path: Path) -> str:
    """Return the suffix that fits the content of a file: parquet, json, jsonl, csv, or one that the kind detects."""
    try:
        head = peek(path, PEEKED_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({INPUT})") from None
    if head.startswith(b"PAR1"):
        return "parquet"
    lines = head.decode("utf-8", "ignore").splitlines()
    if JSON_START.match("\n".join(lines)):
        try:
            first = json.loads(lines[0])
        except ValueError:
            return "json"
        return "jsonl" if isinstance(first, dict) and "data" not in first else "json"
    tables = [_split_fields(lines[:PEEKED_LINES], separator) for separator in SEPARATORS]
    if any(rows and find_layout(rows[0], task.layouts) for rows in tables):
        return "csv"
    form = task.detect_lines(lines)
    is_table = any(len(rows) >= MIN_TABLE_LINES and {*map(len, rows)} == {len(rows[0])} != {1} for rows in tables)
    return "csv" if form == PLAIN and is_table else form


def _split_fields(lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        return []
