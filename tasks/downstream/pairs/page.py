"""Evaluation report of embeddings: scores, those by length, and the worst searches with what came first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipu_model.core.files import format_json
from tasks.downstream.pairs.params import BEFORE
from tasks.downstream.pairs.scores import Answer, PairsAnswers, PairsDevSet, PairsScores
from tasks.downstream.scoring.metrics import Array, Slice, label_ranges, slice_by
from tasks.downstream.scoring.report import WORST, EvaluationView, Report, page_values
from tasks.pages.render import render_html

_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (100, "21-100 words"))
PairsView = EvaluationView[PairsDevSet, PairsAnswers, Answer]


class PairsMistake(NamedTuple):
    """Anchor whose first text is not relevant, or pair with a wrong order."""

    id: str
    anchor: str
    expected: str
    first: str
    """Text that came first; empty for scored pairs."""
    rank: int | None
    """Rank of the first relevant text among those found; None: not found."""
    similarity: float
    margin: float | None
    probability: None = None


@dataclass(frozen=True)
class PairsReport(Report[PairsDevSet, NDArray[np.float32], PairsAnswers, Answer]):
    """Report with scores by length of the texts, and the worst searches."""

    scores: PairsScores
    compared_columns: ClassVar[tuple[str, ...]] = ("anchor",)

    def slices(
        self, split: str, examples: PairsDevSet, logits: NDArray[np.float32], answers: PairsAnswers, outcomes: Array
    ) -> Sequence[Slice]:
        texts = [examples.texts[relevant[0]] if relevant else "" for relevant in examples.relevant]
        slices: list[Slice] = []
        for by, measured in (("length of the anchor", examples.anchors), ("length of the positive", texts)):
            names, order = label_ranges([len(text.split()) for text in measured], _WORDS, "over 100 words")
            slices += slice_by(by, names, order, self.scores.metrics, split, outcomes)
        return slices

    def more_figures(self, view: PairsView) -> dict[str, object]:
        """Return the number of texts, and the scores of every baseline."""
        baselines = [
            {
                "name": baseline.name,
                **{name: round(x, 4) for name, x in self.scores.metrics.compute(baseline.outcomes).items()},
            }
            for baseline in view.baselines
        ]
        return {"texts": sum(len(dev_set.texts) for dev_set in view.examples.values()), "baselines": baselines}

    def more_files(self, view: PairsView) -> dict[str, str]:
        return {BEFORE: format_json(self.scores.before or {})}

    def mistakes(self, view: PairsView) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        return PairsMistake._fields, self._list_mistakes(view)

    def _list_mistakes(self, view: PairsView) -> list[PairsMistake]:
        """Return the mistakes, the worst first: not found, then by rank; of scored pairs the largest difference of
        ranks."""
        [(split, examples)] = view.examples.items()
        answers, outcomes = view.answers[split], view.outcomes[split]
        if self.scores.is_scored:
            ranks = np.argsort(np.argsort(outcomes, axis=0, kind="stable"), axis=0, kind="stable")
            order = np.argsort(-np.abs(ranks[:, 0] - ranks[:, 1]), kind="stable")
        else:
            order = np.lexsort((-answers.similarities[:, 0], outcomes[:, 2]))
            order = order[outcomes[order, 2] < 1]
        return [self._describe(number, examples, answers) for number in order.tolist()]

    def _describe(self, number: int, examples: PairsDevSet, answers: PairsAnswers) -> PairsMistake:
        relevant, ranked = examples.relevant[number], answers.found[number]
        expected, similarity = examples.texts[relevant[0]], float(answers.similarities[number, 0])
        shared = examples.names[number], examples.anchors[number], expected
        if not isinstance(ranked, list):
            return PairsMistake(*shared, f"{examples.targets[number]:g}", None, round(similarity, 6), None)
        rank = next((position for position, text in enumerate(ranked, 1) if text in relevant), None)
        margin = self.scores.margin(answers, number)
        return PairsMistake(*shared, examples.texts[ranked[0]], rank, round(similarity, 6), margin)

    def page(self, view: PairsView) -> str:
        mistakes = self._list_mistakes(view)
        return render_html(
            __file__,
            "pairs.html.j2",
            **page_values(self.scores, view, ""),
            mistakes=mistakes[:WORST],
            wrong=len(mistakes),
            is_scored=self.scores.is_scored,
        )
