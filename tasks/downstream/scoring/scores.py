"""How logits become answers, and what these score: what parity, evaluation, gate and release ask of a kind."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ipu_model.files import read_json
from tasks.downstream.scoring.metrics import Array, Metrics, Outcomes
from tasks.plan.kinds import DownstreamTask
from tasks.stage.errors import InputError

E = TypeVar("E")
"""The examples of a development set."""
L = TypeVar("L")
"""What a model computed for them."""
A = TypeVar("A")
"""Its answers, with all that follows from the logits."""


def keys_of(texts: Iterable[str]) -> list[str]:
    """A SHA-256 of each text; the first of equal ones, the second and so on have keys of their own."""
    seen: Counter[str] = Counter()
    keys = []
    for text in texts:
        keys.append(hashlib.sha256(json.dumps([text, seen[text]]).encode("ascii")).hexdigest())
        seen[text] += 1
    return keys


@dataclass(frozen=True)
class Limit:
    """What a gate demands of a metric."""

    metric: str
    floor: float | None
    floor_key: str
    """The parameter that states the floor, without its section."""
    most: float | None
    """Points below the released model that are tolerated; None: any."""
    most_key: str


class ScoresTask(DownstreamTask, Generic[E, L, A]):
    """From logits to scores of every example."""

    counted: ClassVar[str] = "examples"
    """What the metrics file calls the number of examples."""

    @property
    @abstractmethod
    def quantities(self) -> tuple[str, ...]:
        """Names of the columns of `outcomes`."""

    @property
    def given(self) -> int:
        """How many of them, the first ones, the examples state and not the model."""
        return 0

    def settle(self, root: Path) -> None:
        """Choose what answering needs beside the weights, from what lies in the checkout `root`.

        Raises:
            InputError: what it is chosen by is missing or damaged.
        """

    @abstractmethod
    def read_examples(self, path: Path) -> E:
        """A development set, in its order.

        Raises:
            InputError: missing, damaged or empty.
        """

    @abstractmethod
    def names(self, examples: E) -> Sequence[str]:
        """How people find each example."""

    @abstractmethod
    def keys(self, examples: E) -> list[str]:
        """A SHA-256 of each example: equal keys mean the very same one. No word of the example is in it."""

    @abstractmethod
    def read_logits(self, examples: E, rows: Path, logits: Path) -> L:
        """What the model computed for a development set.

        Args:
            rows: folder of its rows.
            logits: file that the prediction wrote.

        Raises:
            InputError: missing, damaged, or of other examples.
        """

    @abstractmethod
    def flat_logits(self, logits: L) -> tuple[Array, np.ndarray]:
        """All logits that count, in one order, and the number of the example that each belongs to."""

    @abstractmethod
    def answer(self, examples: E, logits: L) -> A:
        """The answers that follow."""

    @abstractmethod
    def predictions(self, answers: A) -> Sequence[Any]:
        """The bare answer to each example: what predictions.json holds and what is scored."""

    def margin(self, answers: A, number: int) -> float | None:
        """By how much the answer to example `number` leads the next other one; None: that is not known."""
        return None

    def confidences(self, answers: A) -> Sequence[float] | None:
        """The probability that the model states for each answer; None where it states none."""
        return None

    def right(self, outcomes: Array) -> Array:
        """1 or 0 for each example: whether the answer that `confidences` speak of is right."""
        found: Array = outcomes[:, 0]
        return found

    def predictions_json(self, examples: Mapping[str, E], predictions: Mapping[str, Sequence[Any]]) -> Any:
        """What predictions.json holds: by development set, the answers in order of its examples."""
        return {split: list(values) for split, values in predictions.items()}

    def read_predictions(self, path: Path, examples: Mapping[str, E]) -> dict[str, list[Any]]:
        """The answers of predictions.json to these examples; None where there is none.

        Raises:
            InputError: missing, damaged, or answers that the task does not allow.
        """
        try:
            values = read_json(path)
            return {split: self.check_predictions(path, split, one, values[split]) for split, one in examples.items()}
        except FileNotFoundError:
            raise InputError(f"{path} is not there; run the stage {self.entry.stage('evaluate')}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} holds no predictions of {', '.join(examples)} ({error!r})") from None

    def check_predictions(self, path: Path, split: str, examples: E, values: Any) -> list[Any]:
        """Return the answers to a development set from what predictions.json, the file `path`, holds of it.

        Raises:
            InputError: answers that the task does not allow, or another number of them.
            ValueError, TypeError: no list of answers at all.
        """
        return list(values)

    @abstractmethod
    def outcomes(self, examples: E, predictions: Sequence[Any]) -> Array:
        """[N, Q] of every example; the worst there are where the prediction is None."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """The official ones."""

    @property
    @abstractmethod
    def limits(self) -> tuple[Limit, ...]:
        """What the gate demands, the metric that leads first."""

    def limit_of(self, metric: str, floor_key: str, most_key: str) -> Limit:
        """Return what the gate's parameters of these names demand of a metric."""
        gate = self.entry.params.gate
        return Limit(metric, getattr(gate, floor_key), floor_key, getattr(gate, most_key), most_key)

    @property
    def confidence(self) -> float:
        """The confidence of the intervals that the gate decides by."""
        return self.entry.params.gate.confidence

    @abstractmethod
    def allows(self, quantities: Sequence[float]) -> bool:
        """Whether an answer can have these quantities, `given` ones left out."""

    @property
    def baseline(self) -> str:
        """What `constant` is of, in words."""
        return "the best constant answer"

    def choose_baseline(self, root: Path) -> dict[str, Any]:
        """Choose the baseline by the training examples of the checkout `root`, where that is what it is chosen by.

        Returns:
            What the metrics file keeps of the choice.
        """
        return {}

    def restore_baseline(self, metrics: Mapping[str, Any], path: Path) -> None:
        """Take the choice from the metrics, whose file is `path`.

        Raises:
            InputError: they do not state it.
        """

    def constant(self, examples: Mapping[str, E]) -> Outcomes | None:
        """Outcomes of the best answer that needs no model; None where there is none."""
        return None

    def read_all(self, root: Path = Path()) -> dict[str, E]:
        """Every development set of the checkout `root`.

        Raises:
            InputError: as `read_examples`.
        """
        return {split: self.read_examples(self.examples_file(split, root)) for split in self.development}

    def outcomes_of(self, examples: Mapping[str, E], predictions: Mapping[str, Sequence[Any]]) -> dict[str, Array]:
        """`outcomes` of every development set."""
        return {split: self.outcomes(one, predictions[split]) for split, one in examples.items()}

    def figures(self, examples: Mapping[str, E], outcomes: Outcomes) -> dict[str, float]:
        """Every official metric with its bounds, what the best constant answer has, and how many examples there are."""
        found = self.metrics.figures(outcomes)
        if (constant := self.constant(examples)) is not None:
            found["constant_score"] = round(self.metrics.of(constant)[self.limits[0].metric], 4)
        return {**found, self.counted: sum(map(len, outcomes.values()))}


Task = ScoresTask[Any, Any, Any]
"""An entry of any kind."""
