"""Texts with labels in every form; what is refused, with its lines; columns that are found and that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.params.schema import validate_params
from tasks.records.interpretation import read_reading
from tasks.records.label_forms import match_known
from tasks.records.labels import read_parquet_labels
from tasks.stage.errors import InputError, ParamsError
from tests.tasks.downstream.texts.classification_checkout import part, values_of, write_csv

TWO = [("good one", "good"), ("bad one", "bad")]


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def made(folder: Path, train: Path, dev: Path | None = None, **more: Any) -> Path:
    """The folder of examples of these files."""
    data = {"train_path": str(train), "dev_path": str(dev or train), **more.pop("data", {})}
    make_examples(part("reader", data, **more), folder / "examples")
    return folder / "examples"


def rows_in(examples: Path, split: str = "train") -> list[tuple[str, str | None, str]]:
    """First and second text, and the name of the class."""
    path = examples / f"{split}.parquet"
    table, names = pq.read_table(path).to_pydict(), [name for some in read_parquet_labels(path) for name in some]
    return list(zip(table["first"], table["second"], (names[one] for one in table["label"]), strict=True))


FORMS = {
    "b.csv": "id;Text;Label\n7;good  one;good\n8;bad one;bad\n",
    "b.json": json.dumps([{"text": text, "label": label} for text, label in TWO]),
    "c.json": "".join(json.dumps({"Review": text, "Target ": label}) + "\n" for text, label in TWO),
    "a.csv": 'text,label\n"good  one",good\nbad one,bad\n',
    "a.tsv": "sentence\tid\tclass\ngood one\t7\tgood\nbad one\t8\tbad\n",
    "a.jsonl": "".join(json.dumps({"review": text, "target": label}) + "\n" for text, label in TWO),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read_by_its_ending_and_columns_are_found_by_their_usual_names(tmp_path: Path, name: str) -> None:
    assert rows_in(made(tmp_path, put(tmp_path / name, FORMS[name]))) == [(t, None, c) for t, c in TWO]


def test_parquet_of_one_file_or_a_folder_of_parts_is_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number, (text, label) in enumerate(TWO):
        pq.write_table(pa.table({"text": [text], "label": [label]}), tmp_path / f"parts/part-{number}.parquet")
    assert [text for text, *_ in rows_in(made(tmp_path, tmp_path / "parts"))] == ["good one", "bad one"]
    put(tmp_path / "parts/more.csv", "text,label\na,b\n")
    with pytest.raises(InputError, match=r"\.csv, \.parquet in one folder"):
        made(tmp_path, tmp_path / "parts")


def test_pairs_are_found_or_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", ["premise", "hypothesis", "label"], [("a", "b", "x"), ("c", "d", "y")])
    assert rows_in(made(tmp_path, path)) == [("a", "b", "x"), ("c", "d", "y")]
    columns = {"columns": {"text": "hypothesis", "text_pair": "premise"}}
    assert rows_in(made(tmp_path, path, data=columns))[0] == ("b", "a", "x")
    alone = {"columns": {"text": "hypothesis"}}
    assert rows_in(made(tmp_path, path, data=alone))[0] == ("b", None, "x")
    single = write_csv(tmp_path / "b.csv", ["text", "label"], TWO)
    with pytest.raises(InputError, match="one split has pairs of texts, the other single texts"):
        made(tmp_path, path, single)


@pytest.mark.parametrize(
    ("first", "second"), [("question", "answer"), ("Question", "Context"), ("text", "Text2"), ("review", "Comment")]
)
def test_a_column_that_may_be_a_second_text_is_refused_until_one_is_named(
    tmp_path: Path, first: str, second: str
) -> None:
    path = write_csv(tmp_path / "a.csv", [first, second, "label"], [("a", "b", "x"), ("c", "d", "y")])
    with pytest.raises(InputError, match=f"'{first}' alone, or about both '{first}' and '{second}'. Set .*--column"):
        made(tmp_path, path)
    assert rows_in(made(tmp_path, path, data={"columns": {"text": first}}))[0] == ("a", None, "x")
    assert rows_in(made(tmp_path, path, data={"columns": {"text_pair": second}}))[0] == ("a", "b", "x")


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("class", "category"), "'category'"),
        (("score", "mood", "Unnamed: 0"), "'mood'"),
        (("score", "Unnamed: 0"), None),
        (("class", "mood"), None),
        (("label", "category"), None),
    ],
)
def test_a_label_that_may_be_another_column_is_refused_until_one_is_named(
    tmp_path: Path, names: tuple[str, ...], others: str | None
) -> None:
    rows = [("a", *"xuv"[: len(names)]), ("b", *"ywz"[: len(names)])]
    path = write_csv(tmp_path / "a.csv", ["text", *names], rows)
    if others is None:
        assert rows_in(made(tmp_path, path))[0] == ("a", None, "x")
        return
    with pytest.raises(InputError, match=f"the label may be '{names[0]}' or {others}. Set .*--column label=NAME"):
        made(tmp_path, path)
    assert rows_in(made(tmp_path, path, data={"columns": {"label": names[1]}}))[0] == ("a", None, "u")


def test_names_of_classes_come_with_parquet_of_datasets_and_from_the_hub(tmp_path: Path) -> None:
    features = datasets.Features({"Text": datasets.Value("string"), "Label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"Text": ["a", "b"], "Label": [1, 0]}, features=features)
    (tmp_path / "hub").mkdir()
    for split in ("train", "validation"):
        data.to_parquet(str(tmp_path / f"hub/{split}.parquet"))
    assert rows_in(made(tmp_path, tmp_path / "hub/train.parquet")) == [("a", None, "yes"), ("b", None, "no")]
    hub = {"source": "hub", "dataset": str(tmp_path / "hub")}
    assert rows_in(made(tmp_path, tmp_path, data=hub), "dev") == [("a", None, "yes"), ("b", None, "no")]
    with pytest.raises(InputError, match=r"no column 'txt'.*\(podium finetune: --column text=NAME\)"):
        made(tmp_path, tmp_path, data={**hub, "columns": {"text": "txt"}})


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "D", "a"], ("D", "a", "b")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_classes_are_those_of_train_in_order(tmp_path: Path, labels: list[str], order: tuple[str, ...]) -> None:
    path = write_csv(tmp_path / "a.csv", ["text", "label"], [(f"text {one}", one) for one in labels])
    assert read_parquet_labels(made(tmp_path, path) / "train.parquet") == (order, ())


FILES = {
    "csv": "text,label\na,{}\nb,{}\n",
    "jsonl": '{{"text": "a", "label": {}}}\n{{"text": "b", "label": {}}}\n',
}


@pytest.mark.parametrize(
    ("train", "dev", "classes"),
    [
        (("csv", "0.0", "1.0"), ("csv", "0", "1"), ("0", "1")),
        (("csv", "0", "1"), ("csv", "0.00", "1.0"), ("0", "1")),
        (("csv", "-1.0", "+1.0"), ("jsonl", "-1", "1"), ("-1", "1")),
        (("csv", "-1", "+1"), ("jsonl", "-1.0", "1"), ("+1", "-1")),
        (("jsonl", "0.0", "1"), ("csv", "0", "1.0"), ("0", "1")),
        (("jsonl", "true", "false"), ("csv", "TRUE", "False"), ("false", "true")),
        (("csv", "True", "False"), ("jsonl", "true", "false"), ("False", "True")),
        (("csv", "v1.5", "2.0"), ("csv", "v1.5", "2"), ("2", "v1.5")),
        (("csv", "007", "7"), ("csv", "7", "007"), ("007", "7")),
    ],
)
def test_whole_numbers_and_truths_are_the_same_classes_in_every_form(
    tmp_path: Path, train: Any, dev: Any, classes: tuple[str, ...]
) -> None:
    files = []
    for split, (form, *labels) in (("train", train), ("dev", dev)):
        files.append(put(tmp_path / f"{split}.{form}", FILES[form].format(*labels)))
    folder = made(tmp_path, *files)
    assert read_parquet_labels(folder / "train.parquet") == read_parquet_labels(folder / "dev.parquet") == (classes, ())
    assert {label for *_, label in rows_in(folder, "dev")} == set(classes)
    assert part("reader", {"train_path": str(files[0]), "dev_path": str(files[1])}).check_files().summary


def test_parquet_has_the_classes_of_the_other_forms(tmp_path: Path) -> None:
    train = put(tmp_path / "a.csv", FILES["csv"].format("0.0", "1.0"))
    for values in ([0, 1], [0.0, 1.0], ["0", "1.0"]):
        pq.write_table(pa.table({"text": ["a", "b"], "label": values}), tmp_path / "b.parquet")
        assert [label for *_, label in rows_in(made(tmp_path, train, tmp_path / "b.parquet"), "dev")] == ["0", "1"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["2", "3"], r"no dev example has a class of the training examples: found 2, 3, training has 0, 1"),
        (["1", "1"], "all dev examples have the label 1, so no score on them can tell"),
    ],
)
def test_dev_examples_that_no_score_can_be_made_of_are_refused_before_the_first_stage(
    tmp_path: Path, labels: list[str], message: str
) -> None:
    train = put(tmp_path / "a.csv", FILES["csv"].format("0", "1"))
    dev = put(tmp_path / "b.csv", FILES["csv"].format(*labels))
    with pytest.raises(InputError, match=message):
        part("reader", {"train_path": str(train), "dev_path": str(dev)}).check_files()
    with pytest.raises(InputError, match=message):
        made(tmp_path, train, dev)
    assert not (tmp_path / "examples").exists()


def test_dev_values_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    train = put(tmp_path / "a.csv", FILES["csv"].format("0", "1.5"))
    dev = put(tmp_path / "b.csv", FILES["csv"].format("1", "1.0"))
    with pytest.raises(InputError, match=r"all dev examples have the label 1\.0"):
        made(tmp_path, train, dev, regression=True)


def test_the_separator_can_be_stated_and_what_was_found_is_said(tmp_path: Path) -> None:
    train = put(tmp_path / "a.csv", "Text;label\na,b;x\nb;y\n")
    examples = made(tmp_path, train)
    assert rows_in(examples)[0] == ("a,b", None, "x")
    assert read_reading(examples)["described"] == [
        "train: CSV, UTF-8, fields separated by semicolons; text is 'Text' (by name), label is 'label' (by name)",
        "  labels are 2 names (x, y); an example is a row",
        "dev: read like train",
    ]
    bars = put(tmp_path / "b.csv", "text|label\na|x\nb|y\n")
    assert rows_in(made(tmp_path, bars, data={"separator": "pipe"}))[0] == ("a", None, "x")
    with pytest.raises(InputError, match=r"no column 'text'"):
        made(tmp_path, train, data={"separator": "comma"})


def test_a_folder_of_tables_may_hold_json_that_says_something_of_them(tmp_path: Path) -> None:
    put(tmp_path / "in.json", FORMS["b.json"])
    (tmp_path / "in").mkdir()
    put(tmp_path / "in/train.csv", FORMS["a.csv"])
    put(tmp_path / "in/dataset_info.json", "{}")
    assert len(rows_in(made(tmp_path, tmp_path / "in"))) == 2
    (tmp_path / "in/train.csv").unlink()
    put(tmp_path / "in/dataset_info.json", FORMS["b.json"])
    assert len(rows_in(made(tmp_path, tmp_path / "in"))) == 2


def test_what_dev_alone_has_is_counted_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write_csv(tmp_path / "a.csv", ["text", "label"], TWO)
    dev = write_csv(tmp_path / "b.csv", ["text", "label"], [*TWO, ("odd", "strange")])
    folder = made(tmp_path, train, dev)
    assert rows_in(folder, "dev")[-1] == ("odd", None, "strange")
    numbers = read_reading(folder)["numbers"]
    assert numbers["dev examples with labels not in train"] == 1
    assert "note: 1 dev example with labels not in train" in capsys.readouterr().err, "on the terminal as well"


BAD = {
    "an empty text": ("a.csv", "text,label\n ,good\nx,bad\n", r"an empty text in the column 'text': line 2"),
    "no label": ("a.csv", "text,label\nx,\ny,bad\n", r"a missing label: --missing-labels drop .*: line 2"),
    "many": ("a.csv", "text,label\n" + "x,\n" * 7, r"line 2 .*, line 6 .* and 2 more"),
    "ragged": ("a.csv", "text,label\nx,good\ny,bad,more\n", r"line 3 has 3 fields, but the header has 2"),
    "ragged tsv": ("a.tsv", "text\tlabel\nx\n", r"line 2 has 1 fields, but the header has 2"),
    "not UTF-8": ("a.csv", b"text,label\nx\xff,good\n", r"not UTF-8: found byte 0xff at offset 12 \(line 2\)"),
    "empty": ("a.csv", "", "is empty"),
    "no example": ("a.csv", "text,label\n", r"contains no example \(a\.csv has a header and no rows\)"),
    "an open quote": ("a.csv", 'text,label\n"x,good\ny,bad\n', "line 2: the quote before 'x,good'"),
    "no number": (
        "a.jsonl",
        '{"text": "x", "label": 0.5}\n',
        "a number with decimals, .* as a class: --regression .*: line 1",
    ),
    "a list": (
        "a.jsonl",
        '{"text": "x", "label": ["y"]}\n',
        "a list of labels .for several labels set multilabel: true.*: line 1",
    ),
    "no text": ("a.jsonl", '{"text": null, "label": "y"}\n', "no text in the column 'text': line 1"),
    "half a pair": ("a.jsonl", '{"text": "\\ud800", "label": "y"}\n', "half a surrogate pair.*: line 1"),
    "a long label": (
        "a.jsonl",
        json.dumps({"text": "x", "label": "y" * 201}),
        "a label that has more than 200 characters",
    ),
    "one class": ("a.csv", "text,label\nx,good\ny,good\n", r"1 class\(es\) \(good\), 2 to 1,000 are required"),
    "columns": (
        "a.csv",
        "txt,lable\nx,y\n",
        r"'text' and no column 'label'; its columns are txt, lable; did you mean txt for text, lable for label",
    ),
    "labels as texts": (
        "a.csv",
        "text,label\ngood,good\nbad,bad\n",
        "text of 2 of 2 examples is its label. Set ",
    ),
    "numbers as texts": (
        "a.csv",
        "text,label\n1,good\n2,bad\n",
        "is a number. Set .*--column text=NAME",
    ),
    "fastText": ("a.csv", "text,label\n__label__a x,a\n__label__b y,b\n", "is a line of fastText with its label"),
    "splits": (
        "a.jsonl",
        '{"text": "x", "label": "y", "set": "validation"}\n{"text": "z", "label": "y", "set": "TRAIN"}\n',
        r"column 'set' says which .* training \('TRAIN' in line 2\) and which are not \('validation' in line 1\)",
    ),
    "missing texts": (
        "a.csv",
        "text,label\nx,a\nNone,b\nN/A,b\n",
        r"2 of 3 are examples with a text that may stand for a missing one, .*\(first: line 3\). --missing-texts drop",
    ),
    "ending": ("a.xlsx", "x", r"must be a table \(\.csv, \.tsv, \.jsonl, \.json, \.parquet\).*found a\.xlsx"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_refused_with_its_place_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    file, text, message = BAD[name]
    with pytest.raises(InputError, match=message):
        made(tmp_path, put(tmp_path / file, text))
    assert not (tmp_path / "examples").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("high", "a value that is not a finite number: line 3"),
        ("nan", "a value that is not a finite number: line 3"),
        ("inf", "a value that is not a finite number: line 3"),
        ("", "a missing value: line 3"),
    ],
)
def test_a_value_that_is_no_number_is_refused_with_its_line(tmp_path: Path, value: str, message: str) -> None:
    path = write_csv(tmp_path / "a.csv", ["text", "score"], [("x", "1.5"), ("y", value)])
    with pytest.raises(InputError, match=message):
        made(tmp_path, path, regression=True)
    path = write_csv(tmp_path / "a.csv", ["text", "score"], [("x", "1.5"), ("y", "-2e1")])
    assert pq.read_table(made(tmp_path, path, regression=True) / "train.parquet")["label"].to_pylist() == [1.5, -20.0]


def test_a_floor_of_the_other_kind_of_label_is_refused() -> None:
    with pytest.raises(
        ParamsError, match=r"gate\.min_pearson does not apply to text class.*min_accuracy or min_macro_f1"
    ):
        validate_params(values_of({}, gate={"min_pearson": 50.0}))


def test_ids_are_kept_for_those_who_look_at_mistakes(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", FORMS["a.tsv"])
    folder = made(tmp_path, path)
    task = part("scores", {"train_path": "x"})
    assert task.names(task.read_examples(folder / "dev.parquet")) == ["7", "8"]


def test_a_class_without_a_name_is_its_number() -> None:
    assert match_known(["0", "1.0", "2"], ["LABEL_0", "LABEL_1"]) == {"0": "LABEL_0", "1.0": "LABEL_1", "2": "2"}
    assert match_known(["LABEL_1", "LABEL_x"], ["0", "1"]) == {"LABEL_1": "1", "LABEL_x": "LABEL_x"}
