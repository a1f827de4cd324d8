"""Reading of labelled texts from files or the Hub: CSV, TSV, JSON, Parquet; every text and label is checked.

A GLUE task is read like your own texts, with the columns and classes of its table. These differ: its files are in a
folder of the task, TSV files may have no header or the official one, and an empty text is dropped from train and kept
in the development sets, because the official metrics include it.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.core.units import shorten
from tasks.downstream.texts.labels import LabelReader
from tasks.downstream.texts.params import (
    ClassificationColumnParams,
    ClassificationDataParams,
    GlueDataParams,
    TextsParams,
)
from tasks.downstream.texts.task_table import OFFICIAL_COLUMNS, TextExample, TextTask
from tasks.params.entries import TRAIN, Entry
from tasks.plan.named_files import list_files
from tasks.records.interpretation import Interpretation
from tasks.records.label_forms import FLAGS, SHOWN_LABELS, is_label_list, parse_number
from tasks.records.plausibility import is_missing_text, refuse_missing_texts
from tasks.records.tables import (
    KEPT,
    SPLIT,
    SPLIT_COLUMN,
    UNNAMED,
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    find_layout,
    fold_name,
    list_empty,
    make_column,
    make_kept,
    name_record,
    open_file,
    open_hub_split,
    read_kept,
    read_texts,
    table_form,
)
from tasks.records.text_files import ProblemList, file_suffix
from tasks.stage.errors import InputError

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
TEXT_PARTS, LABEL, FLAG = ("text", "text_pair"), "label", "flag "
"""Parts of a record; FLAG begins the parts of columns that are 0 or 1."""
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("question", "sentence"),
)
"""Usual columns of a pair of texts."""
TEXTS = ("text", "sentence", "review", "comment", "content", "question", "sentence1", "premise")
SECOND = {"question": ("answer", "context", "passage", "document"), "premise": ("conclusion",)}
"""Usual name of a text -> names of columns that may be a second text of the same example, as is its name with a 2."""
CERTAIN_LABELS, RATINGS = ("label", "labels"), ("score", "value")
LABELS = (*CERTAIN_LABELS, "class", "category", "target", *RATINGS)
IDS = ("id", "idx")
INDEX = (fold_name(UNNAMED), "unnamed:0", "index")
"""Column of row numbers that pandas writes."""
COLA_FIELDS = ("source", LABEL, "mark", "sentence")
"""Fields of CoLA's official files, which have no header."""
DROPPED = "examples with a missing label, dropped"
PLAIN_HINT = ", or --plain if each line is a text"
DETECTION_ROWS = 1000
FASTTEXT = "__label__"
ANSWER = "answer"
PRODIGY = {ANSWER: ColumnSpec((ANSWER,), ""), "task": ColumnSpec(("_task_hash", "_input_hash"), "")}
"""Columns of files that Prodigy wrote: a label counts only if the annotator's answer is accept, or is the label."""


@dataclass
class ValueForms:
    """Findings on the values of earlier splits, for the next."""

    has_decimals: bool = False
    """They have decimal points, so that dots in other splits do not group digits."""


def text_layouts(names: ClassificationColumnParams, key: str, *, labelled: bool = True) -> list[Columns]:
    """Return the possible columns of your own texts: those set in the parameters, else those with usual names.

    Args:
        key: setting that messages suggest for another column name, with {} for the part.
        labelled: require columns of labels.
    """
    others = {"id": make_column(names.id, IDS, key.format("id"), required=False)}
    label_columns = names.label if isinstance(names.label, list) else [names.label] if names.label else []
    if not labelled:
        others |= {f"{KEPT} {name}": ColumnSpec((name,), "", False) for name in label_columns} or make_kept(LABELS, "")
    elif isinstance(names.label, list):
        others |= {FLAG + name: ColumnSpec((name,), key.format(LABEL)) for name in label_columns}
    else:
        others[LABEL] = make_column(names.label, LABELS, key.format(LABEL))
    if labelled:
        others[SPLIT] = SPLIT_COLUMN
    text = {"text": make_column(names.text, TEXTS, key.format("text") + ("" if labelled else PLAIN_HINT))}
    if names.text_pair is not None:
        text["text_pair"] = make_column(names.text_pair, (), key.format("text_pair"))
    pairs = PAIRS if names.text is None and names.text_pair is None else ()
    usual = [{part: ColumnSpec((name,), key) for part, name in zip(TEXT_PARTS, pair, strict=True)} for pair in pairs]
    layouts: list[Columns] = [{**layout, **others} for layout in (*usual, text)]
    is_answered = labelled and ANSWER not in label_columns
    return [*({**layout, **PRODIGY} for layout in layouts), *layouts] if is_answered else layouts


