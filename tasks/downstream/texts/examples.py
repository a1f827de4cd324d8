"""Labelled texts, checked (files.py, labels.py) and written as Parquet, one file per split, with reading.json.

Class names found in the training examples are stored in the schema of the files.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.core.units import shorten
from tasks.downstream.reading import (
    CheckedFiles,
    Reader,
    count_dev,
    count_seen,
    is_small,
    most_frequent,
    source_splits,
    split_params,
)
from tasks.downstream.texts.files import ValueForms, detect_labels, glue_files, read_split
from tasks.downstream.texts.params import ClassificationColumnParams, GlueDataParams, TextsParams
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.task_table import TextExample, TextTask
from tasks.params.downstream import OwnDataParams
from tasks.params.entries import TRAIN
from tasks.plan.named_files import list_files
from tasks.records.interpretation import Interpretation, write_reading
from tasks.records.label_forms import (
    SHOWN_LABELS,
    choose_classes,
    match_known,
    parse_number,
    require_same_spelling,
    sort_classes,
)
from tasks.records.labels import add_labels
from tasks.records.parquet import has_first_value, read_batches, write_records
from tasks.records.splits import fold_texts, require_known_labels, require_several_labels
from tasks.stage import streams
from tasks.stage.errors import InputError

ROW_GROUP = 8192
HEAD = 10_000
"""Examples of a large file, or of a GLUE split, that are checked before a run."""
MAX_CLASSES = 1000
UNKNOWN = "dev examples with labels not in train"
Label = tuple[str | float, ...]
"""Label of an example: one class or value, or all labels."""


def recipe_for(train: Path, options: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings for several labels if the training file has them."""
    if options.get("regression") or "task" in options:
        return {}
    fields = ClassificationColumnParams.model_fields
    named = {part: name for part, name in options["columns"].items() if part in fields}
    detected = detect_labels(train, ClassificationColumnParams(**named))
    if detected:
        names = detected.get("data.columns.label") or ["lists"]
        streams.note(f"each text may have several labels: {shorten(names, SHOWN_LABELS)}")
    return detected


class TextsReader(Reader):
    """Texts from files or the Hub."""

    groups = (("text", ("first", "second")),)

    @property
    def task(self) -> TextTask:
        return self.entry.params_as(TextsParams).text_task

    def write_examples(self, folder: Path) -> str:
        inputs, counts, pairs, forms = dict[str, Interpretation](), dict[str, int](), set[bool](), ValueForms()
        for split in source_splits(self.entry):
            path, inputs[split] = folder / f"{split}.parquet", Interpretation()
            counts[split] = write_split(self.task, read_split(self.entry, split, inputs[split], forms), path)
            if not counts[split]:
                raise InputError(f"{self.task.title}: no {split} example has a text. Check {self.entry.key('data')}")
            pairs.add(has_first_value(path, "second", self.entry.stage("examples")))
        if len(pairs) > 1:
            raise InputError(
                f"one split has pairs of texts, the other single texts ({_columns(inputs)}). "
                f"Set {self.entry.key('data', 'columns.text')} and {self.entry.key('data', 'columns.text_pair')}"
            )
        data = self.entry.params_as(TextsParams).data
        if isinstance(data, GlueDataParams) and data.source == "files":
            inputs[TRAIN].ignored = self._list_unused_files(Path(data.path))
        reading = write_reading(folder, data.source, inputs)
        said = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        return "; ".join([f"{said} examples", *reading.summary()])

    def _list_unused_files(self, folder: Path) -> list[str]:
        """Return the files of a GLUE task that no split is read from, such as its test files."""
        key = self.entry.key("data", "path")
        used = {path for split in source_splits(self.entry) for path in glue_files(self.task, folder, split, key)}
        parent = next(iter(used)).parent
        return [str(path.relative_to(parent)) for path in list_files(parent, key) if path not in used]

    def complete(self, folder: Path) -> dict[str, int]:
        """Replace class names by numbers of the training examples' classes."""
        files = {split: folder / f"{split}.parquet" for split in self.entry.splits}
        counts = {split: count_labels(path) for split, path in files.items()}
        classes = () if self.task.labels else self._classes(counts[TRAIN])
        if not self.task.labels:
            self._require_classes(classes, MAX_CLASSES)
        for split in self.entry.development:
            self._check_dev(split, counts[TRAIN], counts[split])
        if self.task.labels:
            return {}
        return {UNKNOWN: write_numbers(files.values(), make_schema(self.task), classes, fold=self.folds)}

    @property
    def folds(self) -> bool:
        """True if labels that differ only in case, blanks or normal form are one."""
        return getattr(self.entry.params.data, "similar_labels", "") == "fold"

    def _classes(self, train: Counter[Label]) -> tuple[str, ...]:
        """Return the classes of the training examples, in order."""
        labels = getattr(self.entry.params.data, "labels", None)
        return choose_classes(count_names(train), labels, fold=self.folds)

    def _require_classes(self, labels: Sequence[str], most: float) -> None:
        if not 2 <= len(labels) <= most:
            only = f" ({labels[0]})" if len(labels) == 1 else ""
            are_numbers = all(parse_number(label) is not None for label in labels)
            values = f", or downstream.{self.entry.name}.regression: true for values" if are_numbers else ""
            raise InputError(
                f"the training examples have {len(labels):,} class(es){only}, 2 to {MAX_CLASSES:,} are required. Is "
                f"another column the label? Set {self.entry.key('data', 'columns.label')} (--column label=NAME){values}"
            )

    def _check_dev(self, split: str, train: Counter[Label], dev: Counter[Label]) -> None:
        """Refuse labels of development examples that are all equal, or of which none is in the training examples."""
        key = "path" if self.task.name else "dev_path" if split_params(self.entry) is None else "dev_fraction"
        look = self.entry.key("data", key)
        names: Mapping[Any, str] = {} if self.task.is_regression else dict(enumerate(self.task.labels))
        if not self.task.labels:
            known, others = self._classes(train), count_names(dev)
            names = match_known(others, known, fold=self.folds)
            if split_params(self.entry) is None:
                if not self.folds:
                    require_same_spelling(self.entry.params.data, others, known, f"{look}: {split} has", "training has")
                require_known_labels(known, set(names.values()), split, look)
        require_several_labels({", ".join(str(names.get(x, x)) for x in label) for label in dev}, split, look)

    def check_files(self) -> CheckedFiles:
        """Check the first examples of each file, and the classes of files that are read completely."""
        labels, inputs, forms = dict[str, Counter[Label]](), dict[str, Interpretation](), ValueForms()
        keys = defaultdict[str, list[str]](list)
        task, data, has_pairs = self.task, self.entry.params.data, self.entry.params.reads_pairs
        for split in source_splits(self.entry):
            labels[split], inputs[split] = Counter(), Interpretation()
            most = None if is_small(self.entry, split) else HEAD
            for example in read_split(self.entry, split, inputs[split], forms, most):
                labels[split][tuple(example.label) if isinstance(example.label, list) else (example.label,)] += 1
                has_pairs = example.second is not None
                keys[split].append(fold_texts(example.first, example.second))
        whole = {split for split, counter in labels.items() if counter.total() < HEAD or is_small(self.entry, split)}
        learned = task.labels or self._classes(labels[TRAIN])
        if not task.labels and TRAIN in whole:
            # If a part of the file is set aside, the training examples may have fewer classes than the file.
            self._require_classes(learned, MAX_CLASSES if split_params(self.entry) is None else math.inf)
        source = TRAIN if split_params(self.entry) is not None else self.entry.development[0]
        dev, constant = None, None
        if source in whole and len(self.entry.development) == 1 and not (task.is_regression or task.is_multilabel):
            named = {
                str(task.labels[int(label)] if task.labels else label): n for (label,), n in labels[source].items()
            }
            dev, constant = count_dev(self.entry, labels[source].total()), most_frequent(Counter(named))
        for split in whole.intersection(self.entry.development):
            if task.name or TRAIN in whole:
                self._check_dev(split, labels[TRAIN], labels[split])
        summary = f"{task.name} in {data.path}" if isinstance(data, GlueDataParams) else ""
        if isinstance(data, OwnDataParams):
            summary = f"{data.train_path} and {data.dev_path or 'a part of it'}: {_columns(inputs)}"
        seen = count_seen({split: texts for split, texts in keys.items() if split in whole})
        return CheckedFiles(summary, inputs, learned, bool(task.name) or TRAIN in whole, has_pairs, dev, constant, seen)


