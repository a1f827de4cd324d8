"""Table of text tasks: columns, classes, official metrics and files.

GLUE tasks (arXiv 1804.07461) have the column and class names of the Hub data set nyu-mll/glue, whose class numbers
start at 0 in this order. Metrics are those of the
leaderboard; the score of a task is their mean, over both development sets if there are two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TextExample(NamedTuple):
    """Labelled text or pair of texts."""

    first: str
    second: str | None
    """None for single texts."""
    label: str | float | list[str]
    """Name or number of the class, value of a regression, or names of all labels."""
    id: str
    """Id of its record, or the position of it."""
    kept: Mapping[str, object] = {}
    """Column -> label, in a file to predict."""


@dataclass(frozen=True)
class TextTask:
    """GLUE task, or task on your own texts."""

    name: str
    """Name of the GLUE task; empty for your own texts."""
    title: str
    """Official name of a GLUE task, also the folder of its download."""
    columns: tuple[str, ...]
    """Columns of the sentence, or of both sentences of a pair; empty: set by parameters."""
    labels: tuple[str, ...]
    """Class names by number; one name for a regression; empty: defined by the training examples."""
    metrics: tuple[str, ...]
    """Names of metrics in metrics.py, the leading one first."""
    examples: tuple[int, int] = (0, 0)
    """Number of training and development examples, from the card of nyu-mll/glue."""
    limits: tuple[float, float] | None = None
    """Smallest and largest value or class number; None: derived from `labels`."""
    is_multilabel: bool = False
    """True if an example has any number of labels, also none."""
    dev: tuple[tuple[str, str], ...] = (("dev", "validation"),)
    """Name of each development set and of its split on the Hub."""

    @property
    def is_regression(self) -> bool:
        """True if labels are values, not classes."""
        return len(self.labels) == 1

    @property
    def answers(self) -> tuple[float, float]:
        """Smallest and largest valid answer."""
        return self.limits or (0, len(self.labels) - 1)

    @property
    def floors(self) -> tuple[str, ...]:
        """Parameters of the gate that are floors of the task's metrics."""
        return ("min_score",) if self.name else tuple(f"min_{metric}" for metric in self.metrics)

    def metric_names(self, split: str) -> dict[str, str]:
        """Return metric -> name in the metrics file, with the development set if there are several."""
        suffix = "" if len(self.dev) == 1 else f"_{split.removeprefix('dev_')}"
        return {name: f"{name}{suffix}" for name in self.metrics}

    def hub_split(self, split: str) -> str:
        """Return the name of a split on the Hub."""
        return dict(self.dev).get(split, split)


SINGLE, PAIR = ("sentence",), ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
ACCURACY, F1 = ("accuracy",), ("f1", "accuracy")
MNLI_DEV = (("dev_matched", "validation_matched"), ("dev_mismatched", "validation_mismatched"))
GLUE = (
    TextTask("cola", "CoLA", SINGLE, ("unacceptable", "acceptable"), ("matthews_correlation",), (8_551, 1_043)),
    TextTask("sst2", "SST-2", SINGLE, ("negative", "positive"), ACCURACY, (67_349, 872)),
    TextTask("mrpc", "MRPC", PAIR, ("not_equivalent", "equivalent"), F1, (3_668, 408)),
    TextTask("stsb", "STS-B", PAIR, ("similarity",), ("pearson", "spearman"), (5_749, 1_500), (0.0, 5.0)),
    TextTask("qqp", "QQP", ("question1", "question2"), ("not_duplicate", "duplicate"), F1, (363_846, 40_430)),
    TextTask("mnli", "MNLI", ("premise", "hypothesis"), NLI, ACCURACY, (392_702, 19_647), dev=MNLI_DEV),
    TextTask("qnli", "QNLI", ("question", "sentence"), ENTAILMENT, ACCURACY, (104_743, 5_463)),
    TextTask("rte", "RTE", PAIR, ENTAILMENT, ACCURACY, (2_490, 277)),
    TextTask("wnli", "WNLI", PAIR, ENTAILMENT[::-1], ACCURACY, (635, 71)),
)
TASKS = {task.name: task for task in GLUE}
OFFICIAL_COLUMNS = {
    "mrpc": ("#1 String", "#2 String", "Quality"),
    "stsb": (*PAIR, "score"),
    "qqp": ("question1", "question2", "is_duplicate"),
    "mnli": (*PAIR, "gold_label"),
}
"""Task -> columns of the sentences and the label in the official downloads, where they differ from the Hub's."""
ANY_CLASS, ANY_VALUE = (0.0, math.inf), (-math.inf, math.inf)
OWN_CLASSES = TextTask("", "text classification", (), (), ("accuracy", "macro_f1"), limits=ANY_CLASS)
OWN_LABELS = TextTask("", "multi-label classification", (), (), ("micro_f1", "macro_f1"), (0, 0), ANY_CLASS, True)
OWN_VALUES = TextTask("", "text regression", (), ("value",), ("pearson", "spearman"), limits=ANY_VALUE)
OWN_TASKS = (OWN_CLASSES, OWN_LABELS, OWN_VALUES)


def text_task(options: Mapping[str, Any]) -> TextTask:
    """Return the task of an entry from the parameters of its kind."""
    if "task" in options:
        return TASKS[options["task"]]
    return OWN_VALUES if options["regression"] else OWN_LABELS if options["multilabel"] else OWN_CLASSES
