"""The interpretation of an input: what its files mean, and what was left out, changed or repaired.

Users see it before the first stage and on the validation page; a release has it in its provenance. reading.json in the
folder of the data has the interpretation of every input.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json, write_json
from ipu_model.core.units import format_count, shorten
from tasks.stage import artifacts
from tasks.stage.errors import InputError

NUMERIC_IDS, BLANK_LINES = "numeric ids, converted to text", "blank lines skipped"
BY_USER, BY_NAME, BY_CONTENT, BY_MODEL = "named by you", "by name", "by content", "as in training"
"""Reasons why a column has its role."""
SHOWN_NAMES = 20
"""File and column names listed in reading.json."""
SHOWN_CHANGES, SHOWN_COLUMNS = 3, 5
MAX_LINES = 8
"""Lines that describe the inputs of a run before its first stage."""


@dataclass
class Interpretation:
    """The interpretation of an input, a file or a folder. Readers fill it while their records are consumed."""

    files: int = 0
    formats: collections.Counter[str] = field(default_factory=collections.Counter)
    """Format with encoding, separator or layout -> number of files."""
    columns: dict[str, str] = field(default_factory=dict)
    """Role -> name of its column, and why the column has the role."""
    labels: str = ""
    grouping: str = ""
    """Relation of rows to examples."""
    ignored: list[str] = field(default_factory=list)
    """Files of the folder that are not read."""
    unused_columns: set[str] = field(default_factory=set)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    """Description of something left out or changed -> count: "empty documents left out", ..."""
    places: dict[str, str] = field(default_factory=dict)
    """Description of something counted -> position of the first one."""
    examples: dict[str, str] = field(default_factory=dict)
    """Description of something counted -> an example of it."""
    remarks: list[str] = field(default_factory=list)
    trained: Mapping[str, str] = field(default_factory=dict)
    """Role -> name of its column in the training data of the model that reads the input; empty: not recorded."""

    def use_column(self, role: str, name: str, reason: str) -> None:
        """Set the column of a role, and one of the reasons BY_USER, BY_NAME, ..."""
        self.columns[role] = f"{name!r} ({reason})"

    def is_by_name(self, role: str) -> bool:
        """Tell whether the column of a role was found by its usual name; False without a column."""
        return self.columns.get(role, "").endswith(f"({BY_NAME})")

    def count(self, what: str, where: str, number: int = 1) -> None:
        """Count something left out or changed, and keep the position of the first one."""
        if number:
            self.counts[what] += number
            self.places.setdefault(what, where)

    def remark(self, text: str) -> None:
        """Add a remark unless it is already there."""
        if text not in self.remarks:
            self.remarks.append(text)

    def add_example(self, what: str, example: str, count: int = 1) -> None:
        """Count `what`, and keep the first example of it."""
        self.counts[what] += count
        self.examples.setdefault(what, example)

    def merge(self, other: Interpretation) -> None:
        """Add what was found in files, or parts of files, that were read after those of this interpretation."""
        self.files += other.files
        self.formats.update(other.formats)
        self.columns |= other.columns
        self.labels, self.grouping = self.labels or other.labels, self.grouping or other.grouping
        self.ignored += other.ignored
        self.unused_columns |= other.unused_columns
        self.counts.update(other.counts)
        self.places = other.places | self.places
        self.examples = other.examples | self.examples
        for text in other.remarks:
            self.remark(text)

    def numbers(self) -> dict[str, int]:
        """Return the figures to report, without those that are 0."""
        counts = {
            "files read": self.files,
            "files ignored": len(self.ignored),
            "columns not used": len(self.unused_columns),
            **dict(sorted(self.counts.items())),
        }
        return {name: count for name, count in counts.items() if count}

    def summary(self) -> list[str]:
        """Return the parts of the stage's last line."""
        parts = [f"{format_count(self.files, 'files')} read, {len(self.ignored)} ignored"] if self.files else []
        if self.unused_columns:
            parts.append(f"columns not used: {', '.join(sorted(self.unused_columns)[:SHOWN_NAMES])}")
        return (
            parts + [format_count(count, what) for what, count in sorted(self.counts.items()) if count] + self.remarks
        )

    def meaning(self) -> list[str]:
        """Return what the files mean: formats, then columns, then labels and grouping."""
        formats = [f"{count} x {name}" if len(self.formats) > 1 else name for name, count in self.formats.items()]
        columns = [f"{role} is {column}" for role, column in self.columns.items()]
        return [
            shorten(formats, SHOWN_COLUMNS),
            shorten(columns, SHOWN_COLUMNS),
            "; ".join(filter(None, (self.labels, self.grouping))),
        ]

    def changes(self, shown: int = SHOWN_NAMES) -> list[str]:
        """Return what was left out, changed or not used, with counts and the position of the first."""
        texts = [
            format_count(count, what) + (f" (first: {self.places[what]})" if what in self.places else "")
            for what, count in sorted(self.counts.items(), key=lambda pair: -pair[1])
            if count
        ]
        if self.ignored:
            texts.insert(
                0, f"{format_count(len(self.ignored), 'files')} not read ({shorten(self.ignored, SHOWN_CHANGES)})"
            )
        if self.unused_columns:
            texts.append(f"columns not used: {shorten(sorted(self.unused_columns), SHOWN_COLUMNS)}")
        more = len(texts) - shown
        return [*texts[:shown], *([f"{more} more"] if more > 0 else [])]

    def record(self) -> dict[str, Any]:
        """Return the interpretation for reading.json and provenance: JSON values of bounded length."""
        values = asdict(self) | {"unused_columns": sorted(self.unused_columns), "formats": dict(self.formats)}
        del values["trained"]
        bounded = {name: value[:SHOWN_NAMES] if isinstance(value, list) else value for name, value in values.items()}
        return {name: value for name, value in bounded.items() if value} | {"counts": self.numbers()}


