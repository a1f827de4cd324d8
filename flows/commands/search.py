"""Search of `podium sweep --trials`: ranges of parameters, and the next values to try, which Optuna proposes.

A proposal depends only on the ranges, the seed and the trials before it. The record in runs/sweeps therefore is the
whole state of a search, and an interrupted search continues with the values that it would have tried.

TPE proposes values after a few random ones. The median of the finished trials decides which trial is stopped: it needs
four trials, while Hyperband divides its trials among brackets and needs dozens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\.\.({NUMBER})\s*")
RANDOM_TRIALS = 5
"""Trials with random values before TPE proposes some."""
TRIALS_TO_COMPARE = 4
"""Finished trials before one is stopped."""
EVALUATIONS_TO_KEEP = 1
"""Evaluations after which a trial is never stopped, as the learning rate still rises or has just peaked."""
EVALUATION_SHARE = 0.2
"""Share of the updates between evaluations in a search, if none is set: recipes with other numbers of updates are
compared at equal shares of their schedules."""
DIGITS = 4
"""Significant digits of proposed values."""
RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"
"""States of a trial. `pruned` was stopped early."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included: integers, or on a log scale unless `low` is 0 or negative."""

    low: float
    high: float
    whole: bool

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


Space = Mapping[str, Sequence[Any] | Range]
"""Name of a parameter -> values to try, or a range."""


@dataclass
class Trial:
    """A trial of a search."""

    values: dict[str, Any]
    state: str = RUNNING
    scores: list[float] = field(default_factory=list)
    """Score of each evaluation during the training; larger is better."""
    score: float | None = None
    """Score of the resulting weights; None unless complete."""


def parse_range(text: str, kinds: Collection[Any]) -> Range | None:
    """Parse LOW..HIGH; return None if the text has another form.

    Args:
        text: text of an option.
        kinds: types of the parameter. A float gets integers only if both ends are integers from 1 on, as in 2..4.

    Raises:
        ValueError: the ends are reversed, or the parameter is not a number.
    """
    match = RANGE.fullmatch(text)
    if match is None:
        return None
    if not {int, float} & set(kinds):
        raise ValueError(f"{text!r} is a range, but the parameter is not a number: set one value")
    integers = [int(end) for end in match.groups() if re.fullmatch(r"[-+]?\d+", end)]
    whole = len(integers) == 2 and (float not in kinds or min(integers) >= 1)
    low, high = integers if whole else map(float, match.groups())
    if not low < high:
        raise ValueError(f"{text!r} is not a range: write the lower end first, as in 1e-5..1e-4")
    return Range(low, high, whole)


class Proposal:
    """Next trial of a search, with an opinion on its scores.

    Args:
        space: parameters and their ranges.
        seed: seed of the search.
        before: all earlier trials.
        values: values of an interrupted trial; None: propose some.
    """

    def __init__(
        self, space: Space, seed: int, before: Sequence[Trial], values: Mapping[str, Any] | None = None
    ) -> None:
        study = _make_study(space, before, seed + len(before))
        if values is not None:
            study.enqueue_trial(dict(values))
        self._live = study.ask({name: _make_distribution(one) for name, one in space.items()})
        self.trial = Trial({name: _round(one, self._live.params[name]) for name, one in space.items()})

    def is_hopeless(self, scores: Sequence[float]) -> bool:
        """Enter the scores of all evaluations so far, up to the first that is worse than the median of the finished
        trials; return whether there is such a score."""
        for score in scores[len(self.trial.scores) :]:
            self.trial.scores.append(score)
            self._live.report(score, len(self.trial.scores))
            if self._live.should_prune():
                return True
        return False


def measure_importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the share of the score's variance that each parameter explains; empty for too few trials."""
    import optuna

    if len(space) < 2 or len({trial.score for trial in trials if trial.state == COMPLETE}) < TRIALS_TO_COMPARE:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(_make_study(space, trials), evaluator=evaluator)


def _make_study(space: Space, trials: Sequence[Trial], seed: int = 0) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed % 2**32)
    pruner = optuna.pruners.MedianPruner(TRIALS_TO_COMPARE, n_warmup_steps=EVALUATIONS_TO_KEEP + 1)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    states = {COMPLETE: optuna.trial.TrialState.COMPLETE, RUNNING: optuna.trial.TrialState.RUNNING}
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                # A training that diverged counts as one that was stopped: TPE then avoids its values.
                state=states.get(trial.state, optuna.trial.TrialState.PRUNED),
                value=trial.score,
                params=dict(trial.values),
                distributions={name: _make_distribution(one) for name, one in space.items()},
                intermediate_values=dict(enumerate(trial.scores, 1)),
            )
        )
    return study


def _make_distribution(values: Sequence[Any] | Range) -> optuna.distributions.BaseDistribution:
    import optuna

    if not isinstance(values, Range):
        return optuna.distributions.CategoricalDistribution(values)
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def _round(values: Sequence[Any] | Range, value: Any) -> Any:
    if not isinstance(values, Range) or values.whole:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), values.low), values.high)
