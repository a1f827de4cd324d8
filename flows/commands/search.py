"""Search of `podium sweep --trials`: ranges of parameters, and the next values to try, which Optuna proposes.

A proposal depends only on the ranges, the seed and the trials before it. The record in runs/sweeps is therefore the
whole state of a search, and an interrupted search continues with the values that it would have tried.

TPE proposes values after a few random ones. A trial is stopped if it is worse than the median of the finished ones at
the same evaluation, which takes four of them; Hyperband divides the trials among brackets and needs dozens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")
RANDOM_TRIALS = 5
"""Trials with random values before TPE proposes some."""
TRIALS_TO_COMPARE = 4
"""Finished trials before one is stopped."""
FIRST_TO_COMPARE = 2
"""First evaluation after which a trial is stopped: at the one before, the learning rate has just been at its peak."""
EVALUATION_SHARE = 0.2
"""Share of the updates between evaluations in a search, unless an interval is set: trials that differ in the number of
updates are compared at equal shares."""
COMPLETE, PRUNED = "complete", "pruned"
"""States of a trial that is not repeated; `pruned` was stopped early. The others are running and failed."""


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included; floats on a log scale unless `low` is 0 or less."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


Space = Mapping[str, list[Any] | Range]
"""Parameter -> values to try. A range of int is one of integers."""


@dataclass
class Trial:
    """A trial of a search."""

    values: dict[str, Any]
    state: str = "running"
    scores: list[float] = field(default_factory=list)
    """Score after each evaluation; larger is better."""
    score: float | None = None
    """Score of the resulting weights; None unless complete."""
    held_out: dict[str, Any] | None = None
    """Metrics of these weights on held-out rows."""


def parse_range(text: str, kinds: Collection[Any]) -> Range | None:
    """Parse LOW..HIGH; return None if the text has another form.

    Args:
        text: value of an option.
        kinds: types of the parameter. A float gets integers only if both ends are integers from 1 on, as in 2..4.

    Raises:
        ValueError: the parameter is not a number, or the range is reversed.
    """
    match = RANGE.fullmatch(text)
    if match is None:
        return None
    if not {int, float} & set(kinds):
        raise ValueError(f"{text} is a range, but this parameter is not a number: set one value")
    low, high = map(float, match.groups())
    if low >= high:
        raise ValueError(f"{text} is not a range: its lower end comes first, as in 1e-5..1e-4")
    whole = not re.search(r"[.eE]", text.replace("..", "")) and (low >= 1 or float not in kinds)
    return Range(int(low), int(high)) if whole else Range(low, high)


class ProposedTrial:
    """Next trial of a search.

    Args:
        space: parameters and their distributions.
        seed: seed of the search.
        before: earlier trials.
        values: values of an interrupted trial; None: propose some.
    """

    def __init__(self, space: Space, seed: int, before: Sequence[Trial], values: dict[str, Any] | None = None) -> None:
        study = _make_study(space, before, seed + len(before))
        if values is not None:
            study.enqueue_trial(values)
        self._live = study.ask(_make_distributions(space))
        self.trial = Trial(dict(self._live.params))

    def is_hopeless(self, scores: Sequence[float]) -> bool:
        """Enter the scores of all evaluations so far, until one decides to stop the trial; return whether one does."""
        for score in scores[len(self.trial.scores) :]:
            self.trial.scores.append(score)
            self._live.report(score, len(self.trial.scores))
            if self._live.should_prune():
                return True
        return False


def _make_study(space: Space, trials: Sequence[Trial], seed: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed % 2**32)
    pruner = optuna.pruners.MedianPruner(TRIALS_TO_COMPARE, FIRST_TO_COMPARE)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                # A training that failed, as it diverged, counts as stopped: TPE avoids its values.
                state=getattr(optuna.trial.TrialState, "COMPLETE" if trial.state == COMPLETE else "PRUNED"),
                value=trial.score,
                params=trial.values,
                distributions=_make_distributions(space),
                intermediate_values=dict(enumerate(trial.scores, 1)),
            )
        )
    return study


def _make_distributions(space: Space) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def make(values: list[Any] | Range) -> BaseDistribution:
        if isinstance(values, list):
            return CategoricalDistribution(values)
        if isinstance(values.low, int):
            return IntDistribution(values.low, int(values.high))
        return FloatDistribution(values.low, values.high, log=values.low > 0)

    return {name: make(values) for name, values in space.items()}
