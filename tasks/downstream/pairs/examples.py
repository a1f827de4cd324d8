"""Pairs of texts, checked and written as Parquet, one file per split, with reading.json."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tasks.downstream.pairs.params import PairColumnParams, PairsParams
from tasks.downstream.pairs.schemas import SCHEMA, SCORE, TEXTS
from tasks.downstream.reading import CheckedFiles, Reader, count_dev, count_seen, is_small, source_splits
from tasks.records.interpretation import Interpretation, write_reading
from tasks.records.label_forms import is_label_list, parse_number
from tasks.records.parquet import write_records
from tasks.records.plausibility import is_missing_text, refuse_missing_texts
from tasks.records.splits import fold_texts
from tasks.records.tables import (
    SPLIT,
    SPLIT_COLUMN,
    UNNAMED,
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    fold_name,
    list_empty,
    make_column,
    name_record,
    open_split,
    read_texts,
)
from tasks.records.text_files import ProblemList
from tasks.stage.errors import InputError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
USUAL = {
    "anchor": ("anchor", "query", "question", "sentence1"),
    "positive": ("positive", "passage", "answer", "context", "sentence2"),
    "negative": ("negative", "hard_negative"),
    "score": ("score", "similarity", "similarity_score", "label", "labels", "gold_label", "is_duplicate", "relevance"),
}
"""Part of an example -> usual names of its column."""
NO_SCORES = ("id", "idx", "index")
"""Ends of the names of columns that number something."""
WRONG = "neg"
"""Beginning of the names of columns that may hold texts which do not belong to their anchors."""
OTHER = "other "
"""Beginning of the parts of columns that are not used."""
FALLING = -0.2
"""Lowest plausible rank correlation of many scores with the share of words that both texts have."""
ROW_GROUP, HEAD, LOOK = 8192, 10_000, 1000


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
    columns[SPLIT] = SPLIT_COLUMN
    for part in parts:
        needed = part in TEXTS[:2] or (part == SCORE and scored)
        columns[part] = make_column(getattr(names, part), USUAL[part], key.format(part), required=needed)
    return columns


@dataclass(frozen=True)
class PairTable:
    """A table of pairs.

    Args:
        open_records: opens it with these columns; it is opened again to look at columns that are not used.
        reading: receives columns and counts.
        key: as in `make_layout`.
        scores: setting that decides what a column of similarities means; empty: it cannot be set.
    """

    open_records: Callable[[Columns, Interpretation], Records]
    params: PairsParams
    reading: Interpretation
    key: str
    scores: str

    @property
    def layout(self) -> Columns:
        """Columns of the parts of a pair."""
        return make_layout(self.params.data.columns, self.key, scored=self.params.is_scored)

    def parse(self, most: int | None = None) -> Iterator[Pair]:
        """Yield the pairs, at most this many; at the end, refuse all problems."""
        records, reading = self.open_records(self.layout, self.reading), self.reading
        count, problems, first, numbers = 0, records.problems, set[str](), Counter[str]()
        values, different, overlaps = dict[str, Any](), set[str](), list[tuple[float, float]]()
        reading.grouping = "an example is a row"
        for line in self._check_columns(itertools.islice(records.rows, most), problems.source):
            first = first or {*line.names} & {*TEXTS}
            count += 1
            if {*line.names} & {*TEXTS} != first:
                problems.add("other columns of texts than in the first pair", line.where, sorted(line.names))
                continue
            before = problems.count
            texts = read_texts(line, TEXTS, problems)
            numbers.update(part for part, text in texts.items() if parse_number(text) is not None)
            for part in (part for part, text in texts.items() if is_label_list(text)):
                problems.add(f"a list in the column {line.names[part]!r}", line.where, texts[part])
            score = self._read_score(line, problems) if self.params.is_scored else None
            dropped = is_missing_text(texts.values(), line.where, reading) and self.params.data.missing_texts == "drop"
            if problems.count == before and not dropped:
                anchor, positive, negative = texts["anchor"], texts["positive"], texts.get("negative")
                reading.count("pairs of equal texts", line.where, anchor == positive)
                content = {SCORE: score} if self.params.is_scored else {"anchor": anchor, "positive": positive}
                values = values or content
                different |= {part for part, value in content.items() if value != values[part]}
                if score is not None and count <= HEAD:
                    overlaps.append((score, _overlap(anchor, positive)))
                reading.count("pairs whose negative is the positive", line.where, negative == positive)
                yield Pair(anchor, positive, negative, score, name_record(line, reading))
        problems.refuse()
        refuse_missing_texts(self.params.data, count, problems.source, reading)
        if not count:
            empty = list_empty(reading)
            raise InputError(f"{problems.source} contains no pair{empty}. Rows with two texts are required")
        for part in (part for part, number in numbers.items() if number == count):
            raise InputError(
                f"{problems.source}: each {part} is a number, where a text is required. Set {self.key.format(part)} "
                "to the column of texts"
            )
        for part in sorted(values.keys() - different) if 1 < count != most else ():
            raise InputError(
                f"{problems.source}: the {part} of every pair is {values[part]!r:.40}, so that nothing can be learned "
                f"or measured. Set {self.key.format(part)} to another column, or add pairs with another {part}"
            )
        lowest = min(FALLING, -3 / math.sqrt(max(1, len(overlaps))))  # three standard errors of one without meaning
        if overlaps and (trend := _correlate_ranks(overlaps)) < lowest:
            reading.remark(
                f"larger scores go with fewer words in common (correlation {trend:.2f}): a score must be larger the "
                "more similar the texts are. Replace distances by similarities, such as 1 - score"
            )

    def _read_score(self, line: TableRow, problems: ProblemList) -> float | None:
        value = line.values[SCORE]
        score = parse_number(str(value)) if isinstance(value, str | int | float) and value is not True else None
        if score is None:
            problems.add(f"no number in the column {line.names[SCORE]!r}", line.where, value)
        return score

    def _check_columns(self, rows: Iterable[TableRow], source: str) -> Iterator[TableRow]:
        """Yield the rows; check the columns of the first one, and of each with others."""
        names: Mapping[str, str] | None = None
        checked: list[set[str]] = []
        for line in rows:
            if line.names is not names:
                names, present = line.names, {*line.names.values(), *self.reading.unused_columns}
                if present not in checked:
                    self._require_one_reading(line, source)
                    checked.append(present)
            yield line

    def _require_one_reading(self, line: TableRow, source: str) -> None:
        """Refuse columns with another reading: two usual names of a part, similarities, texts that may be wrong."""
        key, unused = self.key, sorted(self.reading.unused_columns - {UNNAMED})
        if self.params.scores == "refuse":
            is_named = SCORE in line.names
            score_columns = [line.names[SCORE]] if is_named else self._list_scores(unused)
            if not self.scores:
                use = "This model was trained without scores: remove the column if those of every row do"
            elif is_named:
                use = f"Set {self.scores} to use (the model learns it) or ignore (those of every row do)"
            else:
                use = f"Set {self.scores} to ignore (those of every row do), or to use, and {key.format(SCORE)}"
            if score_columns:
                doubt = "which may say how well both texts belong together"
                raise InputError(f"{source} has the column {score_columns[0]!r}, {doubt}. {use}")
        for part, usual in USUAL.items():
            others = [name for name in unused if fold_name(name) in usual]
            if part in line.names and self.reading.is_by_name(part) and others:
                both = " or ".join(map(repr, (line.names[part], *others)))
                raise InputError(f"{source}: the {part} may be {both}. Set {key.format(part)}")
        if (wrong := [name for name in unused if fold_name(name).startswith(WRONG)]) and "negative" not in line.names:
            raise InputError(
                f"{source} has the column {wrong[0]!r}, which may hold texts that do not belong to their anchors. Set "
                f"{key.format('negative')}, or remove it"
            )

    def _list_scores(self, names: Sequence[str]) -> list[str]:
        """Return which columns may be similarities: only numbers or truth values, and no ids or counters."""
        kept = [name for name in names if not fold_name(name).endswith(NO_SCORES)]
        values: dict[str, list[object]] = {name: [] for name in kept}
        if kept:
            others = {OTHER + name: ColumnSpec((name,), "", False) for name in kept}
            for row in itertools.islice(self.open_records({**self.layout, **others}, Interpretation()).rows, LOOK):
                for name in kept:
                    values[name].append(row.values.get(OTHER + name))
        return [name for name, cells in values.items() if _are_scores([x for x in cells if x is not None and x != ""])]


def _overlap(first: str, second: str) -> float:
    """Return the share of words that two texts have in common."""
    words, others = (set(text.casefold().split()) for text in (first, second))
    return len(words & others) / len(words | others)


def _correlate_ranks(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation of pairs of numbers, NaN if either is constant."""
    from pandas import DataFrame

    return float(DataFrame(pairs).corr("spearman").to_numpy()[0, 1])