def _columns(inputs: Mapping[str, Interpretation]) -> str:
    """Return the columns of each split that differs from those before."""
    return "; ".join(dict.fromkeys(interpretation.meaning()[1] for interpretation in inputs.values()))


def write_split(task: TextTask, examples: Iterator[TextExample], path: Path) -> int:
    """Write examples to a Parquet file, with class names unless the task defines classes; return their number."""
    name, schema = pa.list_(pa.string()) if task.is_multilabel else pa.string(), make_schema(task)
    named = schema.set(schema.get_field_index("label"), pa.field("label", name, nullable=False))
    return write_records(examples, path, schema if task.labels else named, ROW_GROUP)


def count_labels(path: Path) -> Counter[Label]:
    """Return the number of examples in a Parquet file with each label."""
    column = pq.read_table(path, columns=["label"]).column("label")
    if pa.types.is_list(column.type):
        return Counter(map(tuple, column.to_pylist()))
    return Counter({(row["values"],): row["counts"] for row in pc.value_counts(column).to_pylist()})


def count_names(labels: Counter[Label]) -> Counter[str]:
    """Return the number of examples with each class."""
    names = Counter[str]()
    for label, count in labels.items():
        for name in label:
            names[str(name)] += count
    return names


def write_numbers(paths: Collection[Path], schema: pa.Schema, labels: Sequence[str], *, fold: bool = False) -> int:
    """Replace class names by the numbers of `labels`, and of others after them, with columns of `schema`.

    For `fold` see `match_known`. Return the number of examples with classes not in `labels`.
    """
    known = match_known([name for path in paths for name in count_names(count_labels(path))], labels, fold=fold)
    names = (*labels, *sort_classes(set(known.values()) - set(labels)))
    schema = add_labels(schema, labels, names[len(labels) :])
    number_of = {name: names.index(known_name) for name, known_name in known.items()}
    count = 0
    for path in paths:
        partial = path.with_suffix(".part")
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            for batch in read_batches(path, None, ROW_GROUP, "examples"):
                values = batch.column("label").to_pylist()
                lists = [
                    sorted({number_of[x] for x in (item if isinstance(item, list) else [item])}) for item in values
                ]
                count += sum(max(row, default=-1) >= len(labels) for row in lists)
                numbers = lists if pa.types.is_list(schema.field("label").type) else [row[0] for row in lists]
                column = pa.array(numbers, schema.field("label").type)
                columns = [column if name == "label" else batch.column(name) for name in schema.names]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        partial.rename(path)
    return count