def glue_layouts(task: TextTask, key: str, *, labelled: bool = True) -> list[Columns]:
    """Return the possible columns of a GLUE task: the task's, or those of the official downloads."""
    names = f"{', '.join(task.columns)}, {LABEL}"
    key = f"{key} to files with the columns {names}, or without a header and with the fields {names}"
    layouts: list[Columns] = []
    for *texts, label in filter(None, ((*task.columns, LABEL), OFFICIAL_COLUMNS.get(task.name))):
        columns = {part: ColumnSpec((name,), key) for part, name in zip(TEXT_PARTS, texts, strict=False)}
        last = {LABEL: ColumnSpec((label,), key)} if labelled else make_kept((label,), key)
        layouts.append({**columns, **last, "id": ColumnSpec(IDS, key, False)})
    return [*layouts, layouts[0]]


def read_split(
    entry: Entry, split: str, reading: Interpretation, forms: ValueForms, most: int | None = None
) -> Iterator[TextExample]:
    """Yield the labelled examples of a split, in order.

    Args:
        reading: receives the chosen columns and counts.
        forms: what earlier splits show; receives what this one shows.
        most: maximum number of examples to read from each file.

    Raises:
        InputError: no file, or an unreadable one; at the end, all problems with texts and labels.
    """
    params, section = entry.params_as(TextsParams), entry.key("data")
    data, spec = params.data, params.text_task
    if data.source == "files":
        if isinstance(data, GlueDataParams):
            paths = glue_files(spec, Path(data.path), split, key := f"{section}.path")
        else:
            paths = list_tables(data.path_of(split), key := f"{section}.{split}_path")
        for path in paths:
            for example in read_file(entry, path, key, reading, most, split, forms=forms):
                yield example if len(paths) == 1 else example._replace(id=f"{path.name}, {example.id}")
        return
    config = spec.name if isinstance(data, GlueDataParams) else data.dataset_config
    address = (data.dataset, config, spec.hub_split(split), data.dataset_revision)
    records = open_hub_split(section, address, record_spec(entry, f"{section}.dataset"), reading, table_form(data))
    yield from _read_records(entry, records, reading, split, most, forms=forms)


def read_file(
    entry: Entry,
    path: Path,
    key: str,
    reading: Interpretation,
    most: int | None = None,
    split: str = "dev",
    *,
    named_by: str = "",
    labelled: bool = True,
    flags: Sequence[str] = (),
    forms: ValueForms | None = None,
) -> Iterator[TextExample]:
    """Yield the examples of a table, with or without labels; otherwise as `read_split`.

    Args:
        key: name of the file, or the parameter with its path, in messages.
        named_by: setting that messages suggest for another column name, with {} for the part; empty: the parameter.
        flags: labels that lists of 0 and 1 stand for.
    """
    wanted = record_spec(entry, key, named_by, labelled=labelled)
    records = open_file(path, key, wanted, reading, table_form(entry.params.data))
    return _read_records(entry, records, reading, split, most, labelled=labelled, flags=flags, forms=forms)


def record_spec(entry: Entry, key: str, named_by: str = "", *, labelled: bool = True) -> RecordSpec:
    """Return what to read; columns of labels, and GLUE's TSV files, only if `labelled`."""
    what, data = "texts with labels" if labelled else "texts", entry.params.data
    if isinstance(data, ClassificationDataParams):
        named_by = named_by or column_setting(entry.key("data"))
        return RecordSpec(what, text_layouts(data.columns, named_by, labelled=labelled), ENDINGS)
    task = entry.params_as(TextsParams).text_task
    headers = [(*task.columns, LABEL), *([COLA_FIELDS] if task.name == "cola" else [])]
    endings = [ending for ending in ENDINGS if labelled or ending != ".tsv"]
    return RecordSpec(what, glue_layouts(task, key, labelled=labelled), endings, headers=headers, class_names=False)


def _read_records(
    entry: Entry, records: Records, reading: Interpretation, split: str, most: int | None, **how: Any
) -> Iterator[TextExample]:
    """Yield the checked examples of a table; for other arguments see `_check_records`.

    Your own table is refused if too many of its texts are not what a text is.
    """
    examples = _check_records(entry, records, reading, split, most, **how)
    if not isinstance(data := entry.params.data, ClassificationDataParams) or not how.get("labelled", True):
        yield from examples
        return
    source, count, misread = records.problems.source, 0, Counter[str]()
    for example in examples:
        count += 1
        if example.second is None:
            misread[_find_misread(example, is_by_name=reading.is_by_name("text"))] += 1
        if not is_missing_text(example[:2], example.id, reading) or data.missing_texts != "drop":
            yield example
    refuse_missing_texts(data, count, source, reading)
    for what, number in misread.items():
        if what and number > count / 2:
            setting = column_setting(entry.key("data")).format("text")
            raise InputError(
                f"{source}: the text of {number:,} of {count:,} examples is {what}. Set {setting} to a column of texts "
                "without labels"
            )


