"""Evaluation report of question answering, a self-contained HTML page."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from tasks.downstream.scoring.metrics import Array, Slice, label_ranges, slice_by
from tasks.downstream.scoring.page_parts import count_confusions, plot_risk_coverage, sample_cells
from tasks.downstream.scoring.report import WORST, EvaluationView, Report, page_values
from tasks.downstream.scoring.thresholds import RiskCoverage, risk_coverage
from tasks.downstream.squad.answers import NULL_THRESHOLD, Answer, WindowFiles, odds_and_spans
from tasks.downstream.squad.questions import SquadQuestion
from tasks.downstream.squad.score_files import best_figures
from tasks.downstream.squad.scores import EXACT, OVERALL, OVERLAP, TITLE, SquadScores, has_answers
from tasks.pages.markup import csv_text
from tasks.pages.render import render_html

SHOWN_CANDIDATES = 3
AROUND = 110
"""Characters of context shown on either side of a marked answer."""
PROBABILITY = "The probability is that of the best answer among the n best."
BAR_TITLES = {"f1": "F1", "exact_match": "EM"}
KIND = "answer"
QUESTION_WORD, ANSWER_LENGTH, CONTEXT_LENGTH, WINDOWS = "question word", "answer length", "context length", "windows"
TITLES = 50
"""Maximum number of titles with a slice, those with the most questions."""
TITLE_QUESTIONS = 5
"""Minimum number of questions of a title with a slice."""
_WORDS = ("what", "which", "who", "when", "where", "why", "how many", "how", "other")
_FIRST_WORD = re.compile(r"\b(what|which|who|whom|whose|when|where|why|how (?:many|much)|how)\b")
_KINDS = ("with an answer", "without an answer")
_ANSWER_WORDS = ((0, "no answer"), (1, "1 word"), (3, "2-3 words"), (6, "4-6 words"))
_CONTEXT_WORDS = ((50, "up to 50 words"), (100, "51-100 words"), (200, "101-200 words"), (400, "201-400 words"))
_WINDOWS = ((1, "1 window"), (2, "2 windows"))


SquadView = EvaluationView[list[SquadQuestion], list[list[Answer]], str]


class SquadMistake(NamedTuple):
    """Question whose answer differs from all references."""

    question: SquadQuestion
    candidates: Sequence[Answer]
    """The n best answers; the first is the prediction."""
    f1: float

    @property
    def prediction(self) -> Answer:
        return self.candidates[0]


@dataclass(frozen=True)
class SquadReport(Report[list[SquadQuestion], WindowFiles, list[list[Answer]], str]):
    """Report with scores by kind of question, calibration, and the worst mistakes in context."""

    scores: SquadScores
    # A model trained on a context has an advantage on any question about it.
    compared_columns: ClassVar[tuple[str, ...]] = ("context",)

    def slices(
        self,
        split: str,
        examples: list[SquadQuestion],
        logits: WindowFiles,
        answers: list[list[Answer]],
        outcomes: Array,
    ) -> Sequence[Slice]:
        return slice_scores(examples, logits.windows_of_examples(), outcomes[:, [EXACT, OVERLAP]])

    def own_curve(
        self, examples: Mapping[str, list[SquadQuestion]], answers: Mapping[str, list[list[Answer]]]
    ) -> RiskCoverage | None:
        """Return the curve of the best spans by the odds of no answer, if questions may have none."""
        if not self.scores.nullable:
            return None
        [(split, questions)] = examples.items()
        odds, spans = odds_and_spans(answers[split])
        return risk_coverage(odds, self.scores.outcomes(questions, spans)[:, EXACT].tolist(), "null odds")

    def more_figures(self, view: SquadView) -> dict[str, object]:
        """Return the threshold, the scores of the best threshold, and the area under the risk-coverage curve."""
        if view.own_curve is None:
            return {}
        [(split, questions)] = view.examples.items()
        odds, spans = odds_and_spans(view.answers[split])
        exact, overlap = self.scores.outcomes(questions, spans)[:, [EXACT, OVERLAP]].T.tolist()
        return {
            **self.scores.threshold.record(NULL_THRESHOLD, self.scores.record),
            **best_figures(has_answers(questions), {"exact": exact, "f1": overlap}, odds, list(map(bool, spans))),
            "risk_coverage_area": round(view.own_curve.area, 6),
        }

    def page(self, view: SquadView) -> str:
        [(split, questions)] = view.examples.items()
        curve, values = view.own_curve, page_values(self.scores, view, PROBABILITY, BAR_TITLES)
        texts = view.predictions[split]
        withheld = [
            np.array(flags)
            for flags in ([not question.answers for question in questions], [not text for text in texts])
        ]
        if curve:
            values |= {
                "curve": curve,
                "curve_plot": plot_risk_coverage(curve, self.scores.threshold.value),
                "curve_file": True,
            }
        return render_html(
            __file__,
            "squad.html.j2",
            **values,
            own_curve=curve,
            answered=count_confusions(_KINDS, *withheld),
            cells=sample_cells(withheld, lambda number: (questions[number].id, questions[number].question)),
            mistakes=worst_mistakes(questions, view.answers[split], view.outcomes[split]),
            shown=WORST,
            shown_candidates=SHOWN_CANDIDATES,
            excerpt=lambda mistake: excerpt(mistake.question, mistake.prediction),
        )

    def mistakes(self, view: SquadView) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        [(split, questions)] = view.examples.items()
        answers, numbers = view.answers[split], {question.id: number for number, question in enumerate(questions)}
        rows = (
            (
                *(mistake.question.id, mistake.question.question, " | ".join(dict.fromkeys(mistake.question.texts))),
                *(mistake.prediction.text, round(100 * mistake.f1, 2), round(mistake.prediction.probability, 6)),
                self.scores.margin(answers, numbers[mistake.question.id]),
            )
            for mistake in worst_mistakes(questions, answers, view.outcomes[split])
        )
        return ("id", "question", "answers", "answer", "f1", "probability", "margin"), rows

    def more_files(self, view: SquadView) -> dict[str, str]:
        [(split, questions)] = view.examples.items()
        files = {"nbest.json": nbest_json(questions, view.answers[split])}
        if view.own_curve is not None:
            names = [question.id for question in questions]
            odds, spans = odds_and_spans(view.answers[split])
            files["risk-coverage.csv"] = csv_text(("coverage", "risk", "null_odds"), view.own_curve.points)
            files["null_odds.json"] = json.dumps(dict(zip(names, odds, strict=True)), indent=0) + "\n"
            files["spans.json"] = json.dumps(dict(zip(names, spans, strict=True)), indent=0, ensure_ascii=False) + "\n"
        return files


def nbest_json(questions: Sequence[SquadQuestion], answers: Sequence[Sequence[Answer]]) -> str:
    """Return {question id: [{"text", "start", "end", "score", "probability"}]}, one question per line.

    start and end are characters of the context; score is the sum of the two logits.
    """
    lines = []
    for question, ranked in zip(questions, answers, strict=True):
        records = [
            {**vars(answer), "score": round(answer.score, 4), "probability": round(answer.probability, 6)}
            for answer in ranked
        ]
        lines.append(f"{json.dumps(question.id, ensure_ascii=False)}: {json.dumps(records, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def worst_mistakes(
    questions: Sequence[SquadQuestion], answers: Sequence[Sequence[Answer]], outcomes: Array
) -> list[SquadMistake]:
    """Return the mistakes: lowest F1 first, then most confident first, then in order of the questions."""
    scores = outcomes[:, [EXACT, OVERLAP]].tolist()
    wrong = [
        SquadMistake(question, candidates, overlap)
        for question, candidates, (exact, overlap) in zip(questions, answers, scores, strict=True)
        if not exact
    ]
    return sorted(wrong, key=lambda mistake: (mistake.f1, -mistake.prediction.probability))


def excerpt(question: SquadQuestion, prediction: Answer) -> list[tuple[str, str]]:
    """Return the context around the first reference and the prediction in pieces: kind ("reference", "prediction",
    "both" or "" for neither) and text."""
    spans = []
    for text, start in question.answers[:1]:
        spans.append(("reference", start, start + len(text)))
    if prediction.end > prediction.start:
        spans.append(("prediction", prediction.start, prediction.end))
    context, shown_to = question.context, 0
    pieces: list[tuple[str, str]] = []
    for begin, end in _around(context, [(start, stop) for _, start, stop in spans]):
        pieces += [("", " … ")] if begin > shown_to else []
        pieces += _marked(context, begin, end, spans)
        shown_to = end
    return pieces + ([("", " …")] if shown_to < len(context) else [])


def _around(context: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of the context that show every span with its surroundings, cut between words, in order."""
    parts: list[tuple[int, int]] = []
    for start, end in sorted(spans or [(0, 0)]):
        begin, stop = max(0, start - AROUND), min(len(context), end + AROUND)
        begin = context.find(" ", begin, start) + 1 or begin if begin else 0
        cut = context.rfind(" ", end, stop) if stop < len(context) else stop
        stop = cut if cut > end else stop
        if parts and begin <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(parts[-1][1], stop))
        else:
            parts.append((begin, stop))
    return parts


