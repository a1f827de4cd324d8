"""Data sets of Parquet files, such as the splits of an entry's examples, and scalar features of their texts.

Memory does not grow with the files.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ipu_model.core.files import complete_path
from tasks.params.entries import Entry
from tasks.records.interpretation import read_reading
from tasks.records.parquet import MAX_LISTED, open_stage_file, read_batches, split_into_groups
from tasks.records.splits import SEEN, CommonExamples, fold_texts
from tasks.stage.errors import InputError
from tasks.validation.checks import DataCheck, DataSet, Frame, Label, Tally, TotalFeature, Totals

BATCH_RECORDS = 8192
BATCH_BYTES = 16 << 20
"""Approximate text decoded at a time; a batch has fewer records if they are long."""
PART_BYTES = 64 << 20
CONFIRMED_HASHES = 1_000
MAY_BE_EMPTY = "title"

_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{84}\x{86}-\x{9f}\x{fffd}]"
"""Control characters (C0, DEL and C1, without tab, line ends and NEL) and U+FFFD, which decoders write for invalid
bytes."""

_OTHER_FORMAT = r"(?i)^\s*(\{\s*\"|<!doctype html|<html[\s>]|%pdf-|\{\\rtf)"


def _find_stage(path: Path) -> str:
    """Return the stage that writes a file: corpus, or that of an entry, such as examples@squad."""
    path = complete_path(path)
    for group, folder in (("examples", path.parent), ("rows", path.parent.parent)):
        if folder.parent.name == group:
            return f"{group}@{folder.name}"
    return path.parent.name


def compare_schema(path: Path, required: pa.Schema) -> list[str]:
    """Describe how a file's columns differ from `required`; string and large_string are equivalent."""
    with open_stage_file(path, (), _find_stage(path)) as file:
        schema = file.schema_arrow
    differences = []
    for column in required:
        index = schema.get_field_index(column.name)
        if index < 0:
            differences.append(f"{path.name}: column {column.name} is missing")
        elif _simplify(schema.field(index).type) != _simplify(column.type):
            differences.append(f"{path.name}: column {column.name} is {schema.field(index).type}, not {column.type}")
    return differences


