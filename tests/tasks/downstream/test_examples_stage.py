"""What the stage of examples does for every kind: a development set split off from training, limits, messages."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.examples import make_examples
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.plan.named_files import check_input_paths
from tasks.plan.plan_file import make_plan
from tasks.plan.stages import define
from tasks.records.interpretation import read_reading
from tasks.records.labels import read_example_labels
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import part_of, values_with
from tests.tasks.downstream.generated import write_texts
from tests.tasks.downstream.squad.question_files import qa, squad
from tests.tasks.downstream.texts.glue_checkout import write_examples


def examples_of(kind, form=None, **data):
    more = {"task": "mnli"} if kind == "glue" else form or {}
    params = validate_params(values_with({"squad": None, "own": {"kind": kind, "data": data, **more}}))
    return part_of(find_entry(params, "own"), "reader")


def column(folder, split, name):
    return pq.read_table(folder / f"{split}.parquet")[name].to_pylist()


def squad_file(path, titles):
    """Ten questions a title."""
    articles = []
    for title in range(titles):
        asked = [qa(f"{title}-{n}", f"Which, {n}?", (("It", 0),)) for n in range(10)]
        articles += squad(*asked, context=f"It is {title} here.", title=f"t{title}")["data"]
    path.write_text(json.dumps({"data": articles}))
    return str(path)


def conll_file(path, sentences, documents=0):
    """Sentences of two words; every tenth is as the one before."""
    lines = []
    for number in range(sentences):
        if documents and number % (sentences // documents) == 0:
            lines.append("-DOCSTART- O\n\n")
        lines.append(f"word{number - (number % 10 == 9)} B-a\nleft O\n\n")
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "documents", "by", "group", "sizes"),
    [
        ("squad", 0, "title", "title", (18, 2)),
        ("ner", 10, "document", "document", (8, 2)),
        ("ner", 0, "sentence", "tokens", None),
    ],
)
def test_what_belongs_together_is_set_apart_together(tmp_path, kind, documents, by, group, sizes):
    path = squad_file(tmp_path / "a.json", 20) if kind == "squad" else conll_file(tmp_path / "a.conll", 100, documents)
    task = examples_of(kind, train_path=path, dev_path=None, seed=1, dev_fraction=0.1 if kind == "squad" else 0.2)
    summary = make_examples(task, tmp_path / "out")
    assert f"grouped by {by}" in summary
    assert re.search("20 of 200 .*dev_fraction 0.1, .*seed 1", summary) or kind == "ner"
    train, dev = (set(map(str, column(tmp_path / "out", split, group))) for split in task.entry.splits)
    assert dev
    assert not train & dev
    assert sizes in (None, (len(train), len(dev)))
    assert "a part of it" in task.check_files().summary


def test_the_types_of_entities_are_those_of_what_is_left_to_train_on(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("".join(f"word{number} B-{number}\nsleeps O\n\n" for number in range(40)))
    task = examples_of("ner", train_path=str(path), dev_path=None)
    make_examples(task, tmp_path / "out")
    assert len(read_example_labels(tmp_path / "out", "x")) == 1 + 2 * len(column(tmp_path / "out", "train", "tags"))
    path.write_text("a B-a\nx O\n\nb O\nx O\n\nc O\nx O\n")
    lost = examples_of("ner", train_path=str(path), dev_path=None, limit_train=1, seed=3)
    with pytest.raises(InputError, match="have 0 entity types"):
        make_examples(lost, tmp_path / "other")
    assert not (tmp_path / "other").exists()


LABELS = "text,label\na,{}\nb,{}\n"


@pytest.mark.parametrize(
    ("kind", "form", "train", "dev", "message"),
    [
        ("classification", {}, LABELS.format(0, 1), LABELS.format(2, 3), "found 2, 3, training has 0, 1"),
        ("classification", {}, LABELS.format(0, 1), LABELS.format(1, 1), "all dev examples have the label 1"),
        ("classification", {"regression": True}, LABELS.format(0, 1.5), LABELS.format(1, 1.0), r"the label 1\.0"),
        ("ner", {}, "a O\n", "a B-a\n", "have 0 entity types"),
        ("ner", {}, "a B-a\n", "a B\n", r"dev.conll \(downstream.own.data.dev_path\)"),
        ("ner", {}, "a B-a\n", "a B-b\nb B-c\n", "found b, c, training has a"),
    ],
)
def test_examples_without_a_score_are_refused_before_a_run(tmp_path, kind, form, train, dev, message):
    data = {}
    for split, text in (("train", train), ("dev", dev)):
        path = tmp_path / f"{split}.{'conll' if kind == 'ner' else 'csv'}"
        path.write_text(text)
        data[f"{split}_path"] = str(path)
    task = examples_of(kind, form, **data)
    for look in (task.check_files, lambda: make_examples(task, tmp_path / "out")):
        with pytest.raises(InputError, match=message):
            look()
    assert not (tmp_path / "out").exists()


@pytest.fixture
def cases(tmp_path):
    """What names the files of each kind, and these files."""
    write_examples(tmp_path / "tasks", "mnli", train=50, dev=30)
    write_texts(tmp_path / "a.csv", 50, seed=0)
    squad_file(tmp_path / "a.json", 5)
    conll_file(tmp_path / "a.conll", 50)
    endings = {"squad": "json", "ner": "conll", "classification": "csv"}
    paths = {kind: tmp_path / f"a.{ending}" for kind, ending in endings.items()}
    files = {kind: ({"train_path": str(path), "dev_path": None}, [path]) for kind, path in paths.items()}
    return {**files, "glue": ({"path": str(tmp_path / "tasks")}, sorted((tmp_path / "tasks/mnli").iterdir()))}


def test_limits_leave_a_sample_of_each_split_of_every_kind(tmp_path, cases):
    for kind, (data, _) in cases.items():
        dev = {"dev_path": data["train_path"]} if kind in ("ner", "classification") else {}
        dev |= {"dev_fraction": 0.4} if kind == "squad" else {}
        task = examples_of(kind, **{**data, **dev}, limit_train=20, limit_dev=12)
        summary = make_examples(task, tmp_path / kind)
        counts = {split: pq.read_metadata(tmp_path / kind / f"{split}.parquet").num_rows for split in task.entry.splits}
        assert counts == {split: 20 if split == "train" else 12 for split in task.entry.splits}, kind
        assert "sampled (seed 0)" in summary or kind == "squad"
        assert len(read_reading(tmp_path / kind)["notes"]) == len(counts) + (kind == "squad"), kind


def test_a_plan_without_a_development_file_reads_the_one_there_is(tmp_path):
    values = values_with({"own": {"kind": "ner", "data": {"train_path": "inputs/ner", "dev_path": None}}})
    deps = make_plan(define(validate_params(values)))["examples@own"].deps
    assert [dep for dep in deps if dep.startswith("inputs")] == ["inputs/ner"]
    assert not [text for text in check_input_paths(values, tmp_path) if "None" in text]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_packed_files_of_every_kind_give_what_plain_ones_do(tmp_path, cases, packing):
    for kind, (data, files) in cases.items():
        make_examples(examples_of(kind, **data), tmp_path / kind)
        for path in files:
            content = path.read_bytes()
            whole = gzip.compress(content) if packing == ".gz" else pa.compress(content, codec="zstd", asbytes=True)
            path.with_name(path.name + packing).write_bytes(whole)
            path.unlink()
        named = {key: value and value + packing * (key == "train_path") for key, value in data.items()}
        task = examples_of(kind, **named)
        assert task.check_files().summary
        make_examples(task, tmp_path / f"{kind}-unpacked")
        for split in task.entry.splits:
            plain, unpacked = (
                pq.read_table(tmp_path / name / f"{split}.parquet") for name in (kind, f"{kind}-unpacked")
            )
            assert plain == unpacked, kind
