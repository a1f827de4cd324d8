"""Labels that may mean something else are refused with both readings, and the options that the message names work."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.downstream.texts.checks import TextsData
from tasks.downstream.texts.labels import LabelReader
from tasks.downstream.texts.params import ClassificationDataParams
from tasks.downstream.texts.task_table import text_task
from tasks.records.interpretation import read_reading
from tasks.records.label_forms import read_list
from tasks.records.labels import read_parquet_labels
from tasks.stage.errors import InputError
from tasks.validation.validators import LimitValidator
from tests.places import SHARED
from tests.tasks.downstream.texts.classification_checkout import part
from tests.tasks.validation.validation_data import validate

EDGES = SHARED / "data" / "cases" / "edges"
SEVERAL = {"multilabel": True}
NAMES = {"labels": ["slow", "dirty", "kind"]}

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], list[Any]]] = {
    "flags": ("01-multi-hot-label-vectors", r"a list of 3 numbers that are 0 or 1: --labels A,B,\.\.\. .*: line 1 ",
              SEVERAL, NAMES, SEVERAL, [["slow"], [], ["dirty", "kind", "slow"]]),
    "flags as numbers": ("01-multi-hot-label-vectors", "--label-form lists .* reads numbers of labels",
                         SEVERAL, {"label_form": "lists"}, SEVERAL, [["0", "1"], ["0"], ["1"]]),
    "Python lists": ("02-python-list-literals", r"a list in a text: --multilabel .*: line 2 \(.*slow",
                     {}, {}, SEVERAL, [["slow"], [], ["dirty", "kind", "slow"]]),
    "decimals": ("03-decimal-values-without-regression", "a number with decimals, .*: --regression .*: line 2 ",
                 {}, {}, {"regression": True}, [4.22, 0.67, 4.78]),
    "decimals as names": ("03-decimal-values-without-regression", "--label-form names .* makes each a class",
                          {}, {"label_form": "names"}, {}, ["4.22", "0.67", "4.78"]),
    "ClassLabel -1": ("04-missing-classlabel-minus-1", r"a missing label: --missing-labels drop .*: row \d+",
                      {}, {"missing_labels": "drop"}, {}, ["no", "yes", "no"]),
    "nan": ("05-nan-text-label", r"may stand for a missing one: --missing-labels drop .*: line 5 \('nan'\)",
            {}, {"missing_labels": "drop"}, {}, ["0", "1", "0", "0", "1"]),
    "nan as a name": ("05-nan-text-label", "--missing-labels keep makes it a class",
                      {}, {"missing_labels": "keep"}, {}, ["0", "1", "0", "nan", "0"]),
    "case": ("06-label-spelling-case", r"only in case, blanks.*: line 2 \('good'\), line 4 \('Good'\)",
             {}, {"similar_labels": "fold"}, {}, ["Good", "Bad", "Good", "Bad", "Good"]),
    "case kept": ("06-label-spelling-case", "--similar-labels keep leaves them apart",
                  {}, {"similar_labels": "keep"}, {}, ["good", "Bad", "Good", "bad", "Good"]),
}  # fmt: skip


def read(folder: Path, data: dict[str, Any], **more: Any) -> list[Any]:
    """Labels of the training examples by name, checked before the run, made by the stage and validated."""
    task = part("reader", data, **more)
    task.check_files()
    make_examples(task, folder)
    verdict = validate(TextsData(part("entry", {"min_examples": 1, **data}, **more), folder), LimitValidator())
    assert verdict["valid"], verdict
    table = pq.read_table(folder / "train.parquet")["label"].to_pylist()
    if more.get("regression"):
        return [round(value, 2) for value in table]
    names = [name for some in read_parquet_labels(folder / "train.parquet") for name in some]
    return [sorted(names[n] for n in one) if isinstance(one, list) else names[one] for one in table]


@pytest.mark.skipif(not EDGES.is_dir(), reason="needs the inputs in ../shared/data/cases/edges")
@pytest.mark.parametrize("name", CASES)
def test_a_label_of_two_meanings_is_refused_and_each_option_reads_it(tmp_path: Path, name: str) -> None:
    case, message, found, data, options, labels = CASES[name]
    paths = {f"{split}_path": str(next(EDGES.glob(f"{case}-{split}.*"))) for split in ("train", "dev")}
    with pytest.raises(InputError, match=message):
        part("reader", paths, **found).check_files()
    assert read(tmp_path / "examples", {**paths, **data}, **options)[: len(labels)] == labels


FORMS = {
    '["a", "b"]': ["a", "b"],
    "[]": [],
    "['a', \"it's\"]": ["a", "it's"],
    "['a' 'b']": ["a", "b"],
    "[1. 0. 1.]": [1, 0, 1],
    "[1, 0]": [1, 0],
    "[ 0  1 ]": [0, 1],
    "[True, False]": [True, False],
    "['a\\x41']": None,
    "[other]": None,
    "['a'": None,
    "['a''b']": None,
    "(1)": None,
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_lists_of_json_python_and_numpy_are_recognised(text: str) -> None:
    assert read_list(text) == FORMS[text]


def labels_file(path: Path, labels: list[Any]) -> str:
    rows = ({"text": f"text {number}", "label": label} for number, label in enumerate(labels))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "almost as many classes as rows": ([f"t{n}" for n in range(12)] + ["t0"], {}, "almost as many classes as examples"),
    "-1 next to three classes": ([0, 1, 2, -1] * 3, {}, r"-1 next to 0, 1, 2 .*--labels 0,1,2.*: line 4 \('-1'\)"),
    "SNLI's sign": (["neutral", "-", "contradiction"], {}, r"stand for a missing one.*: line 2 \('-'\)"),
    "normal forms": (["fatigu\u00e9", "fatigue\u0301", "b"], {}, "only in case, blanks"),
    "blanks inside": (["very good", "verygood"], {}, "only in case, blanks"),
    "lists with a separator": (["good", "cheap", "good,cheap"], {}, r"another as a part: --multilabel.*: line 3 "),
    "a part that is no label alone": (["good", "bad", "bad; cheap"], {}, r"another as a part: .*: line 3 "),
    "a blank of no width": (["pos", "pos\u200b", "neg"], {}, "only in case, blanks"),
    "digits of two scripts": (["1", "\u0661", "2"], {}, "only in case, blanks"),
    "two minus signs": (["-1", "\u22121", "1"], {}, "only in case, blanks"),
    "stops": (["good", "good.", "bad"], {}, r"a stop at the end .*: line 1 \('good'\), line 2 \('good\.'\)"),
    "truths": ([True, "yes", 1, "no"], {}, r"are yes, true and 1: .*: line 1 \('true'\), line 2 \('yes'\), line 3"),
    "decimal commas": (["5,0", "2,5", "5,0"], {}, r"a number with decimals, .* as a class.*: line 2 \('2,5'\)"),
    "percentages": (["25%", "50 %", "25%"], {}, r"a percent sign as a class: --regression .*: line 1 \('25%'\)"),
    "exponents": (["1e3", "200", "1e3"], {}, r"an exponent or .*: line 1 \('1e3'\)"),
    "an unknown name": (["a", "b", "odd"], {"labels": ["a", "b"]}, r"not one of --labels .*: line 3 \('odd'\)"),
    "a line break": (["a\u2028b", "c"], {}, "cannot be shown on one line: line 1"),
    "an object": (["Positive", '{"choices": ["Negative", "Sarcastic"]}'], {}, "an object in a text.*: line 2 "),
    "a flag too many": ([[0, 1], [1, 0, 1]], {"labels": ["a", "b"]}, "0 or 1, for each of the 2 labels a, b"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_labels_that_may_mean_something_else_are_refused_before_the_run(tmp_path: Path, name: str) -> None:
    labels, data, message = REFUSED[name]
    path = labels_file(tmp_path / "a.jsonl", labels)
    several = any(isinstance(label, list) for label in labels)
    with pytest.raises(InputError, match=message):
        part("reader", {"train_path": path, "dev_path": path, **data}, multilabel=several).check_files()


READ: dict[str, tuple[list[Any], dict[str, Any], list[Any]]] = {
    "names of numbers": ([0, 1, 1], {"labels": ["bad", "good"]}, ["bad", "good", "good"]),
    "numbers that are names": ([1, 2, 1], {"labels": ["2", "1"]}, ["1", "2", "1"]),
    "signs": (["+1", "-1"], {}, ["+1", "-1"]),
    "sentiments": ([-1, 0, 1], {}, ["-1", "0", "1"]),
    "missing": ([0, 1, 2, -1, None], {"labels": ["0", "1", "2"], "missing_labels": "drop"}, ["0", "1", "2"]),
    "none in lower case": (["none", "racism"], {}, ["none", "racism"]),
    "versions among names": (["2.7", "other"], {}, ["2.7", "other"]),
    "codes": (["007", "7"], {}, ["007", "7"]),
    "a joiner": (["\u0645\u06cc\u200c\u0622\u06cc\u062f", "b"], {}, ["\u0645\u06cc\u200c\u0622\u06cc\u062f", "b"]),
    "a blank that does not break": (["a\u00a0b", "c"], {}, ["a\u00a0b", "c"]),
    "objects as names": (['{"a": 1}', "b"], {"label_form": "names"}, ['{"a": 1}', "b"]),
    "braces": (["{a}", "b"], {}, ["{a}", "b"]),
    "many classes in short dev files": ([f"t{n % 12}" for n in range(24)], {}, [f"t{n % 12}" for n in range(24)]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_labels_of_one_meaning_are_the_labels_in_the_file(tmp_path: Path, name: str) -> None:
    labels, data, names = READ[name]
    path = labels_file(tmp_path / "a.jsonl", labels)
    assert read(tmp_path / "examples", {"train_path": path, "dev_path": path, **data}) == names


VALUES: dict[str, tuple[list[str], str, list[float] | str]] = {
    "dots that group": (["975", "1.213", "1.030"], "decimal-comma", [975, 1213, 1030]),
    "dots that are decimal": (["4", "3.667"], "decimal-point", [4, 3.67]),
    "decimal commas": (["361,19", "1.477,42", "5"], "decimal-comma", [361.19, 1477.42, 5]),
    "dots that may group": (
        ["975", "1.213"],
        "auto",
        r"a value such as 1.213, .*decimal-comma.*decimal-point.*: line 3",
    ),
    "commas": (["1.5", "361,19"], "auto", r"a value with a comma: --label-form decimal-comma .*: line 3 \('361,19'\)"),
    "no dot groups": (["4", "3.667", "0.333"], "auto", [4, 3.67, 0.33]),
    "another length": (["4", "3.667", "2.5"], "auto", [4, 3.67, 2.5]),
    "stand-ins": (["1", "999", "3.5", "999"], "auto", r"far from all others, .*: line 3 \('999'\)"),
    "one that is far": (["1", "999", "3.5"], "auto", [1, 999, 3.5]),
    "those that are near": (["0", "-1", "-1", "5"], "auto", [0, -1, -1, 5]),
    "fixed decimals": (["4.000", "3.667"], "auto", [4, 3.67]),
    "above a thousand": (["4000", "3.667"], "auto", [4000, 3.67]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_dot_or_a_comma_of_two_meanings_is_refused_and_each_option_reads_it(tmp_path: Path, name: str) -> None:
    cells, form, found = VALUES[name]
    path = tmp_path / "a.csv"
    path.write_text("text;label\n" + "".join(f"text {number};{cell}\n" for number, cell in enumerate(cells)))
    data = {"train_path": str(path), "dev_path": str(path), "label_form": form}
    if isinstance(found, list):
        assert read(tmp_path / "examples", data, regression=True) == found
        return
    with pytest.raises(InputError, match=found):
        part("reader", data, regression=True).check_files()


def test_dots_of_dev_have_the_meaning_of_those_of_train(tmp_path: Path) -> None:
    paths = {}
    for name, cells in {"train": ["4", "3.5", "2.25"], "dev": ["975", "1.213"]}.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("text;label\n" + "".join(f"{name} {cell};{cell}\n" for cell in cells))
        paths[f"{name}_path"] = str(path)
    make_examples(part("reader", paths, regression=True), tmp_path / "examples")
    assert pq.read_table(tmp_path / "examples" / "dev.parquet")["label"].to_pylist() == pytest.approx([975, 1.213])
    alone = part("reader", {"train_path": paths["dev_path"], "dev_path": paths["dev_path"]}, regression=True)
    with pytest.raises(InputError, match="a value such as 1.213"):
        alone.check_files()


ROWS = "text,label\n" + "one thing,ab\nanother thing,cd\n" * 3
SWALLOWED = '"It was good.,ab\nIt was great.,ab\nGo and see it.",cd\n'
TABLES = {
    "rows inside of quotes": (ROWS + SWALLOWED, {}, r"look like rows: --quoting literal .*: line 8 \('It was"),
    "rows that begin in quotes": ("label,text\n" + 'ab,one\ncd,"It was\nab,great\ncd,Go."\n', {}, "look like rows"),
    "read as rows": (ROWS + SWALLOWED, {"quoting": "literal"}, 9),
    "read as a cell": (ROWS + SWALLOWED, {"quoting": "enclosing"}, 7),
    "lines of a text": (ROWS + '"It was good, all\nof it, really\nAnd, great.",ab\n', {}, 7),
    "a header again": (ROWS + ROWS, {}, r"a.csv, line 8 repeats the header: remove it"),
    "blanks before quotes": ('label, text\nab, "one, two"\ncd, "three"\n', {}, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_rows_in_a_quoted_cell_are_refused_and_lines_of_a_text_are_not(tmp_path: Path, name: str) -> None:
    text, how, found = TABLES[name]
    path = tmp_path / "a.csv"
    path.write_text(text)
    task = part("reader", {"train_path": str(path), "dev_path": str(path), **how})
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            task.check_files()
        return
    make_examples(task, tmp_path / "examples")
    texts = pq.read_table(tmp_path / "examples" / "train.parquet").column(0).to_pylist()
    assert len(texts) == found
    assert "quoting" in how or not any('"' in one for one in texts)


def test_what_an_annotator_did_not_accept_is_no_example(tmp_path: Path) -> None:
    """Prodigy writes the label that it showed, whatever the answer."""
    path = tmp_path / "a.jsonl"
    row = '{{"text": "text {0}", "label": "ab", "_task_hash": {0}, "answer": "{1}"}}\n'
    rows = [row.format(number, answer) for number, answer in enumerate(["accept", "reject", "accept", "ignore"])]
    path.write_text("".join(rows))
    paths = {"train_path": str(path), "dev_path": str(path)}
    said = r"did not accept .*: leave such lines out, as grep (.*) FILE does: line 2 \('reject'\), line 4 \('ignore'\)"
    with pytest.raises(InputError, match=said) as error:
        part("reader", paths).check_files()
    [pattern] = re.findall(r"grep '(.*?)' FILE", str(error.value))
    kept = subprocess.run(["grep", pattern, path], capture_output=True, text=True, check=True).stdout
    assert kept == rows[0] + rows[2]
    path.write_text("".join(rows[::2]).replace('"ab"', '"a"', 1))
    part("reader", paths).check_files()


@pytest.mark.parametrize(("spelled", "other"), [("Good", "good"), ("Good", "good."), ("yes", "True"), ("1", "YES")])
def test_dev_labels_that_are_spelled_otherwise_than_in_train_are_refused_or_folded(
    tmp_path: Path, spelled: str, other: str
) -> None:
    paths = {"train_path": labels_file(tmp_path / "a.jsonl", [spelled, "bad", spelled])}
    paths["dev_path"] = labels_file(tmp_path / "b.jsonl", [other, "bad"])
    said = rf"dev_path: dev has {other}, training has {spelled}: labels that differ only in case"
    with pytest.raises(InputError, match=said):
        part("reader", paths).check_files()
    make_examples(part("reader", {**paths, "similar_labels": "fold"}), tmp_path / "examples")
    dev, names = tmp_path / "examples" / "dev.parquet", sorted([spelled, "bad"])
    assert read_parquet_labels(dev) == (tuple(names), ())
    assert [names[number] for number in pq.read_table(dev)["label"].to_pylist()] == [spelled, "bad"]
    labels = read_reading(tmp_path / "examples")["inputs"]["dev"]["labels"]
    assert labels == f"labels are 2 names ({', '.join(sorted([other, 'bad']))})"


@pytest.mark.skipif(not EDGES.is_dir(), reason="needs the inputs in ../shared/data/cases/edges")
def test_flags_of_a_file_to_evaluate_are_of_the_labels_of_the_model() -> None:
    names = ("a", "b", "c")
    reader = LabelReader(text_task({"regression": False, "multilabel": True}), ClassificationDataParams(), names)
    rows = [json.loads(line)["labels"] for line in (EDGES / "13-multi-hot-evaluate.jsonl").open()]
    assert [reader.parse(row, "line 1") for row in rows] == [
        [name for name, flag in zip(names, row, strict=True) if flag == 1.0] for row in rows
    ]
