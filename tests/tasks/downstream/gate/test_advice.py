"""What to do after a rejection: from curves of real trainings, and nothing where the measurements do not tell."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flows.runs.next_step import suggest_next
from flows.runs.report import DECIDED, RunReport
from ipu_model.core.files import read_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.gate.advice import Advice, TrainingFacts, advise, read_losses
from tasks.downstream.gate.gate import CUT
from tasks.downstream.gate.verdict_text import format_advice
from tasks.downstream.scoring.scores import ClassCounts
from tasks.downstream.scoring.significance import ConfidenceInterval
from tasks.downstream.texts.schemas import make_schema
from tasks.downstream.texts.task_table import OWN_CLASSES
from tasks.records.labels import add_labels
from tasks.rows.row_files import CutTexts
from tasks.stage import artifacts
from tests.plans import whole_plan
from tests.tasks.downstream.texts import label_scores as labels

BALANCED = ClassCounts(
    {"negative": 400, "positive": 400}, {"negative": 150, "positive": 150}, {"negative": 97, "positive": 203}
)
BASELINE = ("beats_constant_answer",)
USUAL = 3e-5
# Curves of a MiniLM of 6 layers on SST-2: 800 texts (200 with shuffled labels in the one that overfits).
FLAT = [0.69487175, 0.68978982, 0.68716461]
SLOW = [0.69342092, 0.69382441, 0.6925852, 0.69259007, 0.69209, 0.6921, 0.69203]
HOT = [1.0760345, 0.70656714, 0.74529507, 0.75212962, 0.72450923, 0.71846989]
LEARNED = [0.695, 0.66, 0.52, 0.41, 0.33, 0.28, 0.26, 0.25]


def advised(
    losses: list[float],
    *,
    rate: float = USUAL,
    epochs: float = 1.0,
    classes: ClassCounts | None = BALANCED,
    failed: tuple[str, ...] = BASELINE,
    gain: tuple[float, float] | None = None,
    held_out: tuple[tuple[int, float], ...] = (),
    score: float = 56.0,
) -> list[Advice]:
    facts = TrainingFacts(losses, 10 * len(losses), epochs, rate, USUAL, held_out, classes, score)
    interval = None if gain is None else ConfidenceInterval(gain[0], gain[0] - gain[1], gain[0] + gain[1])
    return advise(facts, failed, interval, 300, "example")


@pytest.mark.parametrize("classes", [BALANCED, None])
def test_a_loss_that_has_hardly_moved_needs_more_epochs_or_a_higher_rate(classes: ClassCounts | None) -> None:
    [one] = advised(FLAT, classes=classes, gain=(6.0, 10.01))
    assert one.text.startswith("The training loss has hardly moved: 0.687 after 30 updates")
    assert one.text.endswith("Train more epochs or with a higher learning rate.")
    assert one.set == {"finetune.epochs": 4.0}
    [one] = advised(SLOW, rate=3e-6, classes=classes)
    assert one.set == {"finetune.learning_rate": USUAL}


def test_an_untrained_model_knows_how_frequent_classes_are() -> None:
    rare = ClassCounts({"ham": 720, "spam": 80}, {"ham": 270, "spam": 30}, {"ham": 300})
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    loss, never = advised([0.7, 0.4, entropy + 0.001], classes=rare)
    assert f"a model that only knows how frequent the labels are has {entropy:.3f}." in loss.text
    assert never.text == 'The model answers "ham" for all 300 development examples.'
    assert advised([0.7, 0.2, 0.15], classes=rare)[0].text == never.text, "a loss far below that of an untrained model"
    assert not advised([0.7, 0.4, 0.2], classes=rare._replace(answered={"ham": 280, "spam": 20}))


@pytest.mark.parametrize("losses", [[0.7, math.nan], HOT, [0.7, 0.75, 0.82, 0.9]])
def test_a_training_that_diverged_needs_a_lower_rate(losses: list[float]) -> None:
    [one] = advised(losses, rate=1e-2)
    assert one.text.startswith("The training diverged: its loss ")
    assert one.text.endswith("Lower the learning rate.")
    assert one.set == {"finetune.learning_rate": USUAL}
    assert advised(losses, rate=USUAL)[0].set == {"finetune.learning_rate": USUAL / 10}
    assert not advised([1.5, 0.9, 0.3, 0.2]), "a head that had learned other labels"
    assert advised(FLAT, rate=1e-2)[0].set == {"finetune.learning_rate": USUAL}, "flat, and far too fast"


def test_overfitting_is_a_fitted_training_set_without_a_score_or_a_held_out_loss_that_rose() -> None:
    [one] = advised([0.7, 0.4, 0.05, 0.02], epochs=20.0, score=50.0)
    assert one.text.startswith(
        "The model overfits: its training loss is 0.020, about 98% correct, and its score is 50.0."
    )
    assert one.set == {"finetune.epochs": 10.0}
    assert not advised([0.7, 0.4, 0.05, 0.02], failed=("accuracy",), score=91.0), "a floor of 95 is not overfitting"
    [one] = advised(LEARNED, epochs=8.0, held_out=((20, 0.5), (40, 0.62), (80, 0.9)))
    assert one.text.startswith("The held-out loss rose from 0.500 after update 20 to 0.900: the model overfits.")
    assert one.set == {"finetune.epochs": 2.0}
    assert not advised(LEARNED, held_out=((20, 0.50), (40, 0.49), (80, 0.51)))


def test_classes_that_are_missing_are_named() -> None:
    counts = ClassCounts({"a": 500, "b": 300, "c": 9}, {"a": 150, "b": 100, "c": 40, "d": 10}, {"a": 200, "b": 100})
    absent, never = advised(LEARNED, classes=counts, failed=("macro_f1",))
    assert absent.text.startswith('No training example has the label "d", but 10 of 300 development examples have.')
    assert absent.set == {"data.train_path": "FILE"}
    assert never.text.startswith('The model never answers "c", the label of 40 of 300 development examples and of 9 tr')


def test_too_few_examples_are_the_reason_only_if_nothing_else_is(tmp_path: Path) -> None:
    [one] = advised(LEARNED, gain=(5.33, 8.33))
    assert one.text.startswith(
        "The gain of 5.33 points is too small for 300 development examples: about 740 would show"
    )
    assert one.set == {"data.dev_path": "FILE"}
    half = 8.33 * math.sqrt(300 / 740)
    assert 0 < 5.33 - half < 0.1, "740 examples have an interval that ends just above 0"
    assert not advised(LEARNED, gain=(-1.0, 8.33)), "no number of examples shows a loss as a gain"
    assert not advised(LEARNED, gain=(5.33, 8.33), failed=(*BASELINE, "accuracy"))


@pytest.mark.parametrize(
    ("lengths", "row_length", "share", "tokens", "length"),
    [
        ([10] * 99 + [30], 16, 0.01, 14 / 1020, 16),
        ([20] * 10, 16, 1.0, 0.2, 24),
        ([5, 600], 512, 0.5, 88 / 605, 512),
        ([16] * 1000 + [17] * 9, 16, 9 / 1009, 9 / (16_000 + 9 * 17), None),  # less than 1 %
    ],
)
def test_the_share_of_cut_texts_and_tokens_and_the_length_that_keeps_them(
    tmp_path: Path, lengths: list[int], row_length: int, share: float, tokens: float, length: int | None
) -> None:
    cut = CutTexts(row_length)
    for some in np.array_split(np.array(lengths), 3):
        cut.add(some)
    cut.write(tmp_path)
    kept = CutTexts.read(tmp_path)
    assert kept is not None
    assert (kept.share, kept.token_share) == (pytest.approx(share), pytest.approx(tokens))
    warning = kept.warn(positions=512)
    assert warning == "" if length is None else CUT in warning
    assert length is None or f"rows.row_length={length} leaves" in warning


def test_a_rejection_names_cut_texts_first() -> None:
    facts = TrainingFacts([0.7, 0.3], 10, 3.0, 1e-5, 1e-5)
    note = "train rows: 90 of 90 texts (100.0%) are longer than rows of 64 tokens"
    assert advise(facts, ["min_accuracy"], None, 40, "text", [note])[0].text == f"{note}."


def test_nothing_is_advised_where_nothing_was_measured() -> None:
    assert not advised(LEARNED, failed=("accuracy",))
    assert not advised([], classes=None)
    assert not advised([0.69], classes=None), "one window does not move"
    assert not advised(FLAT, failed=(*BASELINE, "data_mine")), "its reason names what to run"
    assert not advised(FLAT, failed=("predictions_complete",))


CLASSES = ("negative", "positive")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A run up to stage evaluate whose model answers one class."""
    schema = add_labels(make_schema(OWN_CLASSES), CLASSES)
    labels.write_split(tmp_path, "train", [0, 1] * 40, schema)
    labels.write_split(tmp_path, "dev", [0, 1] * 30, schema)
    labels.write_logits(tmp_path, "dev", np.tile([0.1, 0.0], (60, 1)))
    labels.write_model(tmp_path)
    evaluate(labels.part("report", multilabel=False), tmp_path)
    return tmp_path