def _check_records(
    entry: Entry,
    records: Records,
    reading: Interpretation,
    split: str,
    most: int | None,
    *,
    labelled: bool = True,
    flags: Sequence[str] = (),
    forms: ValueForms | None = None,
) -> Iterator[TextExample]:
    """Yield the examples of a table; at the end, refuse all problems with texts and labels."""
    spec, problems, count = entry.params_as(TextsParams).text_task, records.problems, 0
    forms = forms or ValueForms()
    reading.grouping = "an example is a row"
    labels = LabelReader(spec, entry.params.data, flags, is_decimal=forms.has_decimals) if labelled else None
    quotes_are_open = records.is_text and entry.params.data.quoting is None
    rows = records.rows if spec.name or not labelled else _require_clear_columns(entry, records, reading)
    for line in itertools.islice(rows, most):
        count += 1
        if line.values.get(ANSWER, "accept") != "accept":
            how = (
                "an example that its annotator did not accept (Prodigy's column answer): leave such lines out, as grep "
                '\'"answer": *"accept"\' FILE does, or pass --column label=answer if the answer is the label'
            )
            problems.add(how, line.where, line.values[ANSWER])
            continue
        example = _make_example(line, labels, bool(spec.name), problems, reading)
        if example is None:
            continue
        if labels is not None and quotes_are_open:
            labels.lines.add(line)
        if spec.name:
            what = "dropped" if split == TRAIN else "kept, because the official metrics include them"
            is_whole = all(example[: len(spec.columns)])
            reading.count(f"{split} examples with an empty text, {what}", line.where, not is_whole)
            if split == TRAIN and not is_whole:
                continue
        if isinstance(example.label, list):
            distinct = list(dict.fromkeys(example.label))
            reading.count(f"{split} examples without a label", line.where, not distinct)
            reading.count(f"{split} examples that repeat a label", line.where, len(distinct) < len(example.label))
            example = example._replace(label=distinct)
        yield example
    if labels is not None:
        labels.judge(problems, is_train=split == TRAIN)
        forms.has_decimals |= labels.numbers.is_decimal
        reading.labels = labels.describe()
    problems.refuse()
    if not count:
        raise InputError(
            f"{problems.source} contains no example{list_empty(reading)}. A header and rows with a text and its label "
            "are required"
        )


def _find_misread(example: TextExample, *, is_by_name: bool) -> str:
    """Return what the text of an example is instead; empty: nothing. The column that you named may have numbers."""
    if example.first in (example.label if isinstance(example.label, list) else [example.label]):
        return "its label"
    if FASTTEXT in example.first:
        return f"a line of fastText with its label ({FASTTEXT})"
    return "a number" if is_by_name and parse_number(example.first) is not None else ""


def _require_clear_columns(entry: Entry, records: Records, reading: Interpretation) -> Iterator[TableRow]:
    """Yield the rows of a table; refuse one in which another column may be the label or the second text.

    A column that you named is meant.
    """
    key = column_setting(entry.key("data"))
    for number, line in enumerate(records.rows):
        name = line.names.get("text", "")
        if not number and "text_pair" not in line.names and reading.is_by_name("text"):
            usual = {*SECOND.get(fold_name(name), ()), *(f"{fold_name(name)}{end}" for end in ("2", "_2"))}
            usual |= {*TEXTS} if fold_name(name) != TEXTS[0] else set()
            for other in (column for column in sorted(reading.unused_columns) if fold_name(column) in usual):
                raise InputError(
                    f"{records.problems.source}: a label may be about {name!r} alone, or about both {name!r} and "
                    f"{other!r}. Set {key.format('text')} to the first, or also {key.format('text_pair')} to the second"
                )
        if not number and reading.is_by_name(LABEL) and not entry.params_as(TextsParams).text_task.is_regression:
            label = line.names[LABEL]
            if others := _find_other_labels(label, reading.unused_columns):
                raise InputError(
                    f"{records.problems.source}: the label may be {label!r} or "
                    f"{shorten(list(map(repr, others)), SHOWN_LABELS)}. Set "
                    f"{key.format(LABEL)} to one of them"
                )
        yield line


def _find_other_labels(label: str, unused: Collection[str]) -> list[str]:
    """Return the columns that may be the label instead of one that is not called label: those with another usual name;
    beside a score or value, which may rate any label, every other column."""
    if fold_name(label) in CERTAIN_LABELS:
        return []
    may_be_rated = fold_name(label) in RATINGS
    return [
        name for name in sorted(unused) if fold_name(name) in LABELS or (may_be_rated and fold_name(name) not in INDEX)
    ]


