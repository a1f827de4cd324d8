"""The tasks of GLUE (arXiv 1804.07461): columns, classes, official metrics and files of each, in one table.

Names of columns and classes are those of the Hub data set nyu-mll/glue, whose class numbers count from 0 in the order
given here; `tsv` has the header of the official downloads where it differs. Metrics are those of the leaderboard; the
score of a task is their mean, over both development sets where there are two.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.strict import nearest
from tasks.project.errors import ParamsError

TRAIN = "train"


@dataclass(frozen=True)
class GlueTask:
    """One task."""

    name: str
    title: str
    """As the papers call it, and the folder of its official download."""
    columns: tuple[str, ...]
    """One sentence, or the two of a pair."""
    labels: tuple[str, ...]
    """Classes in order of their numbers; one name for the value of a regression."""
    metrics: tuple[str, ...]
    """Names of metrics in scores.py; the first leads."""
    tsv: tuple[str, ...] = ()
    """Sentence columns, then the label, in the header of the official files; `columns` and "label" where empty."""
    dev: tuple[tuple[str, str], ...] = (("dev", "validation"),)
    """Name of each development set, and of its split on the Hub."""
    limits: tuple[float, float] | None = None
    """Smallest and largest value of a regression."""

    @property
    def is_regression(self) -> bool:
        """Whether labels are values, not classes."""
        return len(self.labels) == 1

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
        GlueTask("cola", "CoLA", ("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation",)),
        GlueTask("sst2", "SST-2", ("sentence",), ("negative", "positive"), ("accuracy",)),
        GlueTask(
            "mrpc",
            "MRPC",
            PAIR,
            ("not_equivalent", "equivalent"),
            ("f1", "accuracy"),
            tsv=("#1 String", "#2 String", "Quality"),
        ),
        GlueTask(
            "stsb", "STS-B", PAIR, ("similarity",), ("pearson", "spearman"), tsv=(*PAIR, "score"), limits=(0.0, 5.0)
        ),
        GlueTask(
            "qqp",
            "QQP",
            ("question1", "question2"),
            ("not_duplicate", "duplicate"),
            ("f1", "accuracy"),
            tsv=("question1", "question2", "is_duplicate"),
        ),
        GlueTask(
            "mnli",
            "MNLI",
            ("premise", "hypothesis"),
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            tsv=(*PAIR, "gold_label"),
            dev=(("dev_matched", "validation_matched"), ("dev_mismatched", "validation_mismatched")),
        ),
        GlueTask("qnli", "QNLI", ("question", "sentence"), ENTAILMENT, ("accuracy",)),
        GlueTask("rte", "RTE", PAIR, ENTAILMENT, ("accuracy",)),
        GlueTask("wnli", "WNLI", PAIR, ("not_entailment", "entailment"), ("accuracy",)),
    )
}


def glue_task(name: str) -> GlueTask:
    """The task of that name.

    Raises:
        ParamsError: there is none; the nearest one is named.
    """
    if name not in TASKS:
        raise ParamsError(f"{name!r} is no task of GLUE{nearest(name, list(TASKS))}")
    return TASKS[name]
