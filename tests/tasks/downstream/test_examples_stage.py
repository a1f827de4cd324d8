"""What the stage of examples does for every kind: a development set split off from training, limits, messages."""

import gzip
import json
import re
from pathlib import Path

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
from tests.tasks.downstream.squad.question_files import qa, squad
from tests.tasks.downstream.texts.classification_checkout import write_texts
from tests.tasks.downstream.texts.glue_checkout import write_examples


def examples_of(kind, form=None, **data):
    more = {"task": "mnli"} if kind == "glue" else form or {}
    params = validate_params(values_with({"squad": None, "own": {"kind": kind, "data": data, **more}}))
    return part_of(find_entry(params, "own"), "reader")


def column(folder, split, name):
    return pq.read_table(folder / f"{split}.parquet")[name].to_pylist()


def squad_file(path, titles):
    asked = [[qa(f"{title}-{n}", f"Which, {n}?", (("It", 0),)) for n in range(10)] for title in range(titles)]
    files = [squad(*qas, context=f"It is {n} here.", title=f"t{n}") for n, qas in enumerate(asked)]
    articles = [article for file in files for article in file["data"]]
    path.write_text(json.dumps({"data": articles}))
    return str(path)


def conll_file(path, sentences, documents):
    """Sentences of two words; every tenth is as the one before."""
    lines = []
    for number in range(sentences):
        if documents and number % (sentences // documents) == 0:
            lines.append("-DOCSTART- O\n\n")
        lines.append(f"word{number - (number % 10 == 9)} B-a\nleft O\n\n")
    path.write_text("".join(lines))
    return str(path)


def test_questions_are_set_apart_by_title(tmp_path):
    task = examples_of("squad", train_path=squad_file(tmp_path / "a.json", 20), dev_path=None, seed=1)
    said = make_examples(task, tmp_path / "out")
    assert re.search("20 of 200 .*dev_fraction 0.1, grouped by title, seed 1", said)
    train, dev = (set(column(tmp_path / "out", split, "title")) for split in task.entry.splits)
    assert (len(train), len(dev), train & dev) == (18, 2, set())
    assert "a part of it" in task.check_files().summary


@pytest.mark.parametrize(("documents", "by", "group"), [(10, "documents", "document"), (0, "sentences", "tokens")])
def test_sentences_are_set_apart_by_document_if_any(tmp_path, documents, by, group):
    path = conll_file(tmp_path / "a.conll", 100, documents)
    task = examples_of("ner", train_path=path, dev_path=None, dev_fraction=0.2)
    assert f"grouped by {by[:-1]}" in make_examples(task, tmp_path / "out")
    train, dev = (set(map(str, column(tmp_path / "out", split, group))) for split in task.entry.splits)
    assert dev
    assert not train & dev


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
    ("kind", "form", "train", "dev", "said"),
    [
        ("classification", {}, LABELS.format(0, 1), LABELS.format(2, 3), "found 2, 3, training has 0, 1"),
        ("classification", {}, LABELS.format(0, 1), LABELS.format(1, 1), "all dev examples have the label 1"),
        ("classification", {"regression": True}, LABELS.format(0, 1.5), LABELS.format(1, 1.0), r"the label 1\.0"),
        ("ner", {}, "a O\n", "a B-a\n", "have 0 entity types"),
        ("ner", {}, "a B-a\n", "a B\n", r"dev.conll \(downstream.own.data.dev_path\)"),
        ("ner", {}, "a B-a\n", "a B-b\nb B-c\n", "found b, c, training has a"),
    ],
)
def test_examples_without_a_score_are_refused_before_a_run(tmp_path, kind, form, train, dev, said):
    files = {f"{split}_path": tmp_path / f"{split}.{'conll' if kind == 'ner' else 'csv'}" for split in ("train", "dev")}
    for path, text in zip(files.values(), (train, dev), strict=True):
        path.write_text(text)
    task = examples_of(kind, form, **{name: str(path) for name, path in files.items()})
    for look in (task.check_files, lambda: make_examples(task, tmp_path / "out")):
        with pytest.raises(InputError, match=said):
            look()
    assert not (tmp_path / "out").exists()


def test_limits_leave_a_sample_of_each_split_of_every_kind(tmp_path):
    write_examples(tmp_path / "glue", "mnli", train=50, dev=30)
    write_texts(tmp_path / "a.csv", 50, seed=0)
    limits = {"limit_train": 20, "limit_dev": 12}
    questions, sentences = squad_file(tmp_path / "a.json", 5), conll_file(tmp_path / "a.conll", 50, 0)
    for kind, data in {
        "squad": {"train_path": questions, "dev_path": None, "dev_fraction": 0.4},
        "ner": {"train_path": sentences, "dev_path": sentences},
        "classification": {"train_path": str(tmp_path / "a.csv"), "dev_path": str(tmp_path / "a.csv")},
        "glue": {"path": str(tmp_path / "glue")},
    }.items():
        task = examples_of(kind, **data, **limits)
        said = make_examples(task, tmp_path / kind)
        counts = {split: pq.read_metadata(tmp_path / kind / f"{split}.parquet").num_rows for split in task.entry.splits}
        assert counts == {split: 20 if split == "train" else 12 for split in task.entry.splits}, kind
        assert "sampled (seed 0)" in said or kind == "squad"
        assert len(read_reading(tmp_path / kind)["notes"]) == len(counts) + (kind == "squad"), kind


def test_a_plan_without_a_development_file_reads_the_one_there_is(tmp_path):
    values = values_with({"own": {"kind": "ner", "data": {"train_path": "inputs/ner", "dev_path": None}}})
    deps = make_plan(define(validate_params(values)))["examples@own"].deps
    assert [dep for dep in deps if dep.startswith("inputs")] == ["inputs/ner"]
    assert not [text for text in check_input_paths(values, tmp_path) if "None" in text]


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_packed_files_of_every_kind_give_what_plain_ones_do(tmp_path, packing):
    write_examples(tmp_path / "tasks", "mnli", train=20, dev=12)
    write_texts(tmp_path / "a.csv", 20, seed=0)
    given = {
        "squad": squad_file(tmp_path / "a.json", 5),
        "ner": conll_file(tmp_path / "a.conll", 50, 0),
        "classification": str(tmp_path / "a.csv"),
    }
    cases = {kind: ({"train_path": path, "dev_path": None}, [Path(path)]) for kind, path in given.items()}
    cases["glue"] = ({"path": str(tmp_path / "tasks")}, sorted((tmp_path / "tasks/mnli").iterdir()))
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
            tables = [pq.read_table(tmp_path / folder / f"{split}.parquet") for folder in (kind, f"{kind}-unpacked")]
            assert tables[0] == tables[1], kind
