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
from tests.tasks.downstream.generated import part
from tests.tasks.validation.validation_data import validate

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
    labels = pq.read_table(path)["label"].to_pylist()
    if isinstance(labels[0], float):
        return [round(value, 2) for value in labels]
    names = [label for group in read_parquet_labels(path) for label in group]
    return [sorted(names[n] for n in label) if isinstance(label, list) else names[label] for label in labels]


def rows_in(examples, split="train"):
    table = pq.read_table(examples / f"{split}.parquet")
    return list(zip(table["first"].to_pylist(), table["second"].to_pylist(), labels_in(examples, split), strict=True))


FORMS = {
    "b.csv": "id;Text;Label\n7;good  one;good\n8;bad one;bad\n",
    "c.json": "".join(json.dumps({"Review": text, "Target ": label}) + "\n" for text, label in TWO),
    "a.tsv": "sentence\tid\tclass\ngood one\t7\tgood\nbad one\t8\tbad\n",
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
    put(parts / "dataset_info.json", json.dumps([{"text": text, "label": label} for text, label in TWO]))
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
    missing = datasets.Dataset.from_dict({"Text": ["a", "b", "c"], "Label": [1, 0, -1]}, features=features)
    missing.to_parquet(str(tmp_path / "missing.parquet"))
    with pytest.raises(InputError, match=r"labels drop .*: row \d+"):
        made(tmp_path, tmp_path / "missing.parquet")
    assert labels_in(made(tmp_path, tmp_path / "missing.parquet", data={"missing_labels": "drop"})) == ["yes", "no"]
    (tmp_path / "hub").mkdir()
    for split in ("train", "validation"):
        data.to_parquet(str(tmp_path / f"hub/{split}.parquet"))
    assert rows_in(made(tmp_path, tmp_path / "hub/train.parquet")) == [("a", None, "yes"), ("b", None, "no")]
    hub = {"source": "hub", "dataset": str(tmp_path / "hub")}
    assert rows_in(made(tmp_path, tmp_path, data=hub), "dev") == [("a", None, "yes"), ("b", None, "no")]
    with pytest.raises(InputError, match=r"no column 'txt'.*\(podium finetune: --column text=NAME\)"):
        made(tmp_path, tmp_path, data={**hub, "columns": {"text": "txt"}})


ROWS = "text,label\n" + "one thing,ab\nanother thing,cd\n" * 3
SWALLOWED = '"It was good.,ab\nIt was great.,ab\nGo and see it.",cd\n'
LINES = '"It was good, all\nof it, really\nAnd, great.",ab\n'


@pytest.mark.parametrize(
    ("text", "data", "count"),
    [
        (ROWS + SWALLOWED, {"quoting": "literal"}, 9),
        (ROWS + SWALLOWED, {"quoting": "enclosing"}, 7),
        (ROWS + LINES, {}, 7),
        ('label, text\nab, "one, two"\ncd, "three"\n', {}, 2),
    ],
)
def test_lines_in_quotes_are_a_text_or_rows(tmp_path, text, data, count):
    make_examples(part("reader", {**paths(put(tmp_path / "a.csv", text)), **data}), tmp_path / "examples")
    texts = pq.read_table(tmp_path / "examples" / "train.parquet")["first"].to_pylist()
    assert len(texts) == count
    assert data or not any('"' in row for row in texts)


@pytest.mark.parametrize(
    ("header", "columns", "expected"),
    [
        ("premise,hypothesis,label", {}, "abx"),
        ("premise,hypothesis,label", {"text": "hypothesis", "text_pair": "premise"}, "bax"),
        ("premise,hypothesis,label", {"text": "hypothesis"}, "b x"),
        ("question,answer,label", {}, "'question' alone, or about both 'question' and 'answer'. Set .*--column"),
        ("question,answer,label", {"text": "question"}, "a x"),
        ("text,Text2,label", {}, "'text' alone, or about both 'text' and 'Text2'"),
        ("text,class,category", {}, "the label may be 'class' or 'category'. Set .*--column label=NAME"),
        ("text,class,category", {"label": "category"}, "a x"),
        ("text,score,mood,Unnamed: 0", {}, "the label may be 'score' or 'mood'"),
        ("text,score,Unnamed: 0", {}, "a b"),
        ("text,label,category", {}, "a b"),
    ],
)
def test_of_two_columns_that_may_be_meant_one_must_be_named(tmp_path, header, columns, expected):
    path, data = put(tmp_path / "a.csv", f"{header}\na,b,x,u\nc,d,y,v\n"), {"columns": columns}
    if header.count(",") == 2:
        put(path, f"{header}\na,b,x\nc,d,y\n")
    if len(expected) > 3:
        with pytest.raises(InputError, match=expected):
            made(tmp_path, path, data=data)
        return
    first, second, label = expected
    assert rows_in(made(tmp_path, path, data=data))[0] == (first, second.strip() or None, label)


def test_one_split_with_pairs_and_one_with_single_texts_are_refused(tmp_path):
    pairs = put(tmp_path / "a.csv", "premise,hypothesis,label\na,b,x\nc,d,y\n")
    with pytest.raises(InputError, match="one split has pairs of texts"):
        made(tmp_path, pairs, put(tmp_path / "b.csv", "text,label\na,x\nc,y\n"))


@pytest.mark.parametrize("order", [("-1", "9", "10"), ("D", "a", "b"), ("10", "9", "x")])
def test_classes_are_those_of_train_in_order(tmp_path, order):
    path = put(tmp_path / "a.csv", "text,label\n" + "".join(f"text {name},{name}\n" for name in order[::-1]))
    assert read_parquet_labels(made(tmp_path, path) / "train.parquet") == (order, ())


CSV, JSONL = "text,label\na,{}\nb,{}\n", '{{"text": "a", "label": {}}}\n{{"text": "b", "label": {}}}\n'


@pytest.mark.parametrize(
    ("train", "dev", "classes"),
    [
        ((CSV, "0.0", "1.0"), (CSV, "0", "1"), ("0", "1")),
        ((CSV, "-1.0", "+1.0"), (JSONL, "-1", "1"), ("-1", "1")),
        ((JSONL, "true", "false"), (CSV, "TRUE", "False"), ("false", "true")),
        ((CSV, "v1.5", "2.0"), (CSV, "v1.5", "2"), ("2", "v1.5")),
        ((CSV, "007", "7"), (CSV, "7", "007"), ("007", "7")),
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


HOT, LISTED = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], ["['slow']", "[]", "['slow', 'dirty']"]
SLOW, SPELLED, TOPICS = [["slow"], [], ["dirty", "slow"]], ["Good", "good", "Bad"], [f"t{n % 12}" for n in range(24)]
JOINED = ["\u0645\u06cc\u200c\u0622\u06cc\u062f", "b"]
COMMA, POINT = {"label_form": "decimal-comma"}, {"label_form": "decimal-point"}
READ = [
    ([0, 1, 1], {}, {"labels": ["bad", "good"]}, ["bad", "good", "good"], None),
    ([1, 2, 1], {}, {"labels": ["2", "1"]}, ["1", "2", "1"], None),
    ([0, 1, 2, -1, None], {}, {"labels": ["0", "1", "2"], "missing_labels": "drop"}, ["0", "1", "2"], "labels drop"),
    (["2.7", "other"], {}, {}, ["2.7", "other"], None),  # versions among names
    (JOINED, {}, {}, JOINED, None),  # with a joiner of no width
    (['{"a": 1}', "b"], {}, {"label_form": "names"}, ['{"a": 1}', "b"], "an object in a text.*: line 1 "),
    (TOPICS, {}, {}, TOPICS, None),  # many classes in short dev files
    (["0", "nan", "1"], {}, {"missing_labels": "drop"}, ["0", "1"], r"drop .*: line 2 \('nan'\)"),
    (["0", "nan", "1"], {}, {"missing_labels": "keep"}, ["0", "nan", "1"], "--missing-labels keep "),
    (SPELLED, {}, {"similar_labels": "fold"}, ["Good", "Good", "Bad"], r"line 1 \('Good'\), line 2 "),
    (SPELLED, {}, {"similar_labels": "keep"}, SPELLED, "--similar-labels keep "),
    (HOT, SEVERAL, {"labels": ["slow", "dirty"]}, SLOW, "--labels A,B.*: line 1 "),
    (HOT, SEVERAL, {"label_form": "lists"}, [["0", "1"], ["0"], ["1"]], "--label-form lists "),
    (LISTED, SEVERAL, {}, SLOW, r"--multilabel .*: line 1 \(.*slow"),
    ([4.22, 0.67], VALUE, {}, [4.22, 0.67], "--regression .*: line 1 "),
    (["975", "1.213", "1.030"], VALUE, COMMA, [975, 1213, 1030], r"as 1.213, .*decimal-comma.*decimal-point.*: line 2"),
    (["4", "3.667"], VALUE, POINT, [4, 3.67], "decimal-point"),
    (["361,19", "1.477,42", "5"], VALUE, COMMA, [361.19, 1477.42, 5], r"a comma: --label-form .*: line 1 \('361,19'\)"),
    (["4", "3.667", "0.333"], VALUE, {}, [4, 3.67, 0.33], None),  # no dot groups
    (["1.5", "-2e1"], VALUE, {}, [1.5, -20], None),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "form", "data", "names", "message"), READ)
def test_labels_of_two_meanings_are_refused_and_each_option_reads_them(tmp_path, labels, form, data, names, message):
    """The option is one of `data`, else the form."""
    path = put(tmp_path / "a.jsonl", labelled(labels))
    if message is not None:
        with pytest.raises(InputError, match=message):
            part("reader", paths(path), **(form if data else {})).check_files()
    assert labels_in(made(tmp_path, path, data=data, **form)) == names


TAGGED = [("a", ["new", "bad"]), ("b", []), ("c", ["bad"]), ("d", ["new"])]
FLAGS = "text,new,bad\n" + "".join(f"{text},{int('new' in tags)},{int('bad' in tags)}\n" for text, tags in TAGGED)
BOTH = {"columns": {"label": ["new", "bad"]}}
FORMS_OF_SEVERAL = {
    "lists": ("a.jsonl", lines_of(TAGGED), {}),
    "lists as JSON": ("a.csv", "text;label\n" + "".join(f"{t};{json.dumps(tags)}\n" for t, tags in TAGGED), {}),
    "a separator": ("a.csv", "text,label\n" + "".join(f"{t},{' | '.join(tags)}\n" for t, tags in TAGGED),
                    {"label_separator": "pipe"}),
    "numpy": ("a.csv", "text;label\n" + "".join(f"{t};[{'bad' in tags:d}. {'new' in tags:d}.]\n" for t, tags in TAGGED),
              {"labels": ["bad", "new"]}),
    "Python": ("a.csv", "text;label\n" + "".join(f"{t};{tags}\n" for t, tags in TAGGED), {}),
    "columns": ("a.csv", FLAGS, BOTH),
    "columns of truths": ("a.jsonl", "".join(json.dumps({"text": t, "new": "new" in tags, "bad": 1.0 * ("bad" in tags)})
                          + "\n" for t, tags in TAGGED), BOTH),
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


def test_flags_of_a_file_to_evaluate_are_of_the_labels_of_the_model():
    reader = LabelReader(text_task({"regression": False, "multilabel": True}), ClassificationDataParams(), ("a", "b"))
    assert [reader.parse(row, "line 1") for row in HOT] == [["a"], [], ["a", "b"]]


def test_dots_of_dev_have_the_meaning_of_those_of_train(tmp_path):
    train = put(tmp_path / "train.jsonl", labelled(["4", "3.5", "2.25"]))
    dev = put(tmp_path / "dev.jsonl", labelled(["975", "1.213"]))
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
    "a long label": ("a.jsonl", json.dumps({"text": "x", "label": "y" * 201}), "more than 200 characters"),
    "one class": ("a.csv", "text,label\nx,good\ny,good\n", r"1 class\(es\) \(good\), 2 to 1,000 are required"),
    "labels as texts": ("a.csv", "text,label\ngood,good\nbad,bad\n", "text of 2 of 2 examples is its label"),
    "numbers as texts": ("a.csv", "text,label\n1,good\n2,bad\n", "is a number. Set .*--column text=NAME"),
    "fastText": ("a.csv", "text,label\n__label__a x,a\n__label__b y,b\n", "a line of fastText with its label"),
    "splits": ("a.csv", "text,label,set\nx,y,validation\nz,y,TRAIN\n",
               r"column 'set' says which .*\('TRAIN' in line 3\) .*\('validation' in line 2\)"),
    "missing texts": ("a.csv", "text,label\nx,a\nNone,b\nN/A,b\n", "2 of 3 .*line 3.*--missing-texts drop"),
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
    "the same labels": ("".join(lines_of([(text, ["new", "bad"])]) for text in "ab"), {}, "all dev examples have"),
    "a flag too many": (labelled([[0, 1], [1, 0, 1]]), {"labels": ["a", "b"]}, "0 or 1, for each of the 2 labels a, b"),
}  # fmt: skip
OTHER_MEANINGS = {
    "almost as many classes as rows": ([f"t{n}" for n in range(12)] + ["t0"], {}, "almost as many classes as examples"),
    "-1 next to three classes": ([0, 1, 2, -1] * 3, {}, r"-1 next to 0, 1, 2 .*--labels 0,1,2.*: line 4 \('-1'\)"),
    "SNLI's sign": (["neutral", "-", "contradiction"], {}, r"stand for a missing one.*: line 2 \('-'\)"),
    "lists with a separator": (["good", "cheap", "good,cheap"], {}, r"another as a part: --multilabel.*: line 3 "),
    "a blank of no width": (["pos", "pos\u200b", "neg"], {}, "only in case, blanks"),
    "stops": (["good", "good.", "bad"], {}, r"a stop at the end .*: line 1 \('good'\), line 2 \('good\.'\)"),
    "truths": ([True, "yes", 1, "no"], {}, r"are yes, true and 1: .*: line 1 \('true'\), line 2 \('yes'\), line 3"),
    "decimal commas": (["5,0", "2,5", "5,0"], {}, r"a number with decimals, .* as a class.*: line 2 \('2,5'\)"),
    "percentages": (["25%", "50 %", "25%"], {}, r"a percent sign as a class: --regression .*: line 1 \('25%'\)"),
    "an unknown name": (["a", "b", "odd"], {"labels": ["a", "b"]}, r"not one of --labels .*: line 3 \('odd'\)"),
    "a line break": (["a\u2028b", "c"], {}, "cannot be shown on one line: line 1"),
    "an object": (["Positive", '{"choices": ["Negative", "Sarcastic"]}'], {}, "an object in a text.*: line 2 "),
}  # fmt: skip
OTHER_VALUES = {
    "stand-ins": (["1", "999", "3.5", "999"], r"far from all others, .*: line 2 \('999'\)"),
    "a word": (["1.5", "high"], "not a finite number: line 2"),
    "nothing": (["1.5", ""], "a missing value: line 2"),
}
REFUSED = {
    **{name: ("a.jsonl", labelled(labels), {}, VALUE, message) for name, (labels, message) in OTHER_VALUES.items()},
    **{name: (file, text, {}, {}, message) for name, (file, text, message) in ONE_CLASS.items()},
    **{name: (f"a.{'jsonl' if text.startswith('{') else 'csv'}", text, data, SEVERAL, message)
       for name, (text, data, message) in SEVERAL_LABELS.items()},
    **{name: ("a.jsonl", labelled(row[0]), row[1], {}, row[2]) for name, row in OTHER_MEANINGS.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_or_may_mean_something_else_is_refused_before_the_run(tmp_path, name):
    file, text, data, form, message = REFUSED[name]
    task = part("reader", {**paths(put(tmp_path / file, text)), **data}, **form)
    for look in (task.check_files, lambda: make_examples(task, tmp_path / "examples")):
        with pytest.raises(InputError, match=message):
            look()
    assert not (tmp_path / "examples").exists()


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
