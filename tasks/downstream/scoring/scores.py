"""Decoding and scoring of one kind of task, used by parity, evaluation, gate and release."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from ipu_model.core.files import read_json
from tasks.downstream.scoring.metrics import Array, Metrics, Outcomes
from tasks.params.entries import Entry
from tasks.stage import artifacts
from tasks.stage.errors import InputError

E = TypeVar("E")
"""Examples of a development set."""
L = TypeVar("L")
"""Logits of the examples."""
A = TypeVar("A")
"""Answers decoded from the logits."""
P = TypeVar("P")
"""Plain answer to an example, as predictions.json stores it."""


def hash_texts(texts: Iterable[str]) -> list[str]:
    """Return a SHA-256 key of each text; repeated texts get different keys."""
    seen: Counter[str] = Counter()
    keys = []
    for text in texts:
        keys.append(hashlib.sha256(json.dumps([text, seen[text]]).encode("ascii")).hexdigest())
        seen[text] += 1
    return keys


class ClassCounts(NamedTuple):
    """Number of examples by class name."""

    train: Mapping[str, int]
    dev: Mapping[str, int]
    answered: Mapping[str, int]


@dataclass(frozen=True)
class Limit:
    """Requirements of the gate for a metric."""

    metric: str
    floor: float | None
    floor_key: str
    """Name of the floor's parameter, without its section."""
    tolerated: float | None
    """Tolerated drop in points against the released model; None: any."""
    tolerated_key: str


@dataclass(frozen=True)
class Baseline:
    """Best answers without a model."""

    name: str
    outcomes: Outcomes


BASELINE = "baseline"
"""Key of the baseline's rule in the metrics file."""
AGAINST = "against"
"""Key of the comparison with another entry in the metrics file."""


