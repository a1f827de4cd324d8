"""Several labels of a text, after the logits: scores, thresholds, gate, page, card, and predictions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

from ipu_model.core.files import read_json, write_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.inference.predict import open_writer
from tasks.downstream.kind import KINDS
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.task_table import OWN_LABELS
from tasks.records.labels import add_labels
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError
from tests.tasks.downstream.texts.label_scores import (
    CHOSEN,
    NAME,
    decided,
    part,
    write_logits,
    write_model,
    write_split,
)

LABELS = ("art", "sport", "war", "weather")
"""No example has the label war."""


def draw(count: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """True labels and logits that mostly agree; the third label is never true, the logits are too low by `shift`."""
    generator = np.random.default_rng(seed)
    truth = (generator.random((count, len(LABELS))) < (0.5, 0.2, 0.0, 0.1)).astype(int)
    return truth, generator.normal(4 * truth - 2, 1.5) - shift


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A run up to stage predict; dev has a label that train lacks."""
    train, logits = draw(400, 0, shift=1.5)
    schema = make_schema(OWN_LABELS)
    write_split(tmp_path, "train", list(map(numbers_of, train)), add_labels(schema, LABELS))
    kept = [is_held_out(f"train text {number}", 0.5, seed=0) for number in range(400)]
    write_logits(tmp_path, artifacts.HELD_OUT, logits[kept])
    dev, logits = draw(120, 1, shift=1.5)
    unknown = (np.arange(120) < 3).astype(int)[:, None]
    write_split(
        tmp_path, "dev", list(map(numbers_of, np.hstack([dev, unknown]))), add_labels(schema, LABELS, ("unknown",))
    )
    write_logits(tmp_path, "dev", logits)
    write_model(tmp_path)
    return tmp_path


def numbers_of(marks: np.ndarray) -> list[int]:
    found: list[int] = np.flatnonzero(marks).tolist()
    return found


def truth_of(root: Path) -> np.ndarray:
    return mark(pq.read_table(root / artifacts.examples_file(NAME, "dev"))["label"].to_pylist())


def answers_of(root: Path) -> np.ndarray:
    return mark(read_json(root / f"evaluation/{NAME}/predictions.json")["dev"])


def mark(lists: list[list[int]]) -> np.ndarray:
    found = np.zeros((len(lists), 5))
    for row, some in zip(found, lists, strict=True):
        row[some] = 1
    return found


@pytest.mark.parametrize("threshold", [None, 0.3, "auto", "per_label"])
def test_scores_are_those_of_scikit_learn_on_the_same_answers(checkout: Path, threshold: Any) -> None:
    metrics = evaluate(part("report", evaluate={"threshold": threshold}, **CHOSEN), checkout).metrics
    truth, answers = truth_of(checkout), answers_of(checkout)
    assert not truth[:, 2].any(), "never true"
    assert not answers[:, 4].any(), "never predicted"
    for average in ("micro", "macro"):
        found = [metrics[f"{average}_{rate}"] for rate in ("precision", "recall", "f1")]
        theirs = precision_recall_fscore_support(truth, answers, average=average, zero_division=0)[:3]
        assert found == pytest.approx([100 * one for one in theirs], abs=1e-4)
    assert metrics["exact_match"] == pytest.approx(100 * accuracy_score(truth, answers), abs=1e-4)
    columns = zip(*precision_recall_fscore_support(truth, answers, zero_division=0), strict=True)
    slices = [one for one in metrics["slices"] if one["by"] == "label"]
    assert [one["slice"] for one in slices] == [*LABELS, "unknown"]
    published = part("scores").released_metrics(metrics)
    assert [one["slice"] for one in published["slices"] if one["by"] == "label"] == list(LABELS), (
        "names of dev stay here"
    )
    for one, (precision, recall, f1, support) in zip(slices, columns, strict=True):
        theirs = [100 * precision, 100 * recall, 100 * f1]
        assert [one["precision"], one["recall"], one["f1"]] == pytest.approx(theirs, abs=1e-4)
        assert one["examples"] == support
        assert one["f1_low"] <= one["f1"] <= one["f1_high"]
    assert metrics["micro_f1_low"] < metrics["micro_f1"] < metrics["micro_f1_high"]


