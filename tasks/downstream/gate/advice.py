"""Advice after a rejection: what to change next, from what training and evaluation measured.

There is no advice where the measurements do not tell: the reasons of the gate then stand alone.
"""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tasks.downstream.scoring.scores import ClassCounts
from tasks.downstream.scoring.significance import ConfidenceInterval

UNMOVED = 0.95
"""Share of the loss of an untrained model above which a training has not learned. Probabilities that give two classes
a loss of 5% below ln 2 are right for at most 63% of the examples."""
DIVERGED, SPIKE = 1.15, 1.25
"""Times the loss of an untrained model that the end of a training in order does not exceed, and no window of one that
has not learned. Means of windows vary by a few percent; a MiniLM at a rate of 1e-2 had 1.55 times, then 1.04."""
FAST = 10
"""Times the usual learning rate above which a loss that has not moved calls for a lower rate."""
FITTED = 0.15
"""Share of it below which the training examples are fitted: 90% probability of the right one of two classes."""
GAP_POINTS = 15.0
"""Points by which a fitted model must be better on training examples. Unseen texts always cost some points."""
RISEN = 1.1
"""Share of the lowest held-out loss above which a later one is worse, not noise."""
MAX_ADVICE = 2


class Advice(NamedTuple):
    """Sentence on what was measured and what to do, and the parameters of a run that does it."""

    text: str
    set: Mapping[str, object] = {}
    """Parameter of the entry -> value."""


@dataclass(frozen=True)
class TrainingFacts:
    """Measurements of a rejected model."""

    losses: Sequence[float]
    """Mean loss of each window of updates."""
    updates: int
    epochs: float
    learning_rate: float
    usual_rate: float
    """Default learning rate of the kind."""
    held_out: Sequence[tuple[int, float]] = ()
    """Update and loss of each evaluation on held-out examples; empty if the best weights were kept."""
    classes: ClassCounts | None = None
    score: float = math.nan
    """Leading metric in percent."""

    @property
    def untrained_loss(self) -> float:
        """Loss of a model that knows how frequent the classes are; without classes, the loss at the start."""
        counts = [] if self.classes is None else [count for count in self.classes.train.values() if count]
        if not counts:
            return self.losses[0] if len(self.losses) > 1 else math.nan
        return -sum(count / sum(counts) * math.log(count / sum(counts)) for count in counts)

    @property
    def highest_loss(self) -> float:
        """Loss that no training in order exceeds: that of equally probable classes, which most trainings start from."""
        return self.untrained_loss if self.classes is None else math.log(len(self.classes.train))


def advise(
    facts: TrainingFacts,
    failed: Collection[str],
    gain: ConfidenceInterval | None,
    examples: int,
    record: str,
    notes: Sequence[str] = (),
) -> list[Advice]:
    """Return what to do after a rejection, at most two points; empty if the measurements do not tell.

    Args:
        failed: names of the failed checks.
        gain: gain over the baseline; None: not checked.
        examples: number of development examples.
        record: name of one.
        notes: what the rows lack, which comes first.
    """
    dev = f"{examples:,} development {record}s"
    if any(name.startswith(("data_", "predictions_", "scores_belong")) for name in failed):
        return []  # those reasons name the stage to run, and its result may change the scores
    advice = [Advice(f"{note}.") for note in notes[:1]]
    advice += [item for item in (_judge_training(facts),) if item is not None]
    advice += _judge_classes(facts.classes, dev)
    if not advice and set(failed) == {"beats_constant_answer"} and gain is not None and gain.mean > 0:
        # the width of the interval shrinks with the square root of the number of examples
        needed = math.ceil(examples * ((gain.mean - gain.low) / gain.mean) ** 2 / 10 + 0.5) * 10
        text = f"The gain of {gain.mean:.2f} points is too small for {dev}: about {needed:,} would show it"
        advice.append(Advice(f"{text}. Use a larger development set.", {"data.dev_path": "FILE"}))
    return advice[:MAX_ADVICE]


def _judge_training(facts: TrainingFacts) -> Advice | None:
    losses, start = facts.losses, facts.untrained_loss
    lower_rate = {"finetune.learning_rate": min(facts.usual_rate, facts.learning_rate / 10)}
    if any(not math.isfinite(loss) for loss in losses):
        return Advice("The training diverged: its loss is not finite. Lower the learning rate.", lower_rate)
    if not losses or not start > 0:
        return None
    last = losses[-max(1, len(losses) // 4) :]
    end, share = sum(last) / len(last), sum(last) / len(last) / start
    if end > DIVERGED * facts.highest_loss or (share > UNMOVED and max(losses) > SPIKE * facts.highest_loss):
        text = f"its loss was up to {max(losses):.3f}, and that of an untrained model is {facts.highest_loss:.3f}"
        return Advice(f"The training diverged: {text}. Lower the learning rate.", lower_rate)
    if share > UNMOVED:
        known = "a model that only knows how frequent the labels are has" if facts.classes else "at the start it was"
        text = f"The training loss has hardly moved: {end:.3f} after {facts.updates} updates, {known} {start:.3f}."
        if facts.learning_rate > FAST * facts.usual_rate:
            return Advice(f"{text} Lower the learning rate.", lower_rate)
        slow = facts.learning_rate < facts.usual_rate / 2
        rate, epochs = {"finetune.learning_rate": facts.usual_rate}, {"finetune.epochs": round(4 * facts.epochs, 2)}
        return Advice(f"{text} Train more epochs or with a higher learning rate.", rate if slow else epochs)
    fewer = "Train fewer epochs or on more examples."
    best = min(facts.held_out, key=lambda point: point[1], default=(0, math.nan))
    if facts.held_out and facts.held_out[-1][1] > RISEN * best[1]:
        text = f"The held-out loss rose from {best[1]:.3f} after update {best[0]} to {facts.held_out[-1][1]:.3f}"
        epochs = {"finetune.epochs": max(0.1, round(facts.epochs * best[0] / max(1, facts.updates), 2))}
        return Advice(f"{text}: the model overfits. {fewer}", epochs)
    fitted = 100 * math.exp(-end)
    if facts.classes is not None and share < FITTED and fitted - facts.score > GAP_POINTS:
        text = f"The model overfits: its training loss is {end:.3f}, about {fitted:.0f}% correct, and its score is "
        return Advice(f"{text}{facts.score:.1f}. {fewer}", {"finetune.epochs": max(0.1, round(facts.epochs / 2, 2))})
    return None


def _judge_classes(counts: ClassCounts | None, dev: str) -> list[Advice]:
    if counts is None:
        return []
    absent = [name for name, count in counts.dev.items() if count and not counts.train.get(name)]
    never = [name for name in counts.dev if counts.dev[name] and not counts.answered.get(name) and name not in absent]
    advice = []
    for name in absent[:1]:
        text = f'No training example has the label "{name}", but {counts.dev[name]} of {dev} have.'
        advice.append(Advice(f"{text} Add examples of it, or correct the label.", {"data.train_path": "FILE"}))
    if len(answered := [name for name, count in counts.answered.items() if count]) == 1 and never:
        advice.append(Advice(f'The model answers "{answered[0]}" for all {dev}.'))
    elif never:
        text = f'The model never answers "{never[0]}", the label of {counts.dev[never[0]]} of {dev} and of '
        advice.append(Advice(f"{text}{counts.train[never[0]]:,} training examples. Add examples of it."))
    return advice


def read_losses(path: Path) -> list[tuple[int, float]]:
    """Return update and loss of each line of a curve; empty if there is no readable one."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [(int(line["step"]), float(line["loss"])) for line in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
