"""Results of an evaluation, and their report: what a kind states of it, and what all kinds share."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

import pyarrow as pa

from tasks.downstream.scoring.calibration import Calibration
from tasks.downstream.scoring.metrics import RATES, Array, Slice
from tasks.downstream.scoring.near_duplicates import NearDuplicateScores
from tasks.downstream.scoring.page_parts import group_bars, plot_reliability, plot_risk_coverage
from tasks.downstream.scoring.scores import A, Baseline, E, L, P, Scores
from tasks.downstream.scoring.thresholds import RiskCoverage
from tasks.stage import artifacts

WORST = 25
"""Mistakes on a page; mistakes.csv has all."""


@dataclass(frozen=True)
class EvaluationView(Generic[E, A, P]):
    """Results of an evaluation by development set, for its report and files."""

    examples: Mapping[str, E]
    answers: Mapping[str, A]
    predictions: Mapping[str, Sequence[P | None]]
    outcomes: Mapping[str, Array]
    slices: Sequence[Slice]
    calibrated: Calibration | None
    """Calibration of the answers' probabilities."""
    metrics: dict[str, Any]
    """Content of the metrics file."""
    note: str = ""
    """Remarks on the development set for users."""
    near: NearDuplicateScores | None = None
    """Near-duplicates of development examples in the training data; None if unknown."""
    curve: RiskCoverage | None = None
    """Risk and coverage by the answers' probabilities."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Head of the page: model and file; the date of `podium evaluate`."""
    own_curve: RiskCoverage | None = None
    """Risk and coverage by another doubt in the answers, if the kind has one."""
    baseline: str = ""
    """Name of the best baseline; empty: there are none."""
    baselines: Sequence[Baseline] = ()


@dataclass(frozen=True)
class Report(ABC, Generic[E, L, A, P]):
    """Report of an evaluation."""

    scores: Scores[E, L, A, P]
    compared_columns: ClassVar[tuple[str, ...]]
    """Columns of the text that development and training examples should not share."""

    def prepare(self, root: Path) -> Self:
        """Return the report with prepared scores, see `Scores.prepare`, and with what it needs of the checkout."""
        return replace(self, scores=self.scores.prepare(root))

    def compared_texts(self, batch: pa.RecordBatch) -> list[str]:
        """Return that text for each example of a batch with these columns."""
        [column] = self.compared_columns
        texts: list[str] = batch.column(column).to_pylist()
        return texts

    @abstractmethod
    def slices(self, split: str, examples: E, logits: L, answers: A, outcomes: Array) -> Sequence[Slice]:
        """Return scores by property of the examples."""

    def own_curve(self, examples: Mapping[str, E], answers: Mapping[str, A]) -> RiskCoverage | None:
        """Return risk and coverage by another doubt than the answers' probabilities; None: the kind has no other."""
        return None

    def more_figures(self, view: EvaluationView[E, A, P]) -> dict[str, object]:
        """Return additional figures of this kind that need more than the predictions."""
        return {}

    @abstractmethod
    def mistakes(self, view: EvaluationView[E, A, P]) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        """Return the columns and rows of mistakes.csv: every wrong answer, the worst first.

        All kinds have the columns id, probability (of the answer) and margin (see `Scores.margin`).
        """

    @abstractmethod
    def page(self, view: EvaluationView[E, A, P]) -> str:
        """Return the report as HTML."""

    def more_files(self, view: EvaluationView[E, A, P]) -> dict[str, str]:
        """Return file name -> text of additional files of the evaluation."""
        return {}


def page_values(
    scores: Scores[E, L, A, P],
    view: EvaluationView[E, A, P],
    probability: str,
    bar_titles: Mapping[str, str] | None = None,
    bar_notes: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the values of the page that all kinds share, for evaluation.html.j2.

    Args:
        probability: sentence on what an answer's probability is.
        bar_titles: metric -> short title next to the bars of slices, in this order; None: all metrics.
        bar_notes: name of a group -> its note next to its bar.
    """
    titles, about, task = scores.metrics.titles, view.about, scores.entry.params.title
    parts = {name: title for name, title in titles.items() if name != scores.metrics.mean}
    bar_titles = bar_titles or parts | {name: title for name, (title, *_) in RATES.items()}
    return {
        **{name: getattr(view, name) for name in ("metrics", "note", "near", "calibrated", "curve", "baseline")},
        "title": f"Evaluation of {about['Model']} on {about['File']}" if about else f"Evaluation: {task}",
        "about": {**about, "Task": task} if about else {},
        "titles": titles,
        "record": scores.record,
        "count": view.metrics.get(scores.counted),
        "bars": group_bars(view.slices, bar_titles),
        "bar_titles": bar_titles,
        "bar_notes": bar_notes or {},
        "probability": probability,
        "reliability_plot": view.calibrated and plot_reliability(view.calibrated),
        "curve_plot": view.curve and plot_risk_coverage(view.curve),
        "curve_file": False,
        "mistakes_file": artifacts.MISTAKES,
        "example_names": {split: scores.names(dev_set) for split, dev_set in view.examples.items()},
    }
