"""Texts after the logits: metrics, decisions by thresholds, gate, page, card and predictions."""

import csv
import io
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

from flows.runs.next_step import suggest_next
from flows.runs.report import DECIDED, RunReport
from ipu_model.core.files import read_json, write_json, write_text
from tasks.downstream.evaluate import evaluate
from tasks.downstream.gate.advice import read_losses
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.verdict_text import format_advice
from tasks.downstream.inference.predict import open_writer
from tasks.downstream.kind import KINDS
from tasks.downstream.scoring.metrics import make_interval
from tasks.downstream.texts.answers import LabelAnswers
from tasks.downstream.texts.metrics import metric
from tasks.downstream.texts.params import ClassificationEvaluateParams
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.task_table import OWN_CLASSES, OWN_LABELS, TASKS
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.records.labels import add_labels
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError
from tests.tasks.downstream.entries import dev_set, part_of, task_with, values_with

NAME = "mine"


def entry_values(**sections):
    entry = {"kind": "classification", "multilabel": True, "data": {"train_path": "a.csv", "dev_path": "b.csv"}}
    return values_with({"squad": None, NAME: {**entry, **sections}}, pretrain={"enabled": False})


def part(name, **sections):
    return part_of(find_entry(validate_params(entry_values(**sections)), NAME), name)


def one_class(name, **sections):
    return part(name, multilabel=False, **sections)


def write_split(root, split, labels, schema, logits=None, kept=slice(None)):
    """Examples, and logits as stage predict leaves them, with the features that they belong to."""
    names = [f"{split} text {number}" for number in range(len(labels))]
    columns = {"first": names, "second": [None] * len(names), "label": labels, "id": names}
    path = root / artifacts.examples_file(NAME, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: columns[name] for name in schema.names}, schema=schema), path)
    if logits is None:
        return
    split = artifacts.HELD_OUT if split == "train" else split
    rows, path = part("entry").rows_folder(split, root), root / artifacts.logits_file(NAME, split)
    numbers = pa.array(range(len(logits[kept])), pa.int32())
    for folder in (rows, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"feature_id": numbers, "example_index": numbers}), rows / artifacts.FEATURES)
    values = pa.array(logits[kept].astype(np.float32).tolist(), pa.list_(pa.float32()))
    table = pa.table({"feature_id": numbers, "logits": values})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    write_text(root / "models" / NAME / "model.safetensors", "weights")


CHOSEN = {"rows": {"held_out_fraction": 0.5}}


def decided(root, **sections):
    for name in ("corpus", NAME, f"{NAME}-rows"):
        write_json(root / artifacts.validation_report(name), {"data": name, "valid": True})
    write_json(root / f"metrics/{NAME}-finetune.json", {"final_loss": 0.5, "steps": 10})
    return gate(entry_values(**sections), NAME, root)


LIBRARY = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "pearson": lambda truth, guesses: pearsonr(truth, guesses).statistic,
    "spearman": lambda truth, guesses: spearmanr(truth, guesses).statistic,
}


def outcomes_of(truth, guesses):
    return np.stack([truth, guesses], axis=1).astype(float)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_resample_of_examples_has_the_metrics_of_the_library(name):
    """Metrics of weighted examples are those of scikit-learn and scipy on examples that come N times."""
    task, generator = task_with(f"glue-{name}", "scores"), np.random.default_rng(1)
    if task.task.is_regression:
        truth = generator.random(60) * 5
        guesses = truth + generator.normal(size=60)
    else:
        truth = generator.integers(len(task.task.labels), size=60).astype(float)
        guesses = np.where(generator.random(60) < 0.7, truth, generator.integers(len(task.task.labels), size=60))
    weights = generator.integers(0, 4, size=(3, 60))
    for measure in task.task.metrics:
        again = [100 * LIBRARY[measure](truth.repeat(row), guesses.repeat(row)) for row in weights]
        assert metric(measure).weighted(outcomes_of(truth, guesses), weights.astype(float)) == pytest.approx(again)
        whole = metric(measure).whole(outcomes_of(truth, guesses))
        assert whole == pytest.approx(100 * LIBRARY[measure](truth, guesses))
        constants = [metric(measure).whole(outcomes_of(truth, np.full(60, x))) for x in (0.0, 0.1, 1e9 / 3)]
        assert constants == [0.0] * 3 or not task.task.is_regression
    outcomes = dict.fromkeys(task.entry.development, outcomes_of(truth, guesses))
    exact = task.metrics.compute(outcomes)
    [resamples] = task.metrics.resample([outcomes])
    assert set(resamples) == set(exact)
    for measure, value in exact.items():
        assert resamples[measure].shape == (2000,)
        assert resamples[measure].mean() == pytest.approx(value, abs=3)
        bounds = make_interval(resamples[measure], value)
        assert bounds.low < value < bounds.high
    assert exact["score"] == pytest.approx(np.mean([v for n, v in exact.items() if n != "score"]))


