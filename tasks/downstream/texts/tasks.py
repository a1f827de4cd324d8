"""What texts can be fine-tuned for, in one table: columns, classes, official metrics and files of each task.

The tasks of GLUE (arXiv 1804.07461): names of columns and classes are those of the Hub data set nyu-mll/glue, whose
class numbers count from 0 in the order given here; `tsv` has the header of the official downloads where it differs.
Metrics are those of the leaderboard; the score of a task is their mean, over both development sets where there are two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

TRAIN = "train"


class Example(NamedTuple):
    """One example."""

    first: str
    second: str | None
    """None where examples are single texts."""
    label: str | float
    """Name or number of the class, or the value of a regression."""
    id: str | None = None


@dataclass(frozen=True)
class TextTask:
    """One task: of GLUE, or of texts of one's own."""

    name: str
    """Of a task of GLUE; empty: texts of one's own."""
    title: str
    """As the papers call a task of GLUE, and the folder of its official download."""
    columns: tuple[str, ...]
    """One sentence, or the two of a pair; empty: the parameters say."""
    labels: tuple[str, ...]
    """Classes in order of their numbers; one name for the value of a regression; empty: the training examples say."""
    metrics: tuple[str, ...]
    """Names of metrics in metrics.py; the first leads."""
    tsv: tuple[str, ...] = ()
    """Sentence columns, then the label, in the header of the official files; `columns` and "label" where empty."""
    dev: tuple[tuple[str, str], ...] = (("dev", "validation"),)
    """Name of each development set, and of its split on the Hub."""
    limits: tuple[float, float] | None = None
    """Smallest and largest value of a regression, or number of a class; None: as `labels` count."""
    mean: str = "score"
    """What the mean of all metrics is called, over both development sets where there are two; empty: there is none."""
    examples: tuple[int, int] = (0, 0)
    """Training and development examples, as the card of nyu-mll/glue states them."""

    @property
    def is_regression(self) -> bool:
        """Whether labels are values, not classes."""
        return len(self.labels) == 1

    @property
    def answers(self) -> tuple[float, float]:
        """Smallest and largest number that an answer may be."""
        return self.limits or (0, len(self.labels) - 1)

    @property
    def splits(self) -> tuple[str, ...]:
        """train, then the development sets."""
        return (TRAIN, *(name for name, _ in self.dev))

    def hub_split(self, split: str) -> str:
        """The name of a split on the Hub."""
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

OWN_CLASSES = TextTask("", "classes of texts", (), (), ("accuracy", "macro_f1"), limits=(0, math.inf), mean="")
OWN_VALUES = TextTask(
    "", "values of texts", (), ("value",), ("pearson", "spearman"), limits=(-math.inf, math.inf), mean=""
)


def text_task(options: Mapping[str, Any]) -> TextTask:
    """Return what an entry fine-tunes for, by the parameters of its kind alone."""
    if "task" in options:
        return TASKS[options["task"]]
    return OWN_VALUES if options["regression"] else OWN_CLASSES
