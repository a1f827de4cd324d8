"""Table of text tasks: columns, classes, official metrics and files.

GLUE tasks (arXiv 1804.07461) have the column and class names of the Hub data set nyu-mll/glue, whose class numbers
start at 0 in this order; `tsv` is the header of the official downloads, if it differs. Metrics are those of the
leaderboard; the score of a task is their mean, over both development sets if there are two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

TRAIN = "train"


class TextExample(NamedTuple):
    """Labelled text or pair of texts."""

    first: str
    second: str | None
    """None for single texts."""
    label: str | float | list[str]
    """Name or number of the class, value of a regression, or names of all labels."""
    id: str | None = None


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
    tsv: tuple[str, ...] = ()
    """Header of the official files: sentence columns, then label; empty: `columns` and "label"."""
    dev: tuple[tuple[str, str], ...] = (("dev", "validation"),)
    """Name of each development set and of its split on the Hub."""
    limits: tuple[float, float] | None = None
    """Smallest and largest value or class number; None: derived from `labels`."""
    is_multilabel: bool = False
    """True if an example has any number of labels, also none."""
    mean: str = "score"
    """Name of the mean of all metrics, over both development sets if there are two; empty: none."""
    examples: tuple[int, int] = (0, 0)
    """Number of training and development examples, from the card of nyu-mll/glue."""

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

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of train and the development sets."""
        return (TRAIN, *(name for name, _ in self.dev))

    def hub_split(self, split: str) -> str:
        """Return the name of a split on the Hub."""
        return dict(self.dev).get(split, split)


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    task.name: task
    for task in (
        TextTask(
            "cola",
            "CoLA",
            ("sentence",),
            ("unacceptable", "acceptable"),
            ("matthews_correlation",),
            examples=(8_551, 1_043),
        ),
        TextTask("sst2", "SST-2", ("sentence",), ("negative", "positive"), ("accuracy",), examples=(67_349, 872)),
        TextTask(
            "mrpc",
            "MRPC",
            PAIR,
            ("not_equivalent", "equivalent"),
            ("f1", "accuracy"),
            tsv=("#1 String", "#2 String", "Quality"),
            examples=(3_668, 408),
        ),
        TextTask(
            "stsb",
            "STS-B",
            PAIR,
            ("similarity",),
            ("pearson", "spearman"),
            tsv=(*PAIR, "score"),
            limits=(0.0, 5.0),
            examples=(5_749, 1_500),
        ),
        TextTask(
            "qqp",
            "QQP",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            ("f1", "accuracy"),
            tsv=("question1", "question2", "is_duplicate"),
            examples=(363_846, 40_430),
        ),
        TextTask(
            "mnli",
            "MNLI",
            ("premise", "hypothesis"),
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            tsv=(*PAIR, "gold_label"),
            dev=(("dev_matched", "validation_matched"), ("dev_mismatched", "validation_mismatched")),
            examples=(392_702, 19_647),
        ),
        TextTask("qnli", "QNLI", ("question", "sentence"), ENTAILMENT, ("accuracy",), examples=(104_743, 5_463)),
        TextTask("rte", "RTE", PAIR, ENTAILMENT, ("accuracy",), examples=(2_490, 277)),
        TextTask("wnli", "WNLI", PAIR, ("not_entailment", "entailment"), ("accuracy",), examples=(635, 71)),
    )
}

OWN_CLASSES = TextTask("", "text classification", (), (), ("accuracy", "macro_f1"), limits=(0, math.inf), mean="")
OWN_LABELS = TextTask(
    "",
    "multi-label classification",
    (),
    (),
    ("micro_f1", "macro_f1"),
    limits=(0, math.inf),
    mean="",
    is_multilabel=True,
)
OWN_VALUES = TextTask(
    "", "text regression", (), ("value",), ("pearson", "spearman"), limits=(-math.inf, math.inf), mean=""
)
OWN_TASKS = {"classes": OWN_CLASSES, "several labels": OWN_LABELS, "values": OWN_VALUES}
"""Tasks on your own texts, by what their labels are."""


def text_task(options: Mapping[str, Any]) -> TextTask:
    """Return the task of an entry from the parameters of its kind."""
    if "task" in options:
        return TASKS[options["task"]]
    return OWN_VALUES if options["regression"] else OWN_LABELS if options["multilabel"] else OWN_CLASSES
