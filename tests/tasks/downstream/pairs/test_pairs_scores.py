"""Metrics of a search, calculated by hand; baselines, and rows that must have the texts and scores of their example."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from tasks.downstream.packed_rows import write_rows
from tasks.downstream.pairs.examples import Pair
from tasks.downstream.pairs.schemas import SCHEMA
from tasks.downstream.pairs.scores import PairsAnswers, PairsScores, search_words
from tasks.records.parquet import write_records
from tasks.rows.row_files import from_arrow
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.downstream.entries import task_with
from tests.tasks.tiny_model import SPECIAL

DEV = [
    ("who left", "Ada left"),
    ("where to", "to Rome"),
    ("who left", "Ben left too"),
    ("when", "Ada left"),
    ("how", "by night train"),
]
"""The texts to find: Ada left, to Rome, Ben left too, by night train."""


def dev_set(tmp_path: Path, task: PairsScores, rows: list[tuple[Any, ...]] | None = None) -> Any:
    pairs = [Pair(one[0], one[1], None, one[2] if len(one) > 2 else None, str(n)) for n, one in enumerate(rows or DEV)]
    write_records(pairs, tmp_path / "dev.parquet", SCHEMA, 100)
    return task.read_examples(tmp_path / "dev.parquet")


def test_recall_mrr_and_ndcg_are_those_of_their_definitions(tmp_path: Path) -> None:
    task = task_with("pairs", "scores")
    examples = dev_set(tmp_path, task)
    assert examples.anchors == [anchor for anchor, _ in DEV]
    assert examples.texts == ["Ada left", "to Rome", "Ben left too", "by night train"]
    assert examples.relevant == [[0, 2], [1], [0, 2], [0], [3]]
    assert [one.tolist() for one in examples.places] == [[0, 2, 4, 6, 8], [1, 3, 5, 9]]
    found = task.outcomes(examples, [[1, 2, 0, 3], [1, 0, 2, 3], [2, 1, 3], [3, 2, 1], None])
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    np.testing.assert_allclose(
        found,
        [
            [0, 1, 1 / 2, (second + third) / (1 + second)],
            [1, 1, 1, 1],
            [1 / 2, 1 / 2, 1, 1 / (1 + second)],
            [0, 0, 0, 0],
            [0, 0, 0, 0],
        ],
    )
    scores = task.metrics.compute({"dev": found})
    assert (scores["recall_1"], scores["recall_10"], scores["mrr_10"]) == (30, 50, 50)
    assert all(task.is_possible(row) for row in found.tolist())
    assert not task.is_possible([0, 2, 0, 0])


def test_the_nearest_texts_are_those_with_the_largest_cosine(tmp_path: Path) -> None:
    task = task_with("pairs", "scores")
    examples = dev_set(tmp_path, task)
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    answers = task.answer(examples, vectors)
    anchors, texts = (vectors[numbers].astype(np.float64) for numbers in examples.places)
    for number, found in enumerate(answers.found):
        cosines = [float(anchors[number] @ text) for text in texts]
        assert found == sorted(range(4), key=lambda one: -cosines[one])
        assert answers.similarities[number].tolist() == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
    assert task.margin(answers, 0) == pytest.approx(answers.similarities[0, 0] - answers.similarities[0, 1], abs=1e-6)


def test_similarities_are_judged_by_the_order_of_the_scores(tmp_path: Path) -> None:
    task = task_with("pairs", "scores", scores="use")
    targets = [0.1, 0.9, 0.4, 0.4, 0.0]
    examples = dev_set(tmp_path, task, [(f"a{n}", f"b{n}", x) for n, x in enumerate(targets)])
    values = [0.2, 0.3, 0.5, 0.1, -0.4]
    scores = task.metrics.compute({"dev": task.outcomes(examples, values)})
    assert scores["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(targets, values).statistic)
    assert scores["pearson"] == pytest.approx(100 * scipy.stats.pearsonr(targets, values).statistic, abs=1e-4)
    vectors = np.eye(10, 4, dtype=np.float32)
    assert task.answer(examples, vectors).found == [0.0] * 5


@pytest.mark.parametrize("values", [[[0, 0], *[[1]] * 4], [[4], *[[1]] * 4], [0.5] * 5, [[0]] * 4])
def test_answers_that_are_none_are_refused(tmp_path: Path, values: Any) -> None:
    task = task_with("pairs", "scores")
    with pytest.raises(InputError, match="dev"):
        task.check_predictions(tmp_path / "predictions.json", "dev", dev_set(tmp_path, task), values)


def test_both_baselines_are_scored_and_the_better_one_must_be_beaten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_with("pairs", "scores")
    examples = {"dev": dev_set(tmp_path, task)}
    words = search_words(examples["dev"])
    assert [found[0] for found in words[:2]] == [0, 1], "the only text with the words who left, or to"
    names = [one.name for one in task.baselines(examples)]
    assert (names, task.baseline(examples).name) == (["BM25"], "BM25")
    folder = tmp_path / "evaluation/pairs"
    folder.mkdir(parents=True)
    for answers, better in (([[3]] * 5, "BM25"), ([[0], [1], [0], [0], [3]], "the model before training")):
        (folder / "before.json").write_text(json.dumps({"dev": answers}))
        known = task.know_labels(tmp_path)
        assert [one.name for one in known.baselines(examples)] == ["the model before training", "BM25"]
        assert known.baseline(examples).name == better


@pytest.mark.parametrize("negatives", [False, True])
def test_the_texts_of_an_example_share_a_row(tmp_path: Path, negatives: bool) -> None:
    encoder = task_with("pairs", "encoder")
    words = [f"word{number}" for number in range(40)]
    (tmp_path / "tokenizer").mkdir()
    make_wordpiece((*SPECIAL, *words), lowercase=True).write(512, tmp_path / "tokenizer")
    texts = [(" ".join(words[n : n + 3]), " ".join(words * (1 + 9 * (n == 2))), words[n]) for n in range(6)]
    pairs = [Pair(a, b, c if negatives else None, n / 8, str(n)) for n, (a, b, c) in enumerate(texts)]
    write_records(pairs, tmp_path / "train.parquet", SCHEMA, 100)
    made = write_rows(encoder, "train", tmp_path / "train.parquet", tmp_path / "tokenizer", tmp_path / "rows")
    manifest, unit = read_manifest(tmp_path / "rows"), 2 + negatives
    assert (manifest.rows, manifest.sequences, manifest.unit) == (6, 6 * unit, unit)
    assert (manifest.row_length, manifest.max_sequences) == (256 * unit, unit)
    assert made.counts["texts cut to fit"] == 1
    with pa.memory_map(str(tmp_path / "rows/rows-00000.arrow")) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    columns = {name: from_arrow(batch.column(name).values).reshape(6, -1) for name in batch.schema.names}
    assert columns["roles"].tolist() == [list(range(unit))] * 6
    assert columns["targets"][:, 0].tolist() == [n / 8 for n in range(6)]
    lengths = [[int((row == slot + 1).sum()) for slot in range(unit)] for row in columns["sequence_ids"]]
    assert lengths[2][:2] == [5, 256]


def test_texts_alone_are_packed_and_have_no_answers(tmp_path: Path) -> None:
    task = task_with("pairs", "scores")
    write_records([Pair("a", None, None, None, name) for name in "12"], tmp_path / "x.parquet", SCHEMA, 9)
    examples = task.read_examples(tmp_path / "x.parquet")
    answers = task.answer(examples, np.eye(2, 4, dtype=np.float32))
    assert isinstance(answers, PairsAnswers)
    assert (answers.found, answers.vectors.shape, examples.names) == ([], (2, 4), ["1", "2"])