def _are_scores(values: Sequence[object]) -> bool:
    """Tell whether all values are numbers or truth values; different whole numbers are ids."""
    numbers = [float(x) if isinstance(x, int | float) else _parse_truth(str(x)) for x in values]
    parsed = [x for x in numbers if x is not None]
    is_id = len({*parsed}) == len(parsed) > 2 and all(x.is_integer() for x in parsed)
    return 0 < len(parsed) == len(values) and not is_id


def _parse_truth(text: str) -> float | None:
    return float(text.lower() == "true") if text.lower() in ("true", "false") else parse_number(text)


class PairsReader(Reader):
    """Pairs from files or the Hub."""

    groups = (("positive", ("positive",)), ("anchor", ("anchor",)))

    def _read(self, split: str, reading: Interpretation, most: int | None = None) -> Iterator[Pair]:
        params, section = self.entry.params_as(PairsParams), self.entry.key("data")

        def open_records(layout: Columns, reading: Interpretation) -> Records:
            return open_split(params.data, section, split, RecordSpec("pairs", [layout], ENDINGS), reading)

        scores = f"downstream.{self.entry.name}.scores (podium finetune: --scores)"
        return PairTable(open_records, params, reading, column_setting(section), scores).parse(most)

    def write_examples(self, folder: Path) -> str:
        inputs = {split: Interpretation() for split in source_splits(self.entry)}
        counts = {
            split: write_records(self._read(split, interpretation), folder / f"{split}.parquet", SCHEMA, ROW_GROUP)
            for split, interpretation in inputs.items()
        }
        reading = write_reading(folder, self.entry.params_as(PairsParams).data.source, inputs)
        said = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        return "; ".join([f"{said} pairs", *reading.summary()])

    def check_files(self) -> CheckedFiles:
        """Check the first pairs of each file, all of a small one."""
        data, inputs, keys = self.entry.params_as(PairsParams).data, dict[str, Interpretation](), dict[str, list[str]]()
        for split in source_splits(self.entry):
            inputs[split], small = Interpretation(), is_small(self.entry, split)
            folded = [fold_texts(*pair[:3]) for pair in self._read(split, inputs[split], None if small else HEAD)]
            keys |= {split: folded} if small else {}
        dev = count_dev(self.entry, len(keys[split])) if split in keys else None
        summary = f"{data.train_path} and {data.dev_path or 'a part of it'}"
        return CheckedFiles(summary, inputs, dev_count=dev, seen=count_seen(keys))