def curve(root: Path, losses: list[float]) -> Path:
    path = root / f"plots/{labels.NAME}-finetune.csv"
    path.parent.mkdir(exist_ok=True)
    lines = [f"{10 * number},{loss}" for number, loss in enumerate(losses, 1)]
    path.write_text("\n".join(["step,loss", *lines, ""]))
    return path


def test_the_verdict_has_the_advice_and_commands_that_follow_it(checkout: Path) -> None:
    path = curve(checkout, FLAT)
    verdict = labels.decided(checkout, multilabel=False, finetune={"epochs": 1})
    loss, never = verdict["advice"]
    assert loss["set"] == {f"downstream.{labels.NAME}.finetune.epochs": 4.0}
    assert never == {"text": 'The model answers "negative" for all 60 development examples.', "set": {}}
    assert read_json(checkout / f"metrics/{labels.NAME}-gate.json")["advice"] == verdict["advice"]
    command = f"Try podium run --like first --set downstream.{labels.NAME}.finetune.epochs=4"
    said = [never["text"], f"{loss['text']} {command}"]
    assert format_advice(verdict, "first") == said
    judged = {"name": labels.NAME, "scores": {}, "published": None}
    judged["decision"] = {key: verdict[key] for key in DECIDED if key in verdict}
    assert suggest_next(RunReport("runs/checkouts/first", results={"gate@it": judged})) == " ".join(said)
    path.write_text("step,loss\n10,x\n")
    assert read_losses(path) == []
    assert labels.decided(checkout, multilabel=False)["advice"] == [never], "a damaged curve says nothing"
    assert "advice" not in labels.decided(checkout, multilabel=False, gate={"above_baseline": False})


def test_the_curves_that_the_gate_reads_are_its_dependencies() -> None:
    """Otherwise a worker may lack them, and a rejection says less there."""
    plots = [artifacts.PLOTS / "squad-finetune.csv", artifacts.held_out_plot("squad-finetune")]
    assert {str(path) for path in plots} <= set(whole_plan()["gate@squad"].deps)
