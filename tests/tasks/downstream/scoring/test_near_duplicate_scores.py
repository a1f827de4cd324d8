"""What near-duplicates mean for scores, pages and cards, for every kind of task."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.evaluate import evaluate, search_near_duplicates
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.params.entries import find_entry, learns_text
from tasks.params.schema import validate_params
from tasks.records.duplicate_report import Duplicate, NearDuplicateReport, SourceReport, describe_near_duplicates
from tasks.stage import artifacts
from tests.tasks.downstream.entries import part_of, task_with, values_with
from tests.tasks.release.evaluated_checkout import write_checkout

TRAINING, TEXT = "training examples", "pre-training text"


def evaluated(root, *sources, threshold=0.8):
    """Metrics and page of three questions with exact matches 1, 0, 1 and F1 of 1, 2/3, 1; a source is its name and the
    numbers of its near-duplicates."""
    write_checkout(root)
    reports = []
    for name, examples in sources:
        pairs = tuple(Duplicate("dev", number, 0.9, f"training question {number}") for number in examples)
        reports.append(SourceReport(name, 12, int(name == TEXT), pairs, ()))
    task = task_with("squad", "report", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30))
    metrics = evaluate(task, root, NearDuplicateReport(threshold, tuple(reports))).metrics
    return metrics, (root / artifacts.evaluation_page("squad")).read_text(encoding="utf-8")


def test_scores_without_them_are_those_of_the_other_examples(tmp_path):
    metrics, page = evaluated(tmp_path, (TRAINING, [0]), (TEXT, [0, 2]))
    assert (metrics["near_duplicates"], metrics["near_duplicates_from"]) == (2, 0.8)
    names, parts = ("in", "examples", "of", "exact_match", "f1"), metrics["without_near_duplicates"]
    assert [tuple(part[name] for name in names) for part in parts] == [
        (TRAINING, 1, 3, 50.0, 83.3333),
        (TEXT, 2, 3, 0.0, 66.6667),
        ("either of them", 2, 3, 0.0, 66.6667),
    ]
    assert metrics["exact_match"] == 66.6667
    for words in ("1 of 3", "66.7%", "pre-training text: 1."):
        assert words in page
    assert re.match("2 of 3 .* f1 66.67 without them$", describe_near_duplicates(metrics))


def test_without_any_or_without_others_nothing_else_is_scored(tmp_path):
    metrics, _ = evaluated(tmp_path / "none", (TRAINING, []))
    [part] = metrics["without_near_duplicates"]
    assert [part[name] for name in ("exact_match", "f1_low")] == [metrics[name] for name in ("exact_match", "f1_low")]
    assert (metrics["near_duplicates"], describe_near_duplicates(metrics)) == (0, "")
    metrics, page = evaluated(tmp_path / "all", (TRAINING, [0, 1, 2]))
    assert metrics["without_near_duplicates"] == [{"in": TRAINING, "examples": 3, "of": 3}]
    assert page.count("no examples left") == 2
    assert "3 in training examples" in describe_near_duplicates(metrics)
    json.dumps(metrics, allow_nan=False)


def test_where_none_were_looked_for_nothing_is_read_or_counted(tmp_path):
    metrics, page = evaluated(tmp_path, threshold=None)
    assert not [name for name in metrics if "near" in name]
    assert describe_near_duplicates(metrics) == ""
    assert "Not checked" in page
    params = validate_params(values_with(validate={"near_duplicates": None}))
    task = part_of(find_entry(params, "squad"), "report")
    assert search_near_duplicates(task, params, tmp_path / "nothing") == NearDuplicateReport(None, ())


KINDS = [
    ({"kind": "glue", "task": "mrpc"}, ["first", "second"], [
        ["The cats sat down.", "On a mat"], ["the cats sat down", "on a mat"], ["the cats sat down", "elsewhere"],
    ], "example"),
    ({"kind": "ner"}, ["tokens"], [
        [["Ada", "met", "Charles"]], [["ada", "met", "charles", "."]], [["charles", "met", "noone"]],
    ], "sentence"),
    ({"kind": "squad"}, ["context", "question"], [
        ["The river rises in the hills.", "Where?"], ["THE RIVER RISES IN THE HILLS", "What rises?"],
        ["The lake lies low.", "Where?"],
    ], "question"),
]  # fmt: skip
"""An entry, columns, an example of training and two of development, of which the first is near it; its name."""


@pytest.mark.parametrize(("entry", "columns", "examples", "record"), KINDS, ids=lambda part: str(part)[:20])
def test_each_kind_says_which_text_of_an_example_counts(tmp_path, entry, columns, examples, record):
    params = validate_params(values_with({"squad": None, "it": entry}, pretrain={"enabled": False}))
    task = part_of(find_entry(params, "it"), "report")
    for split, rows in (("train", examples[:1]), ("dev", examples[1:])):
        path = tmp_path / artifacts.examples_file("it", split)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows]), path)
    [source] = search_near_duplicates(task, params, tmp_path).sources
    assert [(pair.example, pair.other) for pair in source.pairs] == [(0, f"training {record} 0")]


OFF = {"enabled": False}


@pytest.mark.parametrize(
    ("sections", "learns"),
    [
        ({}, True),
        ({"pretrain": OFF}, False),
        ({"pretrain_rows": {"source": "hub"}, "corpus": {"source": "none"}, "tokenizer": {"source": "file"}}, False),
        ({"base_model": {"source": "folder"}}, True),
        ({"base_model": {"source": "folder"}, "pretrain": OFF}, False),
    ],
)
def test_the_corpus_counts_where_the_model_is_pretrained_on_it(sections, learns):
    params = validate_params(values_with(**sections))
    assert learns_text(find_entry(params, "squad"), params) == learns
