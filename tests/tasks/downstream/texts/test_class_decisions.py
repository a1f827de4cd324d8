"""One class per text: a threshold for the second of two classes, a reject option, and floors by class."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from ipu_model.core.files import read_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.task_table import OWN_CLASSES
from tasks.records.labels import add_labels
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.tasks.downstream.texts import label_scores as labels
from tests.tasks.downstream.texts.label_scores import CHOSEN, NAME

CLASSES = ("ham", "spam")
CHOICE: dict[str, Any] = {"evaluate": {"threshold": "auto"}, **CHOSEN}
REJECT: dict[str, Any] = {"evaluate": {"min_probability": 0.8}}


def part(name: str, **sections: Any) -> Any:
    return labels.part(name, multilabel=False, **sections)


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True classes, a fifth of them spam, and logits that are too low for it."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(count) < 0.2).astype(int)
    return truth, np.stack([np.zeros(count), generator.normal(3 * truth - 3, 1.0)], axis=1)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A run up to stage predict."""
    schema = add_labels(make_schema(OWN_CLASSES), CLASSES)
    truth, logits = draw(400, 0)
    labels.write_split(tmp_path, "train", truth.tolist(), schema)
    kept = [is_held_out(f"train text {number}", 0.5, seed=0) for number in range(400)]
    labels.write_logits(tmp_path, artifacts.HELD_OUT, logits[kept])
    truth, logits = draw(150, 1)
    labels.write_split(tmp_path, "dev", truth.tolist(), schema)
    labels.write_logits(tmp_path, "dev", logits)
    labels.write_model(tmp_path)
    return tmp_path


def answers_of(root: Path) -> np.ndarray:
    return np.array(read_json(root / f"evaluation/{NAME}/predictions.json")["dev"])


def test_the_threshold_of_the_second_class_has_the_best_macro_f1_on_held_out_examples(checkout: Path) -> None:
    metrics, plain = evaluate(part("report", **CHOICE), checkout).metrics, evaluate(part("report"), checkout).metrics
    assert metrics["macro_f1"] > plain["macro_f1"] + 5
    truth, logits = draw(400, 0)
    kept = [is_held_out(f"train text {number}", 0.5, seed=0) for number in range(400)]
    shares = 1 / (1 + np.exp(-logits[kept, 1]))

    def score(threshold: float) -> float:
        return float(f1_score(truth[kept], shares > threshold, average="macro"))

    assert score(metrics["threshold"]) == pytest.approx(max(map(score, [0.0, *shares])))
    assert metrics["threshold_lower"] <= metrics["threshold"] <= metrics["threshold_upper"]
    assert metrics["threshold_examples"] == sum(kept)
    assert part("entry", **CHOICE).predicted == ("dev", artifacts.HELD_OUT)
    assert part("entry", **CHOSEN).predicted == ("dev",)
    assert not {"threshold", "thresholds", "min_probability", "risk_coverage_area"} & set(plain)
    files = {path.name for path in (checkout / f"evaluation/{NAME}").iterdir()}
    assert files == {"predictions.json", "mistakes.csv", "report.html"}, "no option, no more files"


def test_doubtful_texts_get_no_answer_and_the_curve_shows_the_choice(checkout: Path) -> None:
    metrics = evaluate(part("report", **REJECT), checkout).metrics
    truth, answers = draw(150, 1)[0], answers_of(checkout)
    given = answers >= 0
    assert 0.3 < given.mean() < 0.95
    assert metrics["coverage"] == pytest.approx(100 * given.mean(), abs=1e-4)
    assert metrics["answered_accuracy"] == pytest.approx(100 * accuracy_score(truth[given], answers[given]), abs=1e-4)
    assert metrics["accuracy"] == pytest.approx(100 * (truth == answers).mean(), abs=1e-4)
    theirs = f1_score(truth, answers, labels=[0, 1], average="macro")
    assert metrics["macro_f1"] == pytest.approx(100 * theirs, abs=1e-4)
    assert metrics["coverage_low"] < metrics["coverage"] < metrics["coverage_high"]
    folder = checkout / f"evaluation/{NAME}"
    with (folder / "risk-coverage.csv").open(encoding="utf-8") as file:
        points = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    chosen = [one for one in points if one["probability"] >= 0.8][-1]
    assert 100 * chosen["coverage"] == pytest.approx(metrics["coverage"], abs=1e-4)
    assert 100 * (1 - chosen["risk"]) == pytest.approx(metrics["answered_accuracy"], abs=1e-4)
    assert metrics["risk_coverage_area"] == pytest.approx(np.mean([one["risk"] for one in points]), abs=1e-6)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Risk-coverage curve" in page
    assert f"{metrics['coverage']:.1f}% are answered" in page
    assert part("scores").settings(metrics) == {"min_probability": 0.8}


def test_the_gate_has_floors_by_class_and_of_answers(checkout: Path) -> None:
    floors = {"min_coverage": 99.0, "min_answered_accuracy": 50.0, "min_f1_by_class": {"spam": 99.0, "ham": 10.0}}
    metrics = evaluate(part("report", gate=floors, **REJECT), checkout).metrics
    truth, answers = draw(150, 1)[0], answers_of(checkout)
    assert metrics["f1_of_spam"] == pytest.approx(100 * f1_score(truth, answers == 1), abs=1e-4)
    reasons = labels.decided(checkout, multilabel=False, gate={**floors, "above_baseline": False}, **REJECT)["reasons"]
    assert [one.split(" is ")[0] for one in reasons] == ["Coverage", "F1 of spam"]


def test_a_record_without_an_answer_has_scores_and_no_label(checkout: Path) -> None:
    task = part("inference", **REJECT)
    examples = task.scores.read_examples(checkout / artifacts.examples_file(NAME, "dev"))
    first, second = task.records(examples, task.scores.answer(examples, np.array([[0.0, 0.1], [0.0, 5.0]])), 0)
    assert (first["label"], second["label"]) == (None, "spam")
    assert first["score"] == pytest.approx(0.524979)
    assert first["scores"].keys() == {"ham", "spam"}


def test_a_threshold_needs_two_classes(tmp_path: Path) -> None:
    task = part("scores", evaluate={"threshold": 0.4})
    labels.write_split(tmp_path, "dev", [0, 1, 2], add_labels(make_schema(OWN_CLASSES), (*CLASSES, "other")))
    with pytest.raises(InputError, match="threshold needs two classes; the model has 3"):
        task.read_all(tmp_path)
