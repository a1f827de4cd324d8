"""What to do after a rejection: from curves of real trainings, and nothing where the measurements do not tell."""

import math

import numpy as np
import pytest

from tasks.downstream.gate.advice import TrainingFacts, advise
from tasks.downstream.gate.gate import CUT
from tasks.downstream.scoring.scores import ClassCounts
from tasks.downstream.scoring.significance import ConfidenceInterval
from tasks.rows.row_files import CutTexts
from tasks.stage import artifacts
from tests.plans import whole_plan

BALANCED = ClassCounts(
    {"negative": 400, "positive": 400}, {"negative": 150, "positive": 150}, {"negative": 97, "positive": 203}
)
BASELINE = ("beats_constant_answer",)
USUAL = 3e-5
USUALLY = {"epochs": 1.0, "learning_rate": USUAL, "usual_rate": USUAL, "classes": BALANCED, "score": 56.0}
# Curves of a MiniLM of 6 layers on SST-2: 800 texts (200 with shuffled labels in the one that overfits).
FLAT = [0.69487175, 0.68978982, 0.68716461]
SLOW = [0.69342092, 0.69382441, 0.6925852, 0.69259007, 0.69209, 0.6921, 0.69203]
HOT = [1.0760345, 0.70656714, 0.74529507, 0.75212962, 0.72450923, 0.71846989]
LEARNED = [0.695, 0.66, 0.52, 0.41, 0.33, 0.28, 0.26, 0.25]
FITTED = [0.7, 0.4, 0.05, 0.02]

RARE = ClassCounts({"ham": 720, "spam": 80}, {"ham": 270, "spam": 30}, {"ham": 300})
"""The classes of a model that answers the frequent one alone."""
ENTROPY = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
ALL_HAM = ('"ham" for all 300', {})
THREE = ClassCounts({"a": 500, "b": 300, "c": 9}, {"a": 150, "b": 100, "c": 40, "d": 10}, {"a": 200, "b": 100})
MORE, HALF, DEV = {"finetune.epochs": 4.0}, {"finetune.epochs": 10.0}, {"data.dev_path": "FILE"}
USUAL_RATE = {"finetune.learning_rate": USUAL}
FAST = {"learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("losses", "facts", "failed", "gain", "advice"),
    [
        # A loss that has hardly moved needs more epochs or a higher rate, and far too fast a rate a lower one.
        (FLAT, {}, BASELINE, (6.0, 10.01), [("0.687 after 30 updates", MORE)]),
        (SLOW, {"learning_rate": 3e-6}, BASELINE, None, [("hardly moved", USUAL_RATE)]),
        (FLAT, FAST, BASELINE, None, [("", USUAL_RATE)]),
        # An untrained model knows how frequent classes are.
        ([0.7, 0.4, ENTROPY + 0.001], {"classes": RARE}, BASELINE, None,
         [(f"labels are has {ENTROPY:.3f}.", MORE), ALL_HAM]),
        ([0.7, 0.2, 0.15], {"classes": RARE}, BASELINE, None, [ALL_HAM]),  # far below that of an untrained model
        ([0.7, 0.4, 0.2], {"classes": RARE._replace(answered={"ham": 280, "spam": 20})}, BASELINE, None, []),
        *((losses, FAST, BASELINE, None, [("diverged: ", USUAL_RATE)])
          for losses in ([0.7, math.nan], HOT, [0.7, 0.75, 0.82, 0.9])),
        (HOT, {}, BASELINE, None, [("", {"finetune.learning_rate": USUAL / 10})]),
        ([1.5, 0.9, 0.3, 0.2], {}, BASELINE, None, []),  # a head that had learned other labels
        # Overfitting is a fitted training set without a score, or a held-out loss that rose.
        (FITTED, {"epochs": 20.0, "score": 50.0}, BASELINE, None, [("0.020, about 98% correct", HALF)]),
        (FITTED, {"score": 91.0}, ("accuracy",), None, []),  # a floor of 95 is not overfitting
        (LEARNED, {"epochs": 8.0, "held_out": ((20, 0.5), (40, 0.62), (80, 0.9))}, BASELINE, None,
         [("from 0.500 after update 20 to 0.900", {"finetune.epochs": 2.0})]),
        (LEARNED, {"held_out": ((20, 0.50), (40, 0.49), (80, 0.51))}, BASELINE, None, []),
        (LEARNED, {"classes": THREE}, ("macro_f1",), None, [
            ('"d", but 10 of 300', {"data.train_path": "FILE"}),
            ('never answers "c", the label of 40 of 300', {}),
        ]),
        # Too few examples are the reason only if nothing else is, and if more would show the gain.
        (LEARNED, {}, BASELINE, (5.33, 8.33), [(": about 740", DEV)]),  # 8.33 * sqrt(300 / 740) = 5.30
        (LEARNED, {}, BASELINE, (-1.0, 8.33), []),
        (LEARNED, {}, (*BASELINE, "accuracy"), (5.33, 8.33), []),
        # Nothing is advised where nothing was measured, or where the reason names what to run.
        (LEARNED, {}, ("accuracy",), None, []),
        ([], {"classes": None}, BASELINE, None, []),
        ([0.69], {"classes": None}, BASELINE, None, []),  # one window does not move
        (FLAT, {}, (*BASELINE, "data_mine"), None, []),
    ],
)  # fmt: skip
def test_what_was_measured_says_what_to_do(losses, facts, failed, gain, advice):
    interval = None if gain is None else ConfidenceInterval(gain[0], gain[0] - gain[1], gain[0] + gain[1])
    measured = TrainingFacts(losses, 10 * len(losses), **{**USUALLY, **facts})
    given = advise(measured, failed, interval, 300, "example")
    assert [piece.set for piece in given] == [values for _, values in advice]
    assert all(part in piece.text for piece, (part, _) in zip(given, advice, strict=True))


@pytest.mark.parametrize(
    ("lengths", "row_length", "share", "tokens", "length"),
    [
        ([10] * 99 + [30], 16, 0.01, 14 / 1020, 16),
        ([5, 600], 512, 0.5, 88 / 605, 512),
        ([16] * 1000 + [17] * 9, 16, 9 / 1009, 9 / (16_000 + 9 * 17), None),  # less than 1 %
    ],
)
def test_the_share_of_cut_texts_and_tokens_and_the_length_that_keeps_them(
    tmp_path, lengths, row_length, share, tokens, length
):
    cut = CutTexts(row_length)
    for part in np.array_split(np.array(lengths), 3):
        cut.add(part)
    cut.write(tmp_path)
    kept = CutTexts.read(tmp_path)
    assert (kept.share, kept.token_share) == (pytest.approx(share), pytest.approx(tokens))
    warning = kept.warn(positions=512)
    assert (CUT in warning, f"rows.row_length={length} leaves" in warning) == (length is not None,) * 2
    assert warning == "" or length is not None


def test_a_rejection_names_cut_texts_first():
    note = "train rows: 90 of 90 texts (100.0%) are longer than rows of 64 tokens"
    facts = TrainingFacts([0.7, 0.3], 10, 3.0, 1e-5, 1e-5)
    assert advise(facts, ["min_accuracy"], None, 40, "text", [note])[0].text == f"{note}."


def test_the_curves_that_the_gate_reads_are_its_dependencies():
    """Otherwise a worker may lack them, and a rejection says less there."""
    plots = [artifacts.PLOTS / "squad-finetune.csv", artifacts.held_out_plot("squad-finetune")]
    assert {str(path) for path in plots} <= set(whole_plan()["gate@squad"].deps)