def describe_inputs(inputs: Mapping[str, Interpretation]) -> list[str]:
    """Return the lines that tell users how their inputs are read: at most MAX_LINES.

    An input that is read like an earlier one takes one line.
    """
    lines: list[str] = []
    before: dict[tuple[str, ...], str] = {}
    for name, reading in inputs.items():
        formats, columns, meaning = reading.meaning()
        same = before.setdefault((formats, columns, meaning), name)
        changes = "; ".join(reading.changes(SHOWN_CHANGES))
        if same != name:
            lines.append(f"{name}: read like {same}" + (f"; {changes}" if changes else ""))
        else:
            lines.append(f"{name}: {'; '.join(filter(None, (formats, columns)))}")
            lines += [f"  {text}" for text in (meaning, changes) if text]
        lines += [f"  {text}" for text in reading.remarks]
    return lines[:MAX_LINES]


def write_reading(folder: Path, source: str, inputs: Mapping[str, Interpretation]) -> Interpretation:
    """Write reading.json to the folder of the data; return what was found in all inputs."""
    whole = Interpretation()
    for reading in inputs.values():
        whole.merge(reading)
    values: dict[str, Any] = {
        "source": source,
        "numbers": whole.numbers(),
        "remarks": whole.remarks[:SHOWN_NAMES],
        "inputs": {name: interpretation.record() for name, interpretation in inputs.items()},
        "described": describe_inputs(inputs),
    }
    if whole.examples:
        values["examples"] = dict(sorted(whole.examples.items()))
    write_json(folder / artifacts.READING, values)
    return whole


def column_names(record: Mapping[str, Any]) -> dict[str, str]:
    """Return role -> name of its column, from a record of an interpretation; empty where it is public."""
    return {role: text.rpartition(" (")[0][1:-1] for role, text in record.get("columns", {}).items()}


def public_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a release states of an interpretation from reading.json: no name of a file or a column."""
    columns = {role: text.rpartition("(")[2].rstrip(")") for role, text in record.get("columns", {}).items()}
    grouping = re.sub(r"(['\"]).*?\1", "a column", record.get("grouping", ""))
    fields = {name: record[name] for name in ("formats", "labels", "counts") if record.get(name)}
    return {**fields, "columns": columns, **({"grouping": grouping} if grouping else {})}


def add_to_reading(folder: Path, numbers: Mapping[str, int], notes: Sequence[str]) -> None:
    """Add the figures that are not 0 to reading.json; `notes` names those that matter for interpreting scores."""
    path = Path(folder) / artifacts.READING
    values = read_json(path)
    values["numbers"] |= {name: count for name, count in numbers.items() if count}
    write_json(path, {**values, "notes": list(notes)})


def read_reading(folder: Path) -> dict[str, Any]:
    """Return reading.json of a data folder: `source`, `numbers`, `examples`, `notes`, `remarks`, `inputs` and
    `described`; all empty if there is no file.

    Raises:
        InputError: the file is damaged.
    """
    path = Path(folder) / artifacts.READING
    lists = ("notes", "remarks", "described")
    if not path.is_file():
        return {"source": "", "numbers": {}, "examples": {}, "inputs": {}, **{name: [] for name in lists}}
    try:
        values = read_json(path)
        numbers = {str(name): int(count) for name, count in values["numbers"].items()}
        texts = {key: [str(name) for name in values.get(key, ())] for key in lists}
        examples = {str(what): str(example) for what, example in values.get("examples", {}).items()}
        inputs = {str(name): dict(record) for name, record in values.get("inputs", {}).items()}
        return {"source": str(values["source"]), "numbers": numbers, "examples": examples, "inputs": inputs, **texts}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); delete {folder} and rerun its stage") from None
