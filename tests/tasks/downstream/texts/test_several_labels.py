"""Texts with several labels in every form; what is refused, with its lines, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.downstream.texts.examples import recipe_for
from tasks.params.schema import validate_params
from tasks.records.interpretation import read_reading
from tasks.records.labels import read_parquet_labels
from tasks.stage.errors import InputError, ParamsError
from tests.tasks.downstream.texts.classification_checkout import part, values_of

ROWS: list[tuple[str, list[str]]] = [("a", ["new", "bad"]), ("b", []), ("c", ["bad"]), ("d", ["new"])]
Data = dict[str, Any]


def lines_of(rows: list[tuple[str, Any]], name: str = "labels") -> str:
    return "".join(json.dumps({"text": text, name: labels}) + "\n" for text, labels in rows)


def flags_of(rows: list[tuple[str, list[str]]]) -> str:
    return "text,new,bad\n" + "".join(f"{text},{int('new' in one)},{int('bad' in one)}\n" for text, one in rows)


FORMS: dict[str, tuple[str, str, Data]] = {
    "lists": ("a.jsonl", lines_of(ROWS), {}),
    "lists as JSON": ("a.csv", "text;label\n" + "".join(f"{t};{json.dumps(one)}\n" for t, one in ROWS), {}),
    "a separator": ("a.csv", "text,label\n" + "".join(f"{t},{' | '.join(one)}\n" for t, one in ROWS),
                    {"label_separator": "pipe"}),
    "columns": ("a.csv", flags_of(ROWS), {"columns": {"label": ["new", "bad"]}}),
    "columns of truths": ("a.jsonl", "".join(json.dumps({"text": t, "new": "new" in one, "bad": 1.0 * ("bad" in one)})
                          + "\n" for t, one in ROWS), {"columns": {"label": ["new", "bad"]}}),
}  # fmt: skip


def put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def made(folder: Path, train: Path, dev: Path | None = None, **data: Any) -> Path:
    """The folder of examples of these files."""
    task = part("reader", {"train_path": str(train), "dev_path": str(dev or train), **data}, multilabel=True)
    task.check_files()
    make_examples(task, folder / "examples")
    return folder / "examples"


def labels_in(examples: Path, split: str = "train") -> list[list[str]]:
    path = examples / f"{split}.parquet"
    names = [name for some in read_parquet_labels(path) for name in some]
    table = pq.read_table(path)
    assert table.schema.field("label").type == pa.list_(pa.int32())
    return [[names[one] for one in label] for label in table["label"].to_pylist()]


@pytest.mark.parametrize("name", FORMS)
def test_each_form_has_the_same_labels(tmp_path: Path, name: str) -> None:
    file, text, data = FORMS[name]
    examples = made(tmp_path, put(tmp_path / file, text), **data)
    assert labels_in(examples) == [sorted(labels) for _, labels in ROWS]
    assert read_parquet_labels(examples / "train.parquet") == (("bad", "new"), ())
    assert read_reading(examples)["numbers"]["train examples without a label"] == 1


def test_what_is_repeated_and_what_dev_alone_has_are_counted(tmp_path: Path) -> None:
    train = put(tmp_path / "a.jsonl", lines_of([*ROWS, ("e", ["bad", "1", "1.0"])]))
    dev = put(tmp_path / "b.jsonl", lines_of([("x", ["odd", "new"]), ("y", ["LABEL_1"]), ("z", [])]))
    examples = made(tmp_path, train, dev)
    assert labels_in(examples)[-1] == ["1", "bad"]
    assert labels_in(examples, "dev") == [["new", "odd"], ["1"], []]
    assert read_parquet_labels(examples / "dev.parquet") == (("1", "bad", "new"), ("odd",))
    numbers = read_reading(examples)["numbers"]
    assert numbers["dev examples with labels not in train"] == 1
    assert numbers["train examples that repeat a label"] == 1


BAD: dict[str, tuple[str, Data, str]] = {
    "a missing list": (lines_of([*ROWS, ("e", None)]), {}, r"missing labels \(\[\] means .*: line 5"),
    "a text": (lines_of([*ROWS, ("e", "new")]), {}, r"not a list \(--label-separator.*: line 5 \('new'\)"),
    "no JSON": (lines_of([("e", "[new]"), *ROWS]), {}, r"not a list .*: line 1 \('\[new\]'\)"),
    "an empty name": (lines_of([("e", ["new", " "]), *ROWS]), {}, "a missing label: .*: line 1"),
    "a separator too many": ("text,label\na,new|\n", {"label_separator": "|"}, "a missing label: .*: line 2"),
    "a list with a separator": (lines_of(ROWS), {"label_separator": "pipe"}, "not a text, as label_separator is '|'"),
    "a list in a list": (lines_of([("e", [["new"]]), *ROWS]), {}, "a list of labels .*: line 1"),
    "a third value": (flags_of(ROWS) + "e,2,0\nf,,1\n", {"columns": {"label": ["new", "bad"]}},
                      r"not 0 or 1 in the column 'new': line 6, line 7"),
    "a column that is not there": (flags_of(ROWS), {"columns": {"label": ["new", "bat"]}}, "did you mean bad"),
    "one label": (lines_of([("a", ["new"]), ("b", [])]), {}, r"1 class\(es\) \(new\), 2 to 1,000 are required"),
    "the same labels": ("".join(lines_of([(text, ["new", "bad"])]) for text in "ab"), {}, "all dev examples have"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, name: str) -> None:
    text, data, message = BAD[name]
    path = put(tmp_path / f"a.{'jsonl' if text.startswith('{') else 'csv'}", text)
    with pytest.raises(InputError, match=message):
        made(tmp_path, path, **data)
    assert not (tmp_path / "examples").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"regression": True, "multilabel": True}, "regression: true excludes multilabel: true"),
        ({"data": {"label_separator": "pipe"}}, "or data.label_separator: set multilabel: true"),
        ({"data": {"columns": {"label": ["a", "b"]}}}, "data.columns.label .* set multilabel: true"),
        ({"multilabel": True, "data": {"columns": {"label": ["a", "a"]}}}, "two or more different columns"),
        ({"multilabel": True, "data": {"columns": {"label": ["a", "b"]}, "label_separator": ","}}, "excludes"),
        ({"multilabel": True, "gate": {"min_accuracy": 50}}, "gate.min_accuracy does not apply to multi-label"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(values: Data, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        validate_params(values_of({**values.pop("data", {})}, **values))


DETECTED: dict[str, Data] = {
    FORMS["lists"][1]: {"multilabel": True},
    FORMS["lists as JSON"][1]: {"multilabel": True},
    FORMS["columns"][1]: {"multilabel": True, "data.columns.label": ["new", "bad"]},
    FORMS["a separator"][1]: {},
    "text,label\na,new\nb,bad\n": {},
    "text,label\na,[new]\nb,[bad]\n": {},
    "text,label,new,bad\na,x,0,1\nb,y,1,0\n": {},
    "text,new,bad\na,0,1\nb,1,2\n": {},
    "text,new,bad,when\na,0,1,May\n": {},
    "words,new,bad\na,0,1\n": {},
    "text,new\na,0\n": {},
    "text,label\n": {},
    "": {},
}


@pytest.mark.parametrize("text", DETECTED)
def test_several_labels_are_detected_where_nothing_else_can_be_meant(tmp_path: Path, text: str) -> None:
    path = put(tmp_path / f"a.{'jsonl' if text.startswith('{') else 'csv'}", text)
    assert recipe_for(path, {"columns": {}}) == DETECTED[text]
    assert recipe_for(path, {"columns": {}, "regression": True}) == {}
    assert recipe_for(tmp_path / "none", {"columns": {}}) == {}


def test_flags_of_toxic_comments_are_the_labels_in_the_file(tmp_path: Path) -> None:
    names = ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
    rows = [("0000997932d777bf", 'Why, "so"?\n\nD\'aww!', []), ("0002bcb3da6cb337", "BAD!", ["obscene", "toxic"])]
    text = ",".join(f'"{name}"' for name in ("id", "comment_text", *names)) + "\r\n"
    for number, comment, labels in rows:
        quoted = comment.replace('"', '""')
        text += f'"{number}","{quoted}",' + ",".join(str(int(name in labels)) for name in names) + "\r\n"
    path = put(tmp_path / "train.csv", text)
    found = recipe_for(path, {"columns": {"text": "comment_text"}})
    assert found == {"multilabel": True, "data.columns.label": names}
    examples = made(tmp_path, path, columns={"text": "comment_text", "label": names, "id": "id"})
    assert labels_in(examples) == [labels for _, _, labels in rows]
    assert pq.read_table(examples / "train.parquet")["first"].to_pylist() == ['Why, "so"? D\'aww!', "BAD!"]


def test_columns_named_on_the_command_line_are_labels(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "words,new,bad,when\na,0,1,0\n")
    assert recipe_for(path, {"columns": {"text": "words", "label": ["new", "bad"]}}) == {"multilabel": True}
    found = recipe_for(path, {"columns": {"text": "words", "id": "when"}})
    assert found == {"multilabel": True, "data.columns.label": ["new", "bad"]}