@dataclass(frozen=True)
class Scores(ABC, Generic[E, L, A, P]):
    """Decoding of logits and scoring of every example."""

    entry: Entry
    counted: ClassVar[str] = "examples"
    """Key of the number of examples in the metrics file."""
    private_slices: ClassVar[tuple[str, ...]] = ()
    """Properties of slices whose values are the user's text."""

    @property
    @abstractmethod
    def quantities(self) -> tuple[str, ...]:
        """Names of the columns of `outcomes`; () if they depend on the examples, which are not known."""

    @property
    def known_quantities(self) -> int:
        """Number of leading quantities that are known from the examples alone."""
        return 0

    def prepare(self, root: Path) -> Self:
        """Return the scores with settings for decoding from files of the checkout `root`, if the kind needs any.

        Raises:
            InputError: a file is missing or damaged.
        """
        return self

    @abstractmethod
    def read_examples(self, path: Path) -> E:
        """Read a development set, in order.

        Raises:
            InputError: the file is missing, damaged or empty.
        """

    @abstractmethod
    def names(self, examples: E) -> Sequence[str]:
        """Return names of the examples for users."""

    @abstractmethod
    def keys(self, examples: E) -> list[str]:
        """Return a SHA-256 of each example; equal keys mean equal examples. Keys reveal no text."""

    @abstractmethod
    def read_logits(self, examples: E, rows: Path, logits: Path) -> L:
        """Read the logits of a development set.

        Raises:
            InputError: a file is missing, damaged, or of other examples.
        """

    def read_split(self, split: str, root: Path = Path(), predicted: str = "") -> tuple[E, L]:
        """Read a development set of the checkout `root` and its logits, or those that `predicted` names; raises the
        errors of `read_examples` and `read_logits`."""
        examples = self.read_examples(self.entry.examples_file(split, root))
        logits = root / artifacts.logits_file(self.entry.name, predicted or split)
        return examples, self.read_logits(examples, self.entry.rows_folder(split, root), logits)

    @abstractmethod
    def flat_logits(self, logits: L) -> tuple[Array, np.ndarray]:
        """Return all relevant logits in a fixed order, and the example number of each."""

    @abstractmethod
    def answer(self, examples: E, logits: L) -> A:
        """Return the answers decoded from the logits."""

    @abstractmethod
    def predictions(self, answers: A) -> Sequence[P]:
        """Return the plain answer to each example, as scored and as stored in predictions.json."""

    def margin(self, answers: A, number: int) -> float | None:
        """Return the lead of the answer to example `number` over the runner-up; None if unknown."""
        return None

    def scaled_confidences(self, answers: A) -> Callable[[float], Array] | None:
        """Return a function of a temperature that returns the model's probability of each answer if all logits are
        divided by it; None if there are no probabilities."""
        return None

    def correctness(self, examples: E, answers: A, outcomes: Array) -> Array:
        """Return 1 or 0 for each answer of `scaled_confidences`: 1 if it is correct."""
        return outcomes[:, 0]

    def predictions_json(self, examples: Mapping[str, E], predictions: Mapping[str, Sequence[P | None]]) -> object:
        """Return the content of predictions.json: the answers by development set, in order of the examples."""
        return {split: list(values) for split, values in predictions.items()}

    def read_predictions(self, path: Path, examples: Mapping[str, E]) -> dict[str, list[P | None]]:
        """Read the answers to these examples from predictions.json, None for examples without one.

        Raises:
            InputError: the file is missing or damaged, or has invalid answers.
        """
        try:
            values = read_json(path)
            return {
                split: self.check_predictions(path, split, dev_set, values[split])
                for split, dev_set in examples.items()
            }
        except FileNotFoundError:
            raise InputError(f"{path} not found. Run the stage {self.entry.stage('evaluate')}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} has no predictions for {', '.join(examples)} ({error!r})") from None

    def check_predictions(self, path: Path, split: str, examples: E, values: Any) -> list[P | None]:
        """Check and return the answers to a development set, read from predictions.json at `path`.

        Raises:
            InputError: invalid answers, or a wrong number of answers.
            ValueError, TypeError: not a list of answers.
        """
        return list(values)

    @abstractmethod
    def outcomes(self, examples: E, predictions: Sequence[P | None]) -> Array:
        """Return the quantities [N, Q] of every example; the worst values if the prediction is None."""

    @property
    @abstractmethod
    def metrics(self) -> Metrics:
        """Official metrics."""

    @property
    @abstractmethod
    def limits(self) -> tuple[Limit, ...]:
        """Requirements of the gate, the leading metric first."""

    def make_limit(self, metric: str, floor_key: str, most_key: str) -> Limit:
        """Return the requirements for a metric from the gate's parameters of these names."""
        gate = self.entry.params.gate
        return Limit(metric, getattr(gate, floor_key), floor_key, getattr(gate, most_key), most_key)

    @property
    def record(self) -> str:
        """Name of one example in messages."""
        return self.entry.record

    @property
    def confidence(self) -> float:
        """Confidence level of the gate's intervals."""
        return self.entry.params.gate.confidence

    @abstractmethod
    def is_possible(self, quantities: Sequence[float]) -> bool:
        """Return True if an answer can have these quantities (without the `known_quantities` ones)."""

    def choose_rule(self, root: Path) -> str:
        """Return the rule of the baseline, chosen on the training examples of `root`; empty: there is no choice."""
        return ""

    def read_rule(self, metrics: Mapping[str, object], path: Path) -> str:
        """Return the rule that the metrics file `path` records.

        Raises:
            InputError: the file does not record it.
        """
        return ""

    @abstractmethod
    def baselines(self, examples: Mapping[str, E], rule: str = "") -> list[Baseline]:
        """Return the answers that the model must beat, with the chosen rule."""

    def best_of(self, baselines: Sequence[Baseline]) -> Baseline | None:
        """Return the baseline with the best leading metric; None if there are none."""
        lead = self.limits[0].metric
        return max(baselines, key=lambda baseline: self.metrics.compute(baseline.outcomes)[lead], default=None)

    def baseline(self, examples: Mapping[str, E], rule: str = "") -> Baseline | None:
        """Return the best of `baselines`."""
        return self.best_of(self.baselines(examples, rule))

    def count_classes(
        self, examples: Mapping[str, E], predictions: Mapping[str, Sequence[P | None]], root: Path
    ) -> ClassCounts | None:
        """Return how often each class occurs in the training examples, the development sets and the predictions.

        Returns:
            None if an answer is not one class, or there are no training examples.
        """
        return None

    def verify_decisions(
        self, metrics: Mapping[str, object], predictions: Mapping[str, Sequence[P | None]], root: Path
    ) -> None:
        """Check that predictions follow from the settings in the metrics file, in the checkout `root`.

        Raises:
            InputError: they do not, or a file is missing.
        """

    def settings(self, metrics: Mapping[str, object]) -> dict[str, object]:
        """Return settings that inference needs in addition to weights and tokenizer, for podium.json of the release."""
        return {}

    def released_metrics(self, metrics: Mapping[str, Any]) -> dict[str, object]:
        """Return the metrics without text of the user: without types or labels that the model does not know."""
        slices = [row for row in metrics.get("slices", []) if row.get("learnt", True)]
        return {**metrics, "slices": [row for row in slices if row.get("by") not in self.private_slices]}

    def know_labels(self, root: Path) -> Self:
        """Return the scores with the classes of the examples in the checkout `root`, if metrics need them."""
        return self

    def read_all(self, root: Path = Path()) -> tuple[Self, dict[str, E]]:
        """Read every development set of the checkout `root`, after `know_labels`; raises the errors of
        `read_examples`."""
        files = {split: self.entry.examples_file(split, root) for split in self.entry.development}
        return self.know_labels(root), {split: self.read_examples(path) for split, path in files.items()}

    def outcomes_of(self, examples: Mapping[str, E], predictions: Mapping[str, Sequence[P | None]]) -> dict[str, Array]:
        """Return `outcomes` of every development set."""
        return {split: self.outcomes(dev_set, predictions[split]) for split, dev_set in examples.items()}

    def figures(self, outcomes: Outcomes, baseline: Baseline | None) -> dict[str, float]:
        """Return every official metric with its interval, the score of the baseline, and the number of examples."""
        figures = self.metrics.figures(outcomes)
        if baseline is not None:
            figures["constant_score"] = round(self.metrics.compute(baseline.outcomes)[self.limits[0].metric], 4)
        return {**figures, self.counted: sum(map(len, outcomes.values()))}