def best_by_trying(scores: np.ndarray, truth: np.ndarray) -> float:
    """Best F1 of all thresholds between two of the scores."""
    cuts = [-1.0, *np.unique(scores)]
    return float(max(f1_score(truth, scores > cut, zero_division=0) for cut in cuts))


def test_thresholds_have_the_best_f1_on_held_out_examples(checkout: Path) -> None:
    task = part("scores", evaluate={"threshold": "per_label"}, **CHOSEN).prepare(checkout)
    train, logits = draw(400, 0, shift=1.5)
    kept = [is_held_out(f"train text {number}", 0.5, seed=0) for number in range(400)]
    truth, shares = train[kept], 1 / (1 + np.exp(-logits[kept].astype(np.float32).astype(float)))
    for number, chosen in enumerate(task.chosen):
        found = f1_score(truth[:, number], shares[:, number] > chosen.value, zero_division=0)
        assert found == pytest.approx(best_by_trying(shares[:, number], truth[:, number]))
        assert chosen.examples == (0 if number == 2 else sum(kept))
    assert task.chosen[2].value == 0.5, "no held-out example has this label"
    task = part("scores", evaluate={"threshold": "auto"}, **CHOSEN).prepare(checkout)
    [chosen] = task.chosen
    assert chosen.low <= chosen.value <= chosen.high
    found = f1_score(truth.ravel(), shares.ravel() > chosen.value)
    assert found == pytest.approx(best_by_trying(shares.ravel(), truth.ravel()))


def test_the_gate_has_floors_by_label_and_compares_with_the_best_set_of_labels(checkout: Path) -> None:
    how = {"evaluate": {"threshold": "per_label"}, **CHOSEN}
    floors = {"min_micro_f1": 60.0, "min_macro_f1": 10.0, "min_f1_by_class": {"sport": 40.0, "war": 1.0}}
    metrics = evaluate(part("report", gate=floors, **how), checkout).metrics
    found = decided(checkout, gate=floors, **how)
    assert found["reasons"] == ["F1 of war is 0.00, below the floor of 1 (downstream.mine.gate.min_f1_by_class.war)."]
    truth = truth_of(checkout)
    sets = [
        mark([list(range(count))] * 120) for count in range(1, 5)
    ]  # the labels are sorted by frequency, but for war
    best = max(f1_score(truth, one, average="micro") for one in sets)
    assert metrics["constant_score"] == pytest.approx(100 * best, abs=1e-4)
    with pytest.raises(InputError, match=r"min_f1_by_class\.tennis: there is no such class; classes are art, sport"):
        evaluate(part("report", gate={"min_f1_by_class": {"tennis": 1.0}}, **how), checkout)


def test_the_gate_compares_with_the_released_model_example_by_example(checkout: Path) -> None:
    how: dict[str, Any] = {"evaluate": {"threshold": "auto"}, **CHOSEN}
    evaluate(part("report", **how), checkout)
    task, examples = part("scores", **how).read_all(checkout)
    perfect = [numbers_of(one[:4]) for one in truth_of(checkout)]
    folder = checkout / artifacts.released_scores(NAME)
    folder.mkdir(parents=True)
    released = scores_json(task, examples, {"dev": perfect})
    assert "text" not in released
    (folder / "scores.json").write_text(released)
    reasons = decided(checkout, **how)["reasons"]
    assert [one.split(" dropped")[0] for one in reasons] == ["Micro F1", "Macro F1"]
    assert decided(checkout, **how, gate={"max_drop": 60.0})["accepted"]