def test_the_best_constant_is_the_majority_class_or_what_f1_likes_better():
    tasks = {name: task_with(f"glue-{name}", "scores") for name in ("sst2", "mrpc", "stsb")}
    labels = np.array([0, 0, 0, 1, 1.0])
    constant = {name: task.baseline({"dev": dev_set(task, ["x"] * 5, labels)}) for name, task in tasks.items()}
    assert constant["sst2"].outcomes["dev"][:, 1].tolist() == [0] * 5
    assert constant["mrpc"].outcomes["dev"][:, 1].tolist() == [1] * 5  # F1 57.1 and accuracy 40 beat 0, 60
    nothing = {"pearson": 0.0, "spearman": 0.0, "score": 0.0}
    assert tasks["stsb"].metrics.compute(constant["stsb"].outcomes) == nothing


LABELS = ("art", "sport", "war", "weather")
"""No example has the label war."""
CLASSES = ("ham", "spam")
KEPT = np.array([is_held_out(f"train text {number}", 0.5, seed=0) for number in range(400)])
"""Training examples that are held out."""


def numbers_of(marks):
    return np.flatnonzero(marks).tolist()


def mark(lists):
    marks = np.zeros((len(lists), 5))
    for row, numbers in zip(marks, lists, strict=True):
        row[numbers] = 1
    return marks


def shares_of(logits):
    return 1 / (1 + np.exp(-logits.astype(np.float32).astype(float)))


def draw_several(count, seed):
    """True labels and logits that mostly agree; the third label is never true, the logits are too low."""
    generator = np.random.default_rng(seed)
    truth = (generator.random((count, len(LABELS))) < (0.5, 0.2, 0.0, 0.1)).astype(int)
    return truth, generator.normal(4 * truth - 2, 1.5) - 1.5


