"""Texts with a label, several labels or a value in every form; what may mean something else is refused, with the
options that read it."""

import json
import re
import subprocess

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.downstream.texts.checks import TextsData
from tasks.downstream.texts.examples import recipe_for
from tasks.downstream.texts.labels import LabelReader
from tasks.downstream.texts.params import ClassificationDataParams
from tasks.downstream.texts.task_table import text_task
from tasks.records.interpretation import read_reading
from tasks.records.labels import read_parquet_labels
from tasks.stage.errors import InputError
from tasks.validation.validators import LimitValidator
from tests.places import SHARED
from tests.tasks.downstream.texts.classification_checkout import part, write_csv
from tests.tasks.validation.validation_data import validate

EDGES = SHARED / "data" / "cases" / "edges"
needs_edges = pytest.mark.skipif(not EDGES.is_dir(), reason="needs the inputs in ../shared/data/cases/edges")
SEVERAL, VALUE = {"multilabel": True}, {"regression": True}
TWO = [("good one", "good"), ("bad one", "bad")]


def put(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def lines_of(rows, name="labels"):
    return "".join(json.dumps({"text": text, name: label}, ensure_ascii=False) + "\n" for text, label in rows)


def labelled(labels):
    return lines_of([(f"text {number}", label) for number, label in enumerate(labels)], "label")


def paths(train, dev=None):
    return {"train_path": str(train), "dev_path": str(dev or train)}


def made(folder, train, dev=None, data=None, **form):
    """The folder of examples of these files, checked before the run and validated."""
    data = {**paths(train, dev), **(data or {})}
    task, examples = part("reader", data, **form), folder / "examples"
    task.check_files()
    make_examples(task, examples)
    verdict = validate(TextsData(part("entry", {"min_examples": 1, **data}, **form), examples), LimitValidator())
    assert verdict["valid"], verdict
    return examples


def labels_in(examples, split="train"):
    """Names of the class or the classes, or the value, of each example."""
    path = examples / f"{split}.parquet"
    found = pq.read_table(path)["label"].to_pylist()
    if isinstance(found[0], float):
        return [round(value, 2) for value in found]
    names = [one for some in read_parquet_labels(path) for one in some]
    return [sorted(names[n] for n in one) if isinstance(one, list) else names[one] for one in found]


def rows_in(examples, split="train"):
    table = pq.read_table(examples / f"{split}.parquet")
    return list(zip(table["first"].to_pylist(), table["second"].to_pylist(), labels_in(examples, split), strict=True))


FORMS = {
    "b.csv": "id;Text;Label\n7;good  one;good\n8;bad one;bad\n",
    "b.json": json.dumps([{"text": text, "label": label} for text, label in TWO]),
    "c.json": "".join(json.dumps({"Review": text, "Target ": label}) + "\n" for text, label in TWO),
    "a.csv": 'text,label\n"good  one",good\nbad one,bad\n',
    "a.tsv": "sentence\tid\tclass\ngood one\t7\tgood\nbad one\t8\tbad\n",
    "a.jsonl": "".join(json.dumps({"review": text, "target": label}) + "\n" for text, label in TWO),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read_by_its_ending_and_columns_are_found_by_their_usual_names(tmp_path, name):
    examples = made(tmp_path, put(tmp_path / name, FORMS[name]))
    assert rows_in(examples) == [(text, None, label) for text, label in TWO]
    if name == "a.tsv":
        task = part("scores", {"train_path": "x"})
        assert task.names(task.read_examples(examples / "dev.parquet")) == ["7", "8"]


def test_a_folder_of_parts_is_read_in_order_beside_json_that_says_something_of_them(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, (text, label) in enumerate(TWO):
        pq.write_table(pa.table({"text": [text], "label": [label]}), parts / f"part-{number}.parquet")
    put(parts / "dataset_info.json", FORMS["b.json"])
    assert [text for text, *_ in rows_in(made(tmp_path, parts))] == ["good one", "bad one"]
    put(parts / "more.csv", "text,label\na,b\n")
    with pytest.raises(InputError, match=r"\.csv, \.parquet in one folder"):
        made(tmp_path, parts)
    for part_file in (*parts.glob("*.parquet"), parts / "more.csv"):
        part_file.unlink()
    assert len(rows_in(made(tmp_path, parts))) == 2, "alone it is the data"


def test_names_of_classes_come_with_parquet_of_datasets_and_from_the_hub(tmp_path):
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


def test_the_separator_can_be_stated_and_what_was_found_is_said(tmp_path):
    train = put(tmp_path / "a.csv", "Text;label\na,b;x\nb;y\n")
    examples = made(tmp_path, train)
    assert rows_in(examples)[0] == ("a,b", None, "x")
    train_line, labels, dev = read_reading(examples)["described"]
    assert train_line.endswith("separated by semicolons; text is 'Text' (by name), label is 'label' (by name)")
    assert "labels are 2 names (x, y)" in labels
    assert dev == "dev: read like train"
    bars = put(tmp_path / "b.csv", "text|label\na|x\nb|y\n")
    assert rows_in(made(tmp_path, bars, data={"separator": "pipe"}))[0] == ("a", None, "x")
    with pytest.raises(InputError, match=r"no column 'text'"):
        made(tmp_path, train, data={"separator": "comma"})


ROWS = "text,label\n" + "one thing,ab\nanother thing,cd\n" * 3
SWALLOWED = '"It was good.,ab\nIt was great.,ab\nGo and see it.",cd\n'
QUOTED = {
    "read as rows": (ROWS + SWALLOWED, {"quoting": "literal"}, 9),
    "read as a cell": (ROWS + SWALLOWED, {"quoting": "enclosing"}, 7),
    "lines of a text": (ROWS + '"It was good, all\nof it, really\nAnd, great.",ab\n', {}, 7),
    "blanks before quotes": ('label, text\nab, "one, two"\ncd, "three"\n', {}, 2),
}


@pytest.mark.parametrize("name", QUOTED)
def test_lines_in_quotes_are_a_text_or_rows_as_stated(tmp_path, name):
    text, how, found = QUOTED[name]
    make_examples(part("reader", {**paths(put(tmp_path / "a.csv", text)), **how}), tmp_path / "examples")
    texts = pq.read_table(tmp_path / "examples" / "train.parquet")["first"].to_pylist()
    assert len(texts) == found
    assert "quoting" in how or not any('"' in one for one in texts)


@pytest.mark.parametrize(
    ("header", "columns", "found"),
    [
        ("premise,hypothesis,label", {}, "abx"),
        ("premise,hypothesis,label", {"text": "hypothesis", "text_pair": "premise"}, "bax"),
        ("premise,hypothesis,label", {"text": "hypothesis"}, "b x"),
        ("question,answer,label", {}, "'question' alone, or about both 'question' and 'answer'. Set .*--column"),
        ("question,answer,label", {"text": "question"}, "a x"),
        ("question,answer,label", {"text_pair": "answer"}, "abx"),
        ("text,Text2,label", {}, "'text' alone, or about both 'text' and 'Text2'"),
        ("review,Comment,label", {}, "'review' alone, or about both 'review' and 'Comment'"),
        ("text,class,category", {}, "the label may be 'class' or 'category'. Set .*--column label=NAME"),
        ("text,class,category", {"label": "category"}, "a x"),
        ("text,score,mood,Unnamed: 0", {}, "the label may be 'score' or 'mood'"),
        ("text,score,Unnamed: 0", {}, "a b"),
        ("text,class,mood", {}, "a b"),
        ("text,label,category", {}, "a b"),
    ],
)
def test_of_two_columns_that_may_be_meant_one_must_be_named(tmp_path, header, columns, found):
    path, data = put(tmp_path / "a.csv", f"{header}\na,b,x,u\nc,d,y,v\n"), {"columns": columns}
    if header.count(",") == 2:
        put(path, f"{header}\na,b,x\nc,d,y\n")
    if len(found) > 3:
        with pytest.raises(InputError, match=found):
            made(tmp_path, path, data=data)
        return
    first, second, label = found
    assert rows_in(made(tmp_path, path, data=data))[0] == (first, second.strip() or None, label)


def test_one_split_with_pairs_and_one_with_single_texts_are_refused(tmp_path):
    pairs = put(tmp_path / "a.csv", "premise,hypothesis,label\na,b,x\nc,d,y\n")
    with pytest.raises(InputError, match="one split has pairs of texts"):
        made(tmp_path, pairs, put(tmp_path / "b.csv", "text,label\na,x\nc,y\n"))


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "D", "a"], ("D", "a", "b")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_classes_are_those_of_train_in_order(tmp_path, labels, order):
    path = write_csv(tmp_path / "a.csv", ["text", "label"], [(f"text {one}", one) for one in labels])
    assert read_parquet_labels(made(tmp_path, path) / "train.parquet") == (order, ())


CSV, JSONL = "text,label\na,{}\nb,{}\n", '{{"text": "a", "label": {}}}\n{{"text": "b", "label": {}}}\n'


@pytest.mark.parametrize(
    ("train", "dev", "classes"),
    [
        ((CSV, "0.0", "1.0"), (CSV, "0", "1"), ("0", "1")),
        ((CSV, "-1.0", "+1.0"), (JSONL, "-1", "1"), ("-1", "1")),
        ((JSONL, "true", "false"), (CSV, "TRUE", "False"), ("false", "true")),
        ((CSV, "True", "False"), (JSONL, "true", "false"), ("False", "True")),
        ((CSV, "v1.5", "2.0"), (CSV, "v1.5", "2"), ("2", "v1.5")),
        ((CSV, "007", "7"), (CSV, "7", "007"), ("007", "7")),
        ((CSV, "0.0", "1.0"), [0, 1], ("0", "1")),
        ((CSV, "0.0", "1.0"), [0.0, 1.0], ("0", "1")),
    ],
)
def test_numbers_and_truths_are_the_same_in_every_form(tmp_path, train, dev, classes):
    files = []
    for split, content in (("train", train), ("dev", dev)):
        if isinstance(content, list):
            files.append(tmp_path / "dev.parquet")
            pq.write_table(pa.table({"text": ["a", "b"], "label": content}), files[-1])
        else:
            form, *labels = content
            files.append(put(tmp_path / f"{split}.{'csv' if form == CSV else 'jsonl'}", form.format(*labels)))
    folder = made(tmp_path, *files)
    assert read_parquet_labels(folder / "train.parquet") == read_parquet_labels(folder / "dev.parquet") == (classes, ())
    assert set(labels_in(folder, "dev")) == set(classes)


@pytest.mark.parametrize(("spelled", "other"), [("Good", "good."), ("yes", "True"), ("1", "YES")])
def test_dev_labels_of_other_spelling_are_refused_or_folded(tmp_path, spelled, other):
    train = put(tmp_path / "a.jsonl", labelled([spelled, "bad", spelled]))
    dev = put(tmp_path / "b.jsonl", labelled([other, "bad"]))
    with pytest.raises(InputError, match=rf"dev_path: dev has {other}, training has {spelled}: .* only in case"):
        part("reader", paths(train, dev)).check_files()
    examples = made(tmp_path, train, dev, data={"similar_labels": "fold"})
    assert read_parquet_labels(examples / "dev.parquet") == (tuple(sorted([spelled, "bad"])), ())
    assert labels_in(examples, "dev") == [spelled, "bad"]


READ = {
    "names of numbers": ([0, 1, 1], {"labels": ["bad", "good"]}, ["bad", "good", "good"]),
    "numbers that are names": ([1, 2, 1], {"labels": ["2", "1"]}, ["1", "2", "1"]),
    "sentiments": ([-1, 0, 1], {}, ["-1", "0", "1"]),
    "missing": ([0, 1, 2, -1, None], {"labels": ["0", "1", "2"], "missing_labels": "drop"}, ["0", "1", "2"]),
    "none in lower case": (["none", "racism"], {}, ["none", "racism"]),
    "versions among names": (["2.7", "other"], {}, ["2.7", "other"]),
    "a joiner": (["\u0645\u06cc\u200c\u0622\u06cc\u062f", "b"], {}, ["\u0645\u06cc\u200c\u0622\u06cc\u062f", "b"]),
    "objects as names": (['{"a": 1}', "b"], {"label_form": "names"}, ['{"a": 1}', "b"]),
    "braces": (["{a}", "b"], {}, ["{a}", "b"]),
    "many classes in short dev files": ([f"t{n % 12}" for n in range(24)], {}, [f"t{n % 12}" for n in range(24)]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_labels_of_one_meaning_are_the_labels_in_the_file(tmp_path, name):
    labels, data, names = READ[name]
    assert labels_in(made(tmp_path, put(tmp_path / "a.jsonl", labelled(labels)), data=data)) == names


TAGGED = [("a", ["new", "bad"]), ("b", []), ("c", ["bad"]), ("d", ["new"])]
FLAGS = "text,new,bad\n" + "".join(f"{text},{int('new' in one)},{int('bad' in one)}\n" for text, one in TAGGED)
BOTH = {"columns": {"label": ["new", "bad"]}}
FORMS_OF_SEVERAL = {
    "lists": ("a.jsonl", lines_of(TAGGED), {}),
    "lists as JSON": ("a.csv", "text;label\n" + "".join(f"{t};{json.dumps(one)}\n" for t, one in TAGGED), {}),
    "a separator": ("a.csv", "text,label\n" + "".join(f"{t},{' | '.join(one)}\n" for t, one in TAGGED),
                    {"label_separator": "pipe"}),
    "numpy": ("a.csv", "text;label\n" + "".join(f"{t};[{'bad' in one:d}. {'new' in one:d}.]\n" for t, one in TAGGED),
              {"labels": ["bad", "new"]}),
    "Python": ("a.csv", "text;label\n" + "".join(f"{t};{one}\n" for t, one in TAGGED), {}),
    "columns": ("a.csv", FLAGS, BOTH),
    "columns of truths": ("a.jsonl", "".join(json.dumps({"text": t, "new": "new" in one, "bad": 1.0 * ("bad" in one)})
                          + "\n" for t, one in TAGGED), BOTH),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS_OF_SEVERAL)
def test_each_form_has_the_same_labels(tmp_path, name):
    file, text, data = FORMS_OF_SEVERAL[name]
    examples = made(tmp_path, put(tmp_path / file, text), data=data, **SEVERAL)
    assert labels_in(examples) == [sorted(labels) for _, labels in TAGGED]
    assert read_parquet_labels(examples / "train.parquet") == (("bad", "new"), ())
    assert read_reading(examples)["numbers"]["train examples without a label"] == 1


def test_what_is_repeated_and_what_dev_alone_has_are_counted(tmp_path):
    train = put(tmp_path / "a.jsonl", lines_of([*TAGGED, ("e", ["bad", "1", "1.0"])]))
    dev = put(tmp_path / "b.jsonl", lines_of([("x", ["odd", "new"]), ("y", ["LABEL_1"]), ("z", [])]))
    examples = made(tmp_path, train, dev, **SEVERAL)
    assert labels_in(examples)[-1] == ["1", "bad"]
    assert labels_in(examples, "dev") == [["new", "odd"], ["1"], []]
    assert read_parquet_labels(examples / "dev.parquet") == (("1", "bad", "new"), ("odd",))
    numbers = read_reading(examples)["numbers"]
    assert numbers["dev examples with labels not in train"] == 1
    assert numbers["train examples that repeat a label"] == 1


DETECTED = {
    FORMS_OF_SEVERAL["lists"][1]: SEVERAL,
    FORMS_OF_SEVERAL["lists as JSON"][1]: SEVERAL,
    FLAGS: {**SEVERAL, "data.columns.label": ["new", "bad"]},
    FORMS_OF_SEVERAL["a separator"][1]: {},
    "text,label\na,new\nb,bad\n": {},
    "text,label,new,bad\na,x,0,1\nb,y,1,0\n": {},
    "text,new,bad\na,0,1\nb,1,2\n": {},
    "text,new,bad,when\na,0,1,May\n": {},
    "words,new,bad\na,0,1\n": {},
    "": {},
}


@pytest.mark.parametrize("text", DETECTED)
def test_several_labels_are_detected_where_nothing_else_can_be_meant(tmp_path, text):
    path = put(tmp_path / f"a.{'jsonl' if text.startswith('{') else 'csv'}", text)
    assert recipe_for(path, {"columns": {}}) == DETECTED[text]
    assert recipe_for(path, {"columns": {}, "regression": True}) == {}
    assert recipe_for(tmp_path / "none", {"columns": {}}) == {}
    path = put(tmp_path / "b.csv", "words,new,bad,when\na,0,1,0\n")
    assert recipe_for(path, {"columns": {"text": "words", "label": ["new", "bad"]}}) == SEVERAL
    several = {**SEVERAL, "data.columns.label": ["new", "bad"]}
    assert recipe_for(path, {"columns": {"text": "words", "id": "when"}}) == several


@needs_edges
def test_flags_of_a_file_to_evaluate_are_of_the_labels_of_the_model():
    names = ("a", "b", "c")
    reader = LabelReader(text_task({"regression": False, "multilabel": True}), ClassificationDataParams(), names)
    rows = [json.loads(line)["labels"] for line in (EDGES / "13-multi-hot-evaluate.jsonl").open()]
    wanted = [[name for name, flag in zip(names, row, strict=True) if flag == 1.0] for row in rows]
    assert [reader.parse(row, "line 1") for row in rows] == wanted


VALUES = {
    "dots that group": (["975", "1.213", "1.030"], "decimal-comma", [975, 1213, 1030]),
    "dots that are decimal": (["4", "3.667"], "decimal-point", [4, 3.67]),
    "decimal commas": (["361,19", "1.477,42", "5"], "decimal-comma", [361.19, 1477.42, 5]),
    "dots that may group": (["975", "1.213"], "auto", r"as 1.213, .*decimal-comma.*decimal-point.*: line 3"),
    "commas": (["1.5", "361,19"], "auto", r"a comma: --label-form decimal-comma .*: line 3 \('361,19'\)"),
    "no dot groups": (["4", "3.667", "0.333"], "auto", [4, 3.67, 0.33]),
    "stand-ins": (["1", "999", "3.5", "999"], "auto", r"far from all others, .*: line 3 \('999'\)"),
    "those that are near": (["0", "-1", "-1", "5"], "auto", [0, -1, -1, 5]),
    "above a thousand": (["4000", "3.667"], "auto", [4000, 3.67]),
    "exponents": (["1.5", "-2e1"], "auto", [1.5, -20]),
    "a word": (["1.5", "high"], "auto", "not a finite number: line 3"),
    "no end": (["1.5", "inf"], "auto", "not a finite number: line 3"),
    "nothing": (["1.5", ""], "auto", "a missing value: line 3"),
}


def values_file(path, cells):
    return put(path, "text;label\n" + "".join(f"{path.stem} {number};{cell}\n" for number, cell in enumerate(cells)))


@pytest.mark.parametrize("name", VALUES)
def test_a_dot_or_a_comma_of_two_meanings_is_refused_and_each_option_reads_it(tmp_path, name):
    cells, form, found = VALUES[name]
    path, data = values_file(tmp_path / "a.csv", cells), {"label_form": form}
    if isinstance(found, list):
        assert labels_in(made(tmp_path, path, data=data, **VALUE)) == found
        return
    with pytest.raises(InputError, match=found):
        made(tmp_path, path, data=data, **VALUE)


def test_dots_of_dev_have_the_meaning_of_those_of_train(tmp_path):
    train = values_file(tmp_path / "train.csv", ["4", "3.5", "2.25"])
    dev = values_file(tmp_path / "dev.csv", ["975", "1.213"])
    make_examples(part("reader", paths(train, dev), **VALUE), tmp_path / "examples")
    assert labels_in(tmp_path / "examples", "dev") == [975, 1.21]
    with pytest.raises(InputError, match="a value such as 1.213"):
        part("reader", paths(dev), **VALUE).check_files()


ONE_CLASS = {
    "an empty text": ("a.csv", "text,label\n ,good\nx,bad\n", r"an empty text in the column 'text': line 2"),
    "no label": ("a.csv", "text,label\nx,\ny,bad\n", r"a missing label: --missing-labels drop .*: line 2"),
    "no number": ("a.jsonl", '{"text": "x", "label": 0.5}\n', "with decimals, .* as a class: --regression .*: line 1"),
    "a list": ("a.jsonl", '{"text": "x", "label": ["y"]}\n', "a list of labels .*multilabel: true.*: line 1"),
    "no text": ("a.jsonl", '{"text": null, "label": "y"}\n', "no text in the column 'text': line 1"),
    "half a pair": ("a.jsonl", '{"text": "\\ud800", "label": "y"}\n', "half a surrogate pair.*: line 1"),
    "a long label": ("a.jsonl", json.dumps({"text": "x", "label": "y" * 201}), "more than 200 characters"),
    "one class": ("a.csv", "text,label\nx,good\ny,good\n", r"1 class\(es\) \(good\), 2 to 1,000 are required"),
    "columns": ("a.csv", "txt,lable\nx,y\n", "columns are txt, lable; did you mean txt for text, lable for label"),
    "labels as texts": ("a.csv", "text,label\ngood,good\nbad,bad\n", "text of 2 of 2 examples is its label"),
    "numbers as texts": ("a.csv", "text,label\n1,good\n2,bad\n", "is a number. Set .*--column text=NAME"),
    "fastText": ("a.csv", "text,label\n__label__a x,a\n__label__b y,b\n", "a line of fastText with its label"),
    "splits": ("a.csv", "text,label,set\nx,y,validation\nz,y,TRAIN\n",
               r"column 'set' says which .*\('TRAIN' in line 3\) .*\('validation' in line 2\)"),
    "missing texts": ("a.csv", "text,label\nx,a\nNone,b\nN/A,b\n", "2 of 3 .*line 3.*--missing-texts drop"),
    "ending": ("a.xlsx", "x", r"\(\.csv, \.tsv, \.jsonl, \.json, \.parquet\).*found a\.xlsx"),
    "rows inside of quotes": ("a.csv", ROWS + SWALLOWED, r"look like rows: --quoting literal .*: line 8 \('It was"),
    "a header again": ("a.csv", ROWS + ROWS, r"a.csv, line 8 repeats the header"),
}  # fmt: skip
SEVERAL_LABELS = {
    "a missing list": (lines_of([*TAGGED, ("e", None)]), {}, r"missing labels \(\[\] means .*: line 5"),
    "a text for a list": (lines_of([*TAGGED, ("e", "new")]), {}, r"not a list \(--label-separator.*: line 5 \('new'\)"),
    "an empty name": (lines_of([("e", ["new", " "]), *TAGGED]), {}, "a missing label: .*: line 1"),
    "a separator too many": ("text,label\na,new|\n", {"label_separator": "|"}, "a missing label: .*: line 2"),
    "a list with a separator": (lines_of(TAGGED), {"label_separator": "pipe"}, "not a text, as label_separator is '|'"),
    "a third value": (FLAGS + "e,2,0\nf,,1\n", BOTH, r"not 0 or 1 in the column 'new': line 6, line 7"),
    "a column that is not there": (FLAGS, {"columns": {"label": ["new", "bat"]}}, "did you mean bad"),
    "one label": (lines_of([("a", ["new"]), ("b", [])]), {}, r"1 class\(es\) \(new\), 2 to 1,000 are required"),
    "the same labels": ("".join(lines_of([(text, ["new", "bad"])]) for text in "ab"), {}, "all dev examples have"),
    "a flag too many": (labelled([[0, 1], [1, 0, 1]]), {"labels": ["a", "b"]}, "0 or 1, for each of the 2 labels a, b"),
}  # fmt: skip
OTHER_MEANINGS = {
    "almost as many classes as rows": ([f"t{n}" for n in range(12)] + ["t0"], {}, "almost as many classes as examples"),
    "-1 next to three classes": ([0, 1, 2, -1] * 3, {}, r"-1 next to 0, 1, 2 .*--labels 0,1,2.*: line 4 \('-1'\)"),
    "SNLI's sign": (["neutral", "-", "contradiction"], {}, r"stand for a missing one.*: line 2 \('-'\)"),
    "normal forms": (["fatigu\u00e9", "fatigue\u0301", "b"], {}, "only in case, blanks"),
    "lists with a separator": (["good", "cheap", "good,cheap"], {}, r"another as a part: --multilabel.*: line 3 "),
    "a blank of no width": (["pos", "pos\u200b", "neg"], {}, "only in case, blanks"),
    "digits of two scripts": (["1", "\u0661", "2"], {}, "only in case, blanks"),
    "stops": (["good", "good.", "bad"], {}, r"a stop at the end .*: line 1 \('good'\), line 2 \('good\.'\)"),
    "truths": ([True, "yes", 1, "no"], {}, r"are yes, true and 1: .*: line 1 \('true'\), line 2 \('yes'\), line 3"),
    "decimal commas": (["5,0", "2,5", "5,0"], {}, r"a number with decimals, .* as a class.*: line 2 \('2,5'\)"),
    "percentages": (["25%", "50 %", "25%"], {}, r"a percent sign as a class: --regression .*: line 1 \('25%'\)"),
    "an unknown name": (["a", "b", "odd"], {"labels": ["a", "b"]}, r"not one of --labels .*: line 3 \('odd'\)"),
    "a line break": (["a\u2028b", "c"], {}, "cannot be shown on one line: line 1"),
    "an object": (["Positive", '{"choices": ["Negative", "Sarcastic"]}'], {}, "an object in a text.*: line 2 "),
}  # fmt: skip
REFUSED = {
    **{name: (file, text, {}, {}, said) for name, (file, text, said) in ONE_CLASS.items()},
    **{name: (f"a.{'jsonl' if text.startswith('{') else 'csv'}", text, data, SEVERAL, said)
       for name, (text, data, said) in SEVERAL_LABELS.items()},
    **{name: ("a.jsonl", labelled(labels), data, {}, said) for name, (labels, data, said) in OTHER_MEANINGS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_or_may_mean_something_else_is_refused_before_the_run(tmp_path, name):
    file, text, data, form, message = REFUSED[name]
    task = part("reader", {**paths(put(tmp_path / file, text)), **data}, **form)
    for look in (task.check_files, lambda: make_examples(task, tmp_path / "examples")):
        with pytest.raises(InputError, match=message):
            look()
    assert not (tmp_path / "examples").exists()


ALL = ["dirty", "kind", "slow"]
CASES = {
    "flags": ("01", "--labels A,B.*: line 1 ", SEVERAL, {"labels": [ALL[2], *ALL[:2]]}, SEVERAL, [["slow"], [], ALL]),
    "numbers": ("01", "--label-form lists ", SEVERAL, {"label_form": "lists"}, SEVERAL, [["0", "1"], ["0"], ["1"]]),
    "Python lists": ("02", r"--multilabel .*: line 2 \(.*slow", {}, {}, SEVERAL, [["slow"], [], ALL]),
    "decimals": ("03", "--regression .*: line 2 ", {}, {}, VALUE, [4.22, 0.67, 4.78]),
    "ClassLabel -1": ("04", r"labels drop .*: row \d+", {}, {"missing_labels": "drop"}, {}, ["no", "yes", "no"]),
    "nan": ("05", r"drop .*: line 5 \('nan'\)", {}, {"missing_labels": "drop"}, {}, ["0", "1", "0", "0", "1"]),
    "nan as a name": ("05", "--missing-labels keep ", {}, {"missing_labels": "keep"}, {}, ["0", "1", "0", "nan", "0"]),
    "case": ("06", r"line 2 \('good'\), line 4 ", {}, {"similar_labels": "fold"}, {}, ["Good", "Bad", "Good", "Bad"]),
    "case kept": ("06", "--similar-labels keep ", {}, {"similar_labels": "keep"}, {}, ["good", "Bad", "Good", "bad"]),
}  # fmt: skip


@needs_edges
@pytest.mark.parametrize("name", CASES)
def test_a_label_of_two_meanings_is_refused_and_each_option_reads_it(tmp_path, name):
    case, message, found, data, options, labels = CASES[name]
    files = [next(EDGES.glob(f"{case}-*-{split}.*")) for split in ("train", "dev")]
    with pytest.raises(InputError, match=message):
        part("reader", paths(*files), **found).check_files()
    assert labels_in(made(tmp_path, *files, data=data, **options))[: len(labels)] == labels


@pytest.mark.parametrize("hash", ["_task_hash", "_input_hash"])
def test_what_an_annotator_did_not_accept_is_no_example(tmp_path, hash):
    """Prodigy writes the label that it showed, whatever the answer; the answers may be the labels."""
    row = '{{"text": "text {0}", "label": "ab", "HASH": {0}, "answer": "{1}"}}\n'.replace("HASH", hash)
    rows = [row.format(number, answer) for number, answer in enumerate(["accept", "reject", "accept", "ignore"])]
    path = put(tmp_path / "a.jsonl", "".join(rows))
    with pytest.raises(InputError, match=r"not accept .*: line 2 \('reject'\), line 4 \('ignore'\)") as error:
        part("reader", paths(path)).check_files()
    answers = part("reader", {**paths(path), "columns": {"label": "answer"}}).check_files().labels
    assert answers == ("accept", "ignore", "reject")
    [pattern] = re.findall(r"grep '(.*?)' FILE", str(error.value))
    kept = subprocess.run(["grep", pattern, path], capture_output=True, text=True, check=True).stdout
    assert kept == rows[0] + rows[2]
    part("reader", paths(put(path, kept.replace('"ab"', '"a"', 1)))).check_files()