def _make_example(
    line: TableRow, labels: LabelReader | None, may_be_empty: bool, problems: ProblemList, reading: Interpretation
) -> TextExample | None:
    """Return an example, its texts with single spaces, or None after adding what is wrong with it to `problems`.

    Args:
        labels: parses the label; None: there is none.
        may_be_empty: allow empty texts.
    """
    where, values, _ = line
    before, label = problems.count, 0
    flags = {part.removeprefix(FLAG): value for part, value in values.items() if part.startswith(FLAG)}
    if labels is not None and not flags and labels.is_dropped(values.get(LABEL)):
        reading.count(DROPPED, where)
        return None
    try:
        label = 0 if labels is None else labels.parse(flags or values.get(LABEL), where)
    except ValueError as error:
        problems.add(str(error), where, None if flags else values.get(LABEL))
    texts = read_texts(line, TEXT_PARTS, problems, may_be_empty=may_be_empty)
    if problems.count > before:
        return None
    pair = texts.get("text", ""), texts.get("text_pair")
    return TextExample(*pair, label, name_record(line, reading), read_kept(line))


def list_tables(path: Path, key: str) -> list[Path]:
    """Return a file, or the files of a folder sorted by name, which must have one known extension.

    Raises:
        InputError: no file, unknown extensions, or several.
    """
    files = list_files(path, key)
    tables = _without_metadata(files)
    endings = {file_suffix(table) for table in tables}
    if len(endings) != 1:
        listing = f"{', '.join(sorted(endings))} in one folder" if endings else ", ".join(f.name for f in files[:5])
        raise InputError(
            f"{path}: {key} must be a table ({', '.join(ENDINGS)}) or a folder of tables of one kind; found "
            f"{listing or 'nothing'}"
        )
    return tables


def _without_metadata(files: Iterable[Path]) -> list[Path]:
    """Return the tables: next to others, a .json file such as dataset_info.json is metadata."""
    tables = [file for file in files if file_suffix(file) in ENDINGS]
    return [table for table in tables if file_suffix(table) != ".json"] or tables


def glue_files(task: TextTask, folder: Path, split: str, key: str) -> list[Path]:
    """Return the file of a split, or its parts (train-00000-of-00002.parquet, ...) in order.

    Raises:
        InputError: no file, or several with different extensions.
    """
    listed = list_files(folder, key)
    places = [subfolder for name in (task.name, task.title) if (subfolder := folder / name).is_dir()]
    if len(places) != 1:
        listing = " and ".join(map(str, places)) or "neither"
        raise InputError(
            f"{key}={folder} must contain one folder of {task.title}, {task.name}/ or {task.title}/; found {listing}"
        )
    stems = dict.fromkeys((split, task.hub_split(split)))
    path_stems = {path: path.name.lower().partition(file_suffix(path))[0].partition("-0")[0] for path in listed}
    files = _without_metadata(path for path, stem in path_stems.items() if path.parent == places[0] and stem in stems)
    if len({(path.suffix, path_stems[path]) for path in files}) != 1:
        raise InputError(
            f"{places[0]} must contain one file of {split} examples, {' or '.join(f'{stem}.tsv' for stem in stems)} "
            f"(or {', '.join(ending for ending in ENDINGS if ending != '.tsv')}); found "
            f"{', '.join(path.name for path in files) or 'none'}"
        )
    return files


def detect_labels(train: Path, columns: ClassificationColumnParams) -> dict[str, Any]:
    """Return the parameters for several labels if the first rows of a file have them beyond doubt, else none.

    They have if every label is a list, or if there is no column of labels and every column other than texts and id is 0
    or 1.
    """

    try:
        path = list_tables(train, "--train")[0]
        records = open_file(path, "--train", RecordSpec("texts", [], ENDINGS), Interpretation())
        rows = [line.values for line in itertools.islice(records.rows, DETECTION_ROWS)]
    except (InputError, OSError):
        return {}  # the check of files reports it
    several = {"multilabel": True}
    present = list(rows[0]) if rows else []
    if isinstance(columns.label, list):
        return several if rows else {}
    if layout := find_layout(present, text_layouts(columns, "--column")):
        return several if all(is_label_list(row.get(layout[LABEL][0])) for row in rows) else {}
    chosen = find_layout(present, text_layouts(columns, "--column", labelled=False)) or {}
    others = [name for name in present if name not in [text for text, _ in chosen.values()]]
    if columns.label or not chosen or len(others) < 2:
        return {}
    are_flags = all(str(row.get(name)).strip().lower() in FLAGS for row in rows for name in others)
    return {**several, "data.columns.label": others} if are_flags else {}