def _marked(context: str, begin: int, end: int, spans: Sequence[tuple[str, int, int]]) -> list[tuple[str, str]]:
    borders = sorted({begin, end, *(x for _, *span in spans for x in span if begin < x < end)})
    pieces = []
    for left, right in zip(borders, borders[1:], strict=False):
        kinds = [kind for kind, start, stop in spans if start <= left and right <= stop]
        pieces.append(("both" if len(kinds) > 1 else "".join(kinds), context[left:right]))
    return pieces


def question_word(question: str) -> str:
    """Return the first question word: what, which, who, when, where, why, how many, how; else other.

    whom and whose count as who, how much as how many.
    """
    match = _FIRST_WORD.search(" ".join(question.lower().split()))
    if match is None:
        return "other"
    word = match.group(1)
    return {"whom": "who", "whose": "who", "how much": "how many"}.get(word, word)


def slice_scores(questions: Sequence[SquadQuestion], windows: Sequence[int], scores: Array) -> list[Slice]:
    """Return scores by answerability (if some questions have no answer), question word, length of the first reference
    answer, context length, number of windows, and title.

    Titles are sorted by F1, worst first; those with few questions are combined at the end. A single title is not a
    slice.

    Args:
        windows: number of windows (features) of each question.
        scores: exact match (0 or 1) and F1 (0 to 1) of each question, [N, 2].
    """
    kinds = [_KINDS[not question.answers] for question in questions]
    labels = {
        **({KIND: (kinds, _KINDS)} if _KINDS[1] in kinds else {}),
        QUESTION_WORD: ([question_word(q.question) for q in questions], _WORDS),
        ANSWER_LENGTH: label_ranges(
            [len("".join(q.texts[:1]).split()) for q in questions], _ANSWER_WORDS, "7 or more words"
        ),
        CONTEXT_LENGTH: label_ranges([len(q.context.split()) for q in questions], _CONTEXT_WORDS, "over 400 words"),
        WINDOWS: label_ranges(windows, _WINDOWS, "3 or more windows"),
    }
    slices = [part for by, (names, order) in labels.items() for part in _slices(by, names, order, scores)]
    return slices + _by_title([question.title for question in questions], scores)


def _by_title(titles: Sequence[str], scores: Array) -> list[Slice]:
    counts = Counter(titles)
    if len(counts) < 2:
        return []
    frequent = [name for name, count in counts.most_common(TITLES) if count >= TITLE_QUESTIONS]
    slices = [replace(part, slice=part.slice or "(no title)") for part in _slices(TITLE, titles, frequent, scores)]
    slices.sort(key=lambda part: (part.figures["f1"], part.slice))
    rest = f"{len(counts) - len(frequent):,} other titles"
    few = [title not in frequent for title in titles]
    return slices + _slices(TITLE, [rest] * sum(few), [rest], scores[few])


def _slices(by: str, names: Sequence[str], order: Sequence[str], scores: Array) -> list[Slice]:
    return slice_by(by, names, order, OVERALL, "dev", scores, counted="questions")
