"""Pairs of texts, checked and written as Parquet, one file per split, with reading.json."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tasks.downstream.pairs.params import PairColumnParams, PairsParams
from tasks.downstream.pairs.schemas import SCHEMA, SCORE, TEXTS
from tasks.downstream.reading import CheckedFiles, Reader, count_dev, is_small, source_splits
from tasks.records.interpretation import BY_NAME, Interpretation, write_reading
from tasks.records.label_forms import parse_number
from tasks.records.parquet import write_records
from tasks.records.tables import (
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    list_empty,
    make_column,
    name_record,
    open_split,
    read_texts,
)
from tasks.stage.errors import InputError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
USUAL = {
    "anchor": ("anchor", "query", "question", "sentence1"),
    "positive": ("positive", "passage", "answer", "context", "sentence2"),
    "negative": ("negative", "hard_negative"),
    "score": ("score", "similarity", "similarity_score", "label", "labels", "gold_label", "is_duplicate", "relevance"),
}
"""Part of an example -> usual names of its column."""
ROW_GROUP, HEAD = 8192, 10_000


class Pair(NamedTuple):
    """An example."""

    anchor: str
    positive: str | None
    negative: str | None
    score: float | None
    id: str


def make_layout(names: PairColumnParams, key: str, *, scored: bool) -> Columns:
    """Return the columns of pairs.

    Args:
        key: setting that messages suggest for another name, with {} for the part.
    """
    parts = [*TEXTS[: 2 if scored else 3], SCORE]
    columns: dict[str, ColumnSpec] = {"id": make_column(names.id, ("id",), key.format("id"), required=False)}
    for part in parts:
        needed = part in TEXTS[:2] or (part == SCORE and scored)
        columns[part] = make_column(getattr(names, part), USUAL[part], key.format(part), required=needed)
    return columns


def parse_pairs(
    records: Records, params: PairsParams, reading: Interpretation, most: int | None, key: str, scores: str
) -> Iterator[Pair]:
    """Yield the pairs of a table; at the end, refuse all problems.

    Args:
        key: as in `make_layout`.
        scores: setting that decides what a column of similarities means.
    """
    count, problems, columns = 0, records.problems, set[str]()
    reading.grouping = "an example is a row"
    for line in itertools.islice(records.rows, most):
        if not count:
            _require_one_reading(line, params, reading, problems.source, key, scores)
            columns = {*line.names}
        count += 1
        if {*line.names} & {*TEXTS} != columns & {*TEXTS}:
            problems.add("other columns of texts than in the first pair", line.where, sorted(line.names))
            continue
        before = problems.count
        texts = read_texts(line, TEXTS, problems)
        score = None
        if params.is_scored:
            value = line.values[SCORE]
            score = parse_number(str(value)) if isinstance(value, str | int | float) and value is not True else None
            if score is None:
                problems.add(f"no number in the column {line.names[SCORE]!r}", line.where, value)
        if problems.count == before:
            reading.count("pairs of equal texts", line.where, texts["anchor"] == texts["positive"])
            yield Pair(texts["anchor"], texts["positive"], texts.get("negative"), score, name_record(line, reading))
    problems.refuse()
    if not count:
        raise InputError(f"{problems.source} contains no pair{list_empty(reading)}. Rows with two texts are required")


def _require_one_reading(
    line: TableRow, params: PairsParams, reading: Interpretation, source: str, key: str, scores: str
) -> None:
    """Refuse columns that have another reading: two usual names of one part, or similarities that may be ignored."""
    if SCORE in line.names and params.scores == "refuse":
        raise InputError(
            f"{source} has the column {line.names[SCORE]!r}, which may say how well both texts belong together. "
            f"Set {scores} to use (the model learns it) or ignore (those of every row do)"
        )
    for part, usual in USUAL.items():
        others = [name for name in reading.unused_columns if name.strip().lower() in usual]
        if part in line.names and reading.columns[part].endswith(f"({BY_NAME})") and others:
            both = " or ".join(map(repr, (line.names[part], *sorted(others))))
            raise InputError(f"{source}: the {part} may be {both}. Set {key.format(part)}")


class PairsReader(Reader):
    """Pairs from files or the Hub."""

    groups = (("positive", ("positive",)), ("anchor", ("anchor",)))

    def _read(self, split: str, reading: Interpretation, most: int | None = None) -> Iterator[Pair]:
        params, section = self.entry.params_as(PairsParams), self.entry.key("data")
        key, scores = column_setting(section), f"downstream.{self.entry.name}.scores (podium finetune: --scores)"
        layout = make_layout(params.data.columns, key, scored=params.is_scored)
        records = open_split(params.data, section, split, RecordSpec("pairs", [layout], ENDINGS), reading)
        return parse_pairs(records, params, reading, most, key, scores)

    def write_examples(self, folder: Path) -> str:
        inputs = {split: Interpretation() for split in source_splits(self.entry)}
        counts = {
            split: write_records(self._read(split, one), folder / f"{split}.parquet", SCHEMA, ROW_GROUP)
            for split, one in inputs.items()
        }
        reading = write_reading(folder, self.entry.params_as(PairsParams).data.source, inputs)
        said = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        return "; ".join([f"{said} pairs", *reading.summary()])

    def check_files(self) -> CheckedFiles:
        """Check the first pairs of each file, all of a small one."""
        data, inputs, count = self.entry.params_as(PairsParams).data, dict[str, Interpretation](), 0
        for split in source_splits(self.entry):
            inputs[split], small = Interpretation(), is_small(self.entry, split)
            count = sum(1 for _ in self._read(split, inputs[split], None if small else HEAD)) if small else 0
        dev = count_dev(self.entry, count) if count else None
        return CheckedFiles(f"{data.train_path} and {data.dev_path or 'a part of it'}", inputs, dev_count=dev)