@pytest.mark.parametrize("threshold", ["auto", "per_label"])
def test_the_gate_refuses_thresholds_that_do_not_give_the_predictions(checkout: Path, threshold: str) -> None:
    how: dict[str, Any] = {"evaluate": {"threshold": threshold}, **CHOSEN}
    metrics = evaluate(part("report", **how), checkout).metrics
    assert decided(checkout, **how)["accepted"]
    one = metrics["thresholds"][0] if threshold == "per_label" else metrics
    one["threshold"] += 0.2
    write_json(checkout / f"metrics/{NAME}.json", metrics)
    with pytest.raises(InputError, match="the recorded thresholds of mine are not those of its parameters, or do not"):
        decided(checkout, **how)


@pytest.mark.parametrize("threshold", ["auto", "per_label"])
def test_a_run_and_a_release_record_the_thresholds_of_a_model(checkout: Path, threshold: str) -> None:
    metrics = evaluate(part("report", evaluate={"threshold": threshold}, **CHOSEN), checkout).metrics
    model, release = checkout / "models" / NAME, checkout / "release"
    release.mkdir()
    write_json(release / "podium.json", part("scores").settings(metrics))
    write_json(model / "podium.json", {"head": "sequence_classification", "steps": 10})  # the origin of its weights
    used = part("scores", evaluate={"threshold": threshold}, **CHOSEN).prepare(checkout)
    values = [one.value for one in used.chosen]
    for folder in (model, release):
        found = KINDS["classification"].read_params(folder)["evaluate"]["threshold"]
        assert (list(found.values()) if isinstance(found, dict) else [found]) == values
        applied, examples = part("scores", evaluate={"threshold": found}).read_all(checkout)
        answers = applied.answer(examples["dev"], np.zeros((120, 4)))
        assert [one.value for one in answers.form.thresholds] == values
    write_json(release / "podium.json", {"threshold": "high"})
    with pytest.raises(ParamsError, match=r"evaluate\.threshold"):
        part("scores", **KINDS["classification"].read_params(release))


def test_predictions_are_names_with_the_scores_of_all_labels(checkout: Path) -> None:
    task = part("inference", evaluate={"threshold": 0.3})
    examples = task.scores.read_examples(checkout / artifacts.examples_file(NAME, "dev"))
    logits = np.array([[2.0, -3.0, 0.0, -1.0], [-5.0] * 4])
    records = list(task.records(examples, task.scores.answer(examples, logits), 0))
    assert [one["labels"] for one in records] == [["art", "war"], []]
    assert records[0]["scores"] == pytest.approx(dict(zip(LABELS, 1 / (1 + np.exp(-logits[0])), strict=True)), abs=1e-6)
    stream, schema = io.BytesIO(), pa.schema([("id", pa.string()), *task.record_schema(LABELS, 0)])
    with open_writer(stream, "csv", schema, "") as write:
        write([{"id": "a", **records[0]}])
    header, line = csv.reader(stream.getvalue().decode().splitlines())
    assert header == ["id", "labels", "scores"]
    assert json.loads(line[1]) == ["art", "war"]
    assert json.loads(line[2]) == records[0]["scores"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"evaluate": {"threshold": "auto"}}, "never on dev. Set rows.held_out_fraction"),
        ({"evaluate": {"min_probability": 0.9}}, "min_probability applies to one class per text"),
        ({"multilabel": False, "evaluate": {"threshold": "per_label"}, **CHOSEN}, "needs several labels"),
        ({"multilabel": False, "gate": {"min_coverage": 50.0}}, "requires evaluate.min_probability"),
        ({"multilabel": False, "regression": True, "evaluate": {"threshold": 0.5}}, "but regression is true"),
        ({"evaluate": {"threshold": 1.5}}, "less than or equal to 1"),
    ],
)
def test_decisions_that_do_not_fit_the_labels_are_refused_before_a_run(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        part("entry", **sections)