def draw_one(count, seed):
    """True classes, a fifth of them spam, and logits that are too low for it."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(count) < 0.2).astype(int)
    return truth, np.stack([np.zeros(count), generator.normal(3 * truth - 3, 1.0)], axis=1)


@pytest.fixture
def several(tmp_path):
    """A run of several labels up to stage predict; dev has a label that train lacks."""
    truth, logits = draw_several(400, 0)
    schema = make_schema(OWN_LABELS)
    write_split(tmp_path, "train", list(map(numbers_of, truth)), add_labels(schema, LABELS), logits, KEPT)
    dev, logits = draw_several(120, 1)
    labels = list(map(numbers_of, np.hstack([dev, np.arange(120)[:, None] < 3])))
    write_split(tmp_path, "dev", labels, add_labels(schema, LABELS, ("unknown",)), logits)
    return tmp_path


@pytest.fixture
def two(tmp_path):
    schema = add_labels(make_schema(OWN_CLASSES), CLASSES)
    for split, count, seed, kept in (("train", 400, 0, KEPT), ("dev", 150, 1, slice(None))):
        truth, logits = draw_one(count, seed)
        write_split(tmp_path, split, truth.tolist(), schema, logits, kept)
    return tmp_path


def truth_of(root):
    return mark(pq.read_table(root / artifacts.examples_file(NAME, "dev"))["label"].to_pylist())


def predictions_of(root):
    return read_json(root / f"evaluation/{NAME}/predictions.json")["dev"]


@pytest.mark.parametrize("threshold", [None, 0.3, "auto", "per_label"])
def test_scores_are_those_of_scikit_learn_on_the_same_answers(several, threshold):
    metrics = evaluate(part("report", evaluate={"threshold": threshold}, **CHOSEN), several).metrics
    truth, answers = truth_of(several), mark(predictions_of(several))
    assert not truth[:, 2].any(), "never true"
    assert not answers[:, 4].any(), "never predicted"
    for average in ("micro", "macro"):
        rates = [metrics[f"{average}_{rate}"] for rate in ("precision", "recall", "f1")]
        theirs = precision_recall_fscore_support(truth, answers, average=average, zero_division=0)[:3]
        assert rates == pytest.approx([100 * rate for rate in theirs], abs=1e-4)
    assert metrics["exact_match"] == pytest.approx(100 * accuracy_score(truth, answers), abs=1e-4)
    assert metrics["micro_f1_low"] < metrics["micro_f1"] < metrics["micro_f1_high"]
    slices = [record for record in metrics["slices"] if record["by"] == "label"]
    assert [record["slice"] for record in slices] == [*LABELS, "unknown"]
    published = part("scores").released_metrics(metrics)["slices"]
    names = [record["slice"] for record in published if record["by"] == "label"]
    assert names == list(LABELS), "names of dev stay here"
    columns = zip(*precision_recall_fscore_support(truth, answers, zero_division=0), strict=True)
    for record, (*theirs, support) in zip(slices, columns, strict=True):
        rates = [record[rate] for rate in ("precision", "recall", "f1")]
        assert rates == pytest.approx([100 * rate for rate in theirs], abs=1e-4)
        assert record["examples"] == support
        assert record["f1_low"] <= record["f1"] <= record["f1_high"]


def best_by_trying(scores, truth):
    answers = scores[:, None] > np.array([-1.0, *np.unique(scores)])
    hits = (answers & (truth[:, None] == 1)).sum(axis=0)
    return float(np.max(2 * hits / np.maximum(answers.sum(axis=0) + truth.sum(), 1)))


def test_thresholds_have_the_best_f1_on_held_out_examples(several):
    task = part("scores", evaluate={"threshold": "per_label"}, **CHOSEN).prepare(several)
    truth, logits = draw_several(400, 0)
    truth, shares = truth[KEPT], shares_of(logits[KEPT])
    for number, chosen in enumerate(task.chosen):
        f1 = f1_score(truth[:, number], shares[:, number] > chosen.value, zero_division=0)
        assert f1 == pytest.approx(best_by_trying(shares[:, number], truth[:, number]))
        assert chosen.examples == (0 if number == 2 else sum(KEPT))
    assert task.chosen[2].value == 0.5, "no held-out example has this label"
    [chosen] = part("scores", evaluate={"threshold": "auto"}, **CHOSEN).prepare(several).chosen
    assert chosen.low <= chosen.value <= chosen.high
    f1 = f1_score(truth.ravel(), shares.ravel() > chosen.value)
    assert f1 == pytest.approx(best_by_trying(shares.ravel(), truth.ravel()))


def test_the_gate_has_floors_by_label_and_compares_with_the_best_set_of_labels(several):
    how = {"evaluate": {"threshold": "per_label"}, **CHOSEN}
    floors = {"min_micro_f1": 60.0, "min_macro_f1": 10.0, "min_f1_by_class": {"sport": 40.0, "war": 1.0}}
    metrics = evaluate(part("report", gate=floors, **how), several).metrics
    [reason] = decided(several, gate=floors, **how)["reasons"]
    assert reason.startswith("F1 of war is 0.00")
    # The labels are sorted by frequency, but for war.
    sets = [mark([list(range(count))] * 120) for count in range(1, 5)]
    best = max(f1_score(truth_of(several), labels, average="micro") for labels in sets)
    assert metrics["constant_score"] == pytest.approx(100 * best, abs=1e-4)
    with pytest.raises(InputError, match=r"min_f1_by_class\.tennis: .*art, sport"):
        evaluate(part("report", gate={"min_f1_by_class": {"tennis": 1.0}}, **how), several)
    task, examples = part("scores", **how).read_all(several)
    released = scores_json(task, examples, {"dev": [numbers_of(labels[:4]) for labels in truth_of(several)]})
    assert "text" not in released
    write_text(several / artifacts.released_scores(NAME) / "scores.json", released)
    for more, failed in (({}, ["F1 of war", "Micro F1", "Macro F1"]), ({"max_drop": 60.0}, ["F1 of war"])):
        reasons = decided(several, gate={**floors, **more}, **how)["reasons"]
        assert [re.split(" is | dropped", reason)[0] for reason in reasons] == failed


@pytest.mark.parametrize("threshold", ["auto", "per_label"])
def test_a_run_and_a_release_record_the_thresholds_of_a_model_and_the_gate_refuses_others(several, threshold):
    how = {"evaluate": {"threshold": threshold}, **CHOSEN}
    metrics = evaluate(part("report", **how), several).metrics
    model, release = several / "models" / NAME, several / "release"
    release.mkdir()
    write_json(release / "podium.json", part("scores").settings(metrics))
    write_json(model / "podium.json", {"head": "sequence_classification", "steps": 10})  # the origin of its weights
    values = [chosen.value for chosen in part("scores", **how).prepare(several).chosen]
    for folder in (model, release):
        recorded = KINDS["classification"].read_params(folder)["evaluate"]["threshold"]
        assert (list(recorded.values()) if isinstance(recorded, dict) else [recorded]) == values
        applied, examples = part("scores", evaluate={"threshold": recorded}).read_all(several)
        answers = applied.answer(examples["dev"], np.zeros((120, 4)))
        assert [chosen.value for chosen in answers.form.thresholds] == values
    write_json(release / "podium.json", {"threshold": "high"})
    with pytest.raises(ParamsError, match=r"evaluate\.threshold"):
        part("scores", **KINDS["classification"].read_params(release))
    assert decided(several, **how)["accepted"]
    recorded = metrics["thresholds"][0] if threshold == "per_label" else metrics
    recorded["threshold"] += 0.2
    write_json(several / f"metrics/{NAME}.json", metrics)
    with pytest.raises(InputError, match="recorded thresholds of mine"):
        decided(several, **how)


@pytest.mark.parametrize(
    ("gold", "size"),
    [
        ([[1, 1, 0], [0, 0, 0], [0, 0, 0]], 2),
        ([[1, 1, 0], [1, 0, 0], [0, 0, 0]], 2),  # 1.5 labels an example that has any
        ([[0, 0, 0]] * 2, 1),
    ],
)
def test_the_extremes_of_several_labels_have_as_many_as_an_example_with_labels(gold, size):
    outcomes = np.hstack([np.array(gold, float)] * 2)
    worst, best = LabelAnswers(OWN_LABELS, ClassificationEvaluateParams()).extremes(outcomes)
    assert [worst[:3].sum(), best[:3].sum(), best[3:].tolist()] == [size, size, best[:3].tolist()]
    assert not (worst[:3] * worst[3:]).any()


def records_of(task, root, logits):
    examples = task.scores.read_examples(root / artifacts.examples_file(NAME, "dev"))
    return list(task.records(examples, task.scores.answer(examples, np.array(logits)), 0))


def test_predictions_are_names_with_the_scores_of_all_labels(several):
    logits, task = [[2.0, -3.0, 0.0, -1.0], [-5.0] * 4], part("inference", evaluate={"threshold": 0.3})
    records = records_of(task, several, logits)
    assert [record["labels"] for record in records] == [["art", "war"], []]
    shares = dict(zip(LABELS, shares_of(np.array(logits[0])), strict=True))
    assert records[0]["scores"] == pytest.approx(shares, abs=1e-6)
    stream, schema = io.BytesIO(), pa.schema([("id", pa.string()), *task.record_schema(LABELS, 0)])
    with open_writer(stream, "csv", schema, "") as write:
        write([{"id": "a", **records[0]}])
    [line] = csv.DictReader(stream.getvalue().decode().splitlines())
    assert (line["id"], line["labels"], json.loads(line["scores"])) == ("a", '["art", "war"]', records[0]["scores"])


CHOICE = {"evaluate": {"threshold": "auto"}, **CHOSEN}
REJECT = {"evaluate": {"min_probability": 0.8}}


def test_the_threshold_of_the_second_class_has_the_best_macro_f1_on_held_out_examples(two):
    metrics, plain = evaluate(one_class("report", **CHOICE), two).metrics, evaluate(one_class("report"), two).metrics
    assert metrics["macro_f1"] > plain["macro_f1"] + 5
    truth, logits = draw_one(400, 0)
    shares = shares_of(logits[KEPT, 1])
    scores = [f1_score(truth[KEPT], shares > value, average="macro") for value in (metrics["threshold"], 0.0, *shares)]
    assert scores[0] == pytest.approx(max(scores[1:]))
    assert metrics["threshold_lower"] <= metrics["threshold"] <= metrics["threshold_upper"]
    assert metrics["threshold_examples"] == sum(KEPT)
    assert one_class("entry", **CHOICE).predicted == ("dev", artifacts.HELD_OUT)
    assert one_class("entry", **CHOSEN).predicted == ("dev",)
    assert not {"threshold", "thresholds", "min_probability", "risk_coverage_area"} & set(plain)
    write_split(two, "dev", [0, 1, 2], add_labels(make_schema(OWN_CLASSES), (*CLASSES, "other")))
    with pytest.raises(InputError, match="threshold needs two classes; the model has 3"):
        one_class("scores", evaluate={"threshold": 0.4}).read_all(two)


def test_doubtful_texts_get_no_answer_and_the_curve_shows_the_choice(two):
    metrics = evaluate(one_class("report", **REJECT), two).metrics
    truth, answers = draw_one(150, 1)[0], np.array(predictions_of(two))
    given = answers >= 0
    assert 0.3 < given.mean() < 0.95
    expected = {
        "coverage": given.mean(),
        "answered_accuracy": accuracy_score(truth[given], answers[given]),
        "accuracy": (truth == answers).mean(),
        "macro_f1": f1_score(truth, answers, labels=[0, 1], average="macro"),
    }
    assert {name: metrics[name] / 100 for name in expected} == pytest.approx(expected, abs=1e-6)
    assert metrics["coverage_low"] < metrics["coverage"] < metrics["coverage_high"]
    with (two / f"evaluation/{NAME}/risk-coverage.csv").open(encoding="utf-8") as file:
        points = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    chosen = [point for point in points if point["probability"] >= 0.8][-1]
    assert 100 * chosen["coverage"] == pytest.approx(metrics["coverage"], abs=1e-4)
    assert 100 * (1 - chosen["risk"]) == pytest.approx(metrics["answered_accuracy"], abs=1e-4)
    assert metrics["risk_coverage_area"] == pytest.approx(np.mean([point["risk"] for point in points]), abs=1e-6)
    assert one_class("scores").settings(metrics) == {"min_probability": 0.8}
    doubtful, sure = records_of(one_class("inference", **REJECT), two, [[0.0, 0.1], [0.0, 5.0]])
    assert (doubtful["label"], sure["label"]) == (None, "spam")
    assert doubtful["score"] == pytest.approx(0.524979)
    assert doubtful["scores"].keys() == {"ham", "spam"}
    floors = {"min_coverage": 99.0, "min_answered_accuracy": 50.0, "min_f1_by_class": {"spam": 99.0, "ham": 10.0}}
    metrics = evaluate(one_class("report", gate=floors, **REJECT), two).metrics
    assert metrics["f1_of_spam"] == pytest.approx(100 * f1_score(truth, answers == 1), abs=1e-4)
    reasons = decided(two, multilabel=False, gate={**floors, "above_baseline": False}, **REJECT)["reasons"]
    assert [reason.split(" is ")[0] for reason in reasons] == ["Coverage", "F1 of spam"]


def test_the_verdict_has_the_advice_and_commands_that_follow_it(tmp_path):
    """Of a model whose answers are constant."""
    schema = add_labels(make_schema(OWN_CLASSES), ("negative", "positive"))
    write_split(tmp_path, "train", [0, 1] * 40, schema)
    write_split(tmp_path, "dev", [0, 1] * 30, schema, np.tile([0.1, 0.0], (60, 1)))
    evaluate(one_class("report"), tmp_path)
    path = tmp_path / f"plots/{NAME}-finetune.csv"
    path.parent.mkdir(exist_ok=True)
    # Losses of a training that has hardly moved.
    path.write_text("step,loss\n10,0.69487175\n20,0.68978982\n30,0.68716461\n")
    verdict = decided(tmp_path, multilabel=False, finetune={"epochs": 1})
    loss, never = verdict["advice"]
    assert loss["set"] == {f"downstream.{NAME}.finetune.epochs": 4.0}
    assert '"negative" for all 60' in never["text"]
    assert never["set"] == {}
    assert read_json(tmp_path / f"metrics/{NAME}-gate.json")["advice"] == verdict["advice"]
    command = f"Try podium run --like first --set downstream.{NAME}.finetune.epochs=4"
    lines = [never["text"], f"{loss['text']} {command}"]
    assert format_advice(verdict, "first") == lines
    judged = {"name": NAME, "scores": {}, "published": None}
    judged["decision"] = {key: verdict[key] for key in DECIDED if key in verdict}
    assert suggest_next(RunReport("runs/checkouts/first", results={"gate@it": judged})) == " ".join(lines)
    path.write_text("step,loss\n10,x\n")
    assert read_losses(path) == []
    assert decided(tmp_path, multilabel=False)["advice"] == [never], "a damaged curve says nothing"
    assert "advice" not in decided(tmp_path, multilabel=False, gate={"above_baseline": False})