def _simplify(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_simplify(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct(sorted((kind.field(i).name, _simplify(kind.field(i).type)) for i in range(kind.num_fields)))
    return pa.int64() if pa.types.is_integer(kind) else kind


def _read_groups(path: Path, columns: Sequence[str] = ()) -> list[Any]:
    """Return the metadata of the row groups of a file."""
    with open_stage_file(path, columns, _find_stage(path)) as file:
        return [file.metadata.row_group(number) for number in range(file.num_row_groups)]


def read_text_batches(
    path: Path, columns: Sequence[str], groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most BATCH_RECORDS records and about BATCH_BYTES of text.

    Args:
        groups: row groups to read; None: all.

    Raises:
        InputError: damaged content, or text that is not UTF-8.
    """
    sizes = (group.total_byte_size / max(1, group.num_rows) for group in _read_groups(path, columns))
    records = int(min(BATCH_RECORDS, max(1, BATCH_BYTES // max([1, *sizes]))))
    for batch in read_batches(path, columns, records, _find_stage(path), groups):
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is damaged ({error}): run `dvc repro {_find_stage(path)}` again") from None
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


def begins_as_other_format(texts: pa.Array) -> np.ndarray:
    """Return True for each text that begins like JSON, HTML, PDF or RTF. bool [n]."""
    return pc.match_substring_regex(pc.fill_null(texts, ""), _OTHER_FORMAT).to_numpy(zero_copy_only=False)


def to_strings(texts: pa.Array) -> np.ndarray:
    """Return Python strings, "" for null. object [n]."""
    return pc.fill_null(texts, "").to_numpy(zero_copy_only=False).astype(object)


def hash_strings(values: np.ndarray) -> np.ndarray:
    """Return 64-bit hashes of strings, the same on every machine. uint64 [n]."""
    from pandas.util import hash_array

    return hash_array(values, categorize=False)


def sort_hashes(hashes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sorted hashes of all batches, with repetitions. uint64 [n]."""
    return np.sort(np.concatenate(hashes)) if hashes else np.zeros(0, np.uint64)


def find_repetitions(
    hashes: Sequence[np.ndarray], read_again: Callable[[], Iterable[np.ndarray]]
) -> tuple[int, list[str]]:
    """Count the keys that repeat an earlier one, and describe some of them, by the hashes of all keys, in batches.

    Keys with equal 64-bit hashes are read again, in arrays of strings, and compared, so a hash collision is never
    counted as a repetition. If more than CONFIRMED_HASHES hashes repeat, they are not confirmed: that many collisions
    do not happen by chance (0.03 are expected among 10**9 keys).
    """
    ordered = sort_hashes(hashes)
    extra = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(extra):
        return 0, []
    suspects = np.unique(extra)
    confirmed = suspects[:CONFIRMED_HASHES]
    counts = Counter(key for texts in read_again() for key in texts[np.isin(hash_strings(texts), confirmed)])
    repeated = {key: count for key, count in sorted(counts.items()) if count > 1}
    total = len(extra) if len(suspects) > CONFIRMED_HASHES else sum(repeated.values()) - len(repeated)
    return total, [f"{key} ({count} times)" for key, count in repeated.items()]


class FilePart(NamedTuple):
    """Consecutive row groups of a file."""

    name: str
    path: Path
    groups: Sequence[int]
    first: int
    """Number of the first record in its file."""
    before: int
    """Records in earlier files."""
    records: int
    bytes: int


def plan_parts(files: Mapping[str, Path]) -> list[FilePart]:
    """Divide files into parts of about PART_BYTES, using only their metadata."""
    parts, before = [], 0
    for name, path in files.items():
        first, groups = 0, enumerate(_read_groups(path))
        for row_groups in split_into_groups(groups, lambda item: item[1].total_byte_size, MAX_LISTED, PART_BYTES):
            numbers, rows = [number for number, _ in row_groups], sum(group.num_rows for _, group in row_groups)
            size = sum(group.total_byte_size for _, group in row_groups)
            parts.append(FilePart(name, path.absolute(), numbers, first, before, rows, size))
            first += rows
        before += first
    return parts


class ParquetFiles(DataSet):
    """Files of one schema; subclasses add checks, the features of a batch, totals and figures."""

    unit: ClassVar[str] = "characters"
    measured: Sequence[str]
    """Nouns of the histograms of lengths."""
    texts: ClassVar[Mapping[str, str]] = {}
    """Noun -> column that must have text in every record."""

    def __init__(self, files: Mapping[str, Path], schema: pa.Schema, columns: str, stage: str) -> None:
        """Set the requirements of files by name, in one folder, which has a reading.json and which `stage` writes."""
        self.files, self.schema, self.tally = files, schema, Tally()
        folder = next(iter(files.values())).parent
        reading = read_reading(folder)
        self.reading: dict[str, int] = reading["numbers"]
        self.examples: dict[str, str] = reading["examples"]
        self._described: list[str] = reading["described"]
        advice = f"{complete_path(folder)} was not written by {stage}: delete it and run that stage"
        self.prerequisites = (DataCheck("schema", ", ".join(schema.names), columns, advice),)

    def described(self) -> list[str]:
        return self._described

    def text_checks(self, advice: str) -> list[DataCheck]:
        """Return a check for each of `texts`."""
        allowed = {MAY_BE_EMPTY: "no title is null (an empty one is fine)"}
        return [
            DataCheck(f"{name}s_present", column, allowed.get(name, f"no {name} is null or empty"), advice)
            for name, column in self.texts.items()
        ]

    def prepare(self) -> Totals:
        differences = [text for path in self.files.values() for text in compare_schema(path, self.schema)]
        return {"schema": TotalFeature.from_differences(differences)}

    def parts(self) -> list[FilePart]:
        return plan_parts(self.files)

    def _read(self, part: FilePart, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        return read_text_batches(part.path, columns or self.schema.names, part.groups)

    def check(self, part: FilePart) -> Iterator[tuple[Frame, Label]]:
        first = part.first
        for batch in self._read(part):
            label = partial(self._label, part, batch, first)
            missing = {
                f"{text}s_present": (is_null if text == MAY_BE_EMPTY else is_missing)(batch.column(column))
                for text, column in self.texts.items()
            }
            if "id" in self.texts:
                ids = to_strings(batch.column(self.texts["id"]))[missing["ids_present"] == 0]
                self.tally.lists["ids"].append(hash_strings(ids))
            self.records[part.name] += len(batch)
            yield {**missing, **self._features(part.name, batch, label)}, label
            first += len(batch)

    @property
    def records(self) -> Counter[str]:
        """Number of records by file."""
        return self.tally.counters["records"]

    def _label(self, part: FilePart, batch: pa.RecordBatch, first: int, offset: int) -> str:
        """Return the label of a record of a batch whose first record is number `first` of its file."""
        return f"{part.name} {self.record} {first + offset}"

    @abstractmethod
    def _features(self, name: str, batch: pa.RecordBatch, label: Label) -> Frame:
        """Return the features of the record checks without those of `texts`."""

    def repeated_ids(self) -> TotalFeature:
        """Count repeated ids, compared as text if their hashes are equal."""
        column = self.texts["id"]
        repeated, examples = find_repetitions(
            self.tally.lists["ids"],
            lambda: (to_strings(batch.column(column)) for part in self.parts() for batch in self._read(part, [column])),
        )
        shown = f"{repeated:,} of {self.records.total():,} {self.record}s repeat an id"
        return TotalFeature(repeated, shown, examples)

    def histograms(self) -> list[dict[str, Any]]:
        return [self.tally.histograms[name].histogram(f"Length of {name}", self.unit) for name in self.measured]


class ExampleFiles(ParquetFiles):
    """Examples of an entry, all splits."""

    def __init__(self, folder: Path, splits: Sequence[str], schema: pa.Schema, columns: str) -> None:
        """Open the splits in `folder`.

        Args:
            splits: names of the splits, training first.

        Raises:
            InputError: the file of a split is missing.
        """
        files = {split: Path(folder) / f"{split}.parquet" for split in splits}
        for path in files.values():
            if not path.is_file():
                raise InputError(f"{path} does not exist: run its stage examples first")
        super().__init__(files, schema, columns, "the stage examples")

    def count_checks(self, least: int, advice: str) -> list[DataCheck]:
        """Return a check for each split that it has at least this many examples; `advice` may contain {split}."""
        return [
            DataCheck(
                f"{split}_{self.record}s",
                f"{split}.parquet",
                f"at least {least:,} {self.record}s",
                advice.format(split=split),
                minimum=least,
            )
            for split in self.files
        ]

    def seen_checks(self, entry: Entry) -> list[DataCheck]:
        """Return the check of each development set that few of its examples are training examples."""
        most, advice = 100 * entry.params.data.max_common_share, SEEN.format(entry.key("data", "max_common_share"))
        return [
            DataCheck(
                f"{split}_unseen",
                f"{split}.parquet",
                f"at most {most:g}% in common with train.parquet",
                advice,
                maximum=most,
            )
            for split in entry.development
        ]

    def totals(self) -> Totals:
        counts = {f"{split}_{self.record}s": TotalFeature(self.records[split]) for split in self.files}
        (_, train), *others = ((split, sort_hashes(self.tally.lists[f"folded {split}"])) for split in self.files)
        for split, keys in others:
            common = CommonExamples.find(train, keys)
            counts[f"{split}_unseen"] = TotalFeature(100 * common.share, common.describe(self.record))
        return counts

    def numbers(self) -> dict[str, object]:
        return {f"{split} {self.record}s": self.records[split] for split in self.files}

    def add_keys(self, split: str, keys: Sequence[str] | np.ndarray, *, folded: bool = True) -> None:
        """Add the keys of a batch, which equal examples share; if `folded`, count them for `seen_checks` as well."""
        self.tally.lists[f"keys {split}"].append(hash_strings(np.asarray(keys, dtype=object)))
        if folded:
            texts = np.array([fold_texts(key) for key in keys], dtype=object)
            self.tally.lists[f"folded {split}"].append(hash_strings(texts))

    def hashes(self, split: str) -> np.ndarray:
        """Return the sorted hashes of the keys of a split."""
        return sort_hashes(self.tally.lists[f"keys {split}"])

    def _repetitions(self, before: str, in_train: str, further: Mapping[str, int] | None = None) -> dict[str, int]:
        """Count examples that repeat a training example: most data sets have some, so they are reported, not refused.

        The labels are `before`, of training examples, after the name of the split, and `in_train`, of others. Further
        figures are of the training examples.
        """
        (training, ours), *others = ((split, self.hashes(split)) for split in self.files)
        return {
            f"{training} {before}": len(ours) - len(np.unique(ours)),
            **(further or {}),
            **{f"{split} {in_train}": int(np.isin(keys, ours).sum()) for split, keys in others},
        }
