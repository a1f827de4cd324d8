"""Decoding and scoring of questions, by the official script of SQuAD v1.1, or 2.0 if questions may have no answer."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metric, Metrics, Outcomes, mean_metric, ratio_metric, unit_extremes
from tasks.downstream.scoring.scores import BASELINE, Baseline, Limit, Scores
from tasks.downstream.scoring.thresholds import ChosenThreshold
from tasks.downstream.squad.answers import (
    NULL_THRESHOLD,
    Answer,
    SquadWindows,
    WindowFiles,
    best_answers,
    choose_null_threshold,
    null_scores,
    odds_and_spans,
    rank_with_null,
)
from tasks.downstream.squad.params import SquadParams
from tasks.downstream.squad.questions import SquadQuestion, read_questions
from tasks.downstream.squad.score_files import exact_match, f1, figures_v2, read_predictions
from tasks.params.entries import TRAIN
from tasks.stage import artifacts
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import InputError

TITLE = "title"
"""Property of slices by the title of a context."""
EXACT, OVERLAP = -2, -1
"""Last columns of outcomes."""
F1 = mean_metric("f1", "F1", OVERLAP)
OVERALL = Metrics((F1, mean_metric("exact_match", "exact match", EXACT, is_share=True)))
"""Metrics of F1 and exact match of every question."""
HAS_ANSWER = 0
"""First column of outcomes, if questions may have no answer."""
MOST_QUESTIONS = 5_000
"""Maximum number of training questions, evenly spread, that select the baseline rule."""
_POSITION = re.compile(r"(?:line|row) [0-9]+|(?:data)?\[[0-9]+\]")
"""Id of a question that has none in its file."""
_WORD = re.compile(r"\S+")
_SENTENCE = re.compile(r".+?[.!?。！？](?=\s|$|[^\x00-\x7f])", re.DOTALL)


def _take_words(count: int) -> Callable[[str], str]:
    def take(context: str) -> str:
        words = [match.span() for match, _ in zip(_WORD.finditer(context), range(count), strict=False)]
        return context[words[0][0] : words[-1][1]] if words else ""

    return take


RULES: Mapping[str, Callable[[str], str]] = {
    "the first word of the context": _take_words(1),
    **{f"the first {count} words of the context": _take_words(count) for count in (2, 3, 5, 8, 12, 20)},
    "the first sentence of the context": lambda context: (_SENTENCE.match(context) or [context])[0],
    "the whole context": str,
}
"""Name of a baseline rule -> its answer for a context."""


def choose_rule(questions: Sequence[SquadQuestion]) -> str:
    """Return the name of the rule with the best F1, the first of equally good ones."""
    answered = [question for question in questions if question.answers]

    def score(rule: str) -> float:
        return sum(f1(RULES[rule](question.context), question.texts) for question in answered)

    return max(RULES, key=score)


@dataclass(frozen=True)
class SquadScores(Scores[list[SquadQuestion], WindowFiles, list[list[Answer]], str]):
    """Spans with the largest sum of logits, scored by exact match and F1."""

    counted: ClassVar[str] = "total"
    private_slices: ClassVar[tuple[str, ...]] = (TITLE,)
    chosen: ChosenThreshold | None = None
    """No-answer threshold that held-out questions chose."""
    answered: bool = True
    """Refuse questions without an answer, unless the parameters allow them."""

    @property
    def params(self) -> SquadParams:
        return self.entry.params_as(SquadParams)

    @property
    def nullable(self) -> bool:
        """True if a context may have no answer, as in SQuAD 2.0."""
        return self.params.nullable

    @property
    def threshold(self) -> ChosenThreshold:
        """No-answer threshold, if questions may have no answer; BERT's until `prepare` chooses one."""
        setting = self.params.evaluate.null_threshold
        return self.chosen or ChosenThreshold(0.0 if setting == "auto" else setting)

    @property
    def quantities(self) -> tuple[str, ...]:
        return (*(["has_answer"] if self.nullable else []), "exact", "f1")

    @property
    def known_quantities(self) -> int:
        return int(self.nullable)

    def prepare(self, root: Path) -> Self:
        """Choose the no-answer threshold on held-out training questions, unless it is set."""
        if not self.nullable or self.params.evaluate.null_threshold != "auto":
            return self
        rows, computed = self.entry.rows_folder(HELD_OUT, root), root / artifacts.logits_file(self.entry.name, HELD_OUT)
        names = FeatureFiles(rows / artifacts.FEATURES, computed, self.entry.stage).read_numbers("example_id")
        questions = read_questions(self.entry.examples_file(TRAIN, root), names["example_id"].tolist())
        answers = self.answer(questions, self.read_logits(questions, rows, computed))
        odds, spans = odds_and_spans(answers)
        overlap = self.outcomes(questions, spans)[:, OVERLAP].tolist()
        return replace(self, chosen=choose_null_threshold(odds, overlap, has_answers(questions)))

    def read_examples(self, path: Path) -> list[SquadQuestion]:
        questions = read_questions(path)
        bare = next((question.id for question in questions if not question.answers), None)
        if bare is not None and self.answered and not self.nullable:
            raise InputError(
                f"{path}: question {bare!r} has no answer, but {self.entry.key('data', 'unanswerable')} is not use. "
                f"Run {self.entry.stage('examples')} again"
            )
        return questions

    def names(self, examples: list[SquadQuestion]) -> Sequence[str]:
        return [question.id for question in examples]

    def keys(self, examples: list[SquadQuestion]) -> list[str]:
        """Return hashes of id, unless it is a position that other files may differ in, question, context and reference
        answers."""
        parts = [
            [
                "" if _POSITION.fullmatch(question.id) else question.id,
                question.question,
                question.context,
                list(question.texts),
            ]
            for question in examples
        ]
        return [hashlib.sha256(json.dumps(part).encode("ascii")).hexdigest() for part in parts]

    def read_logits(self, examples: list[SquadQuestion], rows: Path, logits: Path) -> WindowFiles:
        ids = [question.id for question in examples]
        return WindowFiles(rows / artifacts.FEATURES, logits, self.entry.stage, ids)

    def flat_logits(self, logits: WindowFiles) -> tuple[Array, np.ndarray]:
        return flat_logits(logits.read())

    def answer(self, examples: list[SquadQuestion], logits: WindowFiles) -> list[list[Answer]]:
        params, answers = self.params.evaluate, []
        for part, windows in logits.parts():
            contexts = [question.context for question in examples[part]]
            ranked = best_answers(windows, contexts, n_best=params.n_best, max_answer_length=params.max_answer_length)
            if self.nullable:
                nulls = null_scores(windows, len(contexts)).tolist()
                ranked = [
                    rank_with_null(spans, null, self.threshold.value) for spans, null in zip(ranked, nulls, strict=True)
                ]
            answers += ranked
        return answers

    def predictions(self, answers: list[list[Answer]]) -> Sequence[str]:
        return [candidates[0].text for candidates in answers]

    def margin(self, answers: list[list[Answer]], number: int) -> float | None:
        """Return the lead over the next answer with another text; no answer is scored minus the threshold."""
        candidates = answers[number]
        scores = [answer.score - (0.0 if answer.text else self.threshold.value) for answer in candidates]
        others = [score for score, answer in zip(scores, candidates, strict=True) if answer.text != candidates[0].text]
        return round(scores[0] - max(others), 4) if others else None

    def scaled_confidences(self, answers: list[list[Answer]]) -> Callable[[float], Array]:
        scores = np.full((len(answers), max(map(len, answers), default=1)), -np.inf)
        for row, spans in zip(scores, answers, strict=True):
            row[: len(spans)] = [answer.score for answer in spans]
        plain = np.array([candidates[0].probability for candidates in answers])

        def scaled(temperature: float) -> Array:
            leads = (scores - scores[:, :1]) / temperature
            share: Array = 1 / np.exp(np.minimum(leads, 700)).sum(axis=1)
            return plain if temperature == 1 else share

        return scaled

    def correctness(self, examples: list[SquadQuestion], answers: list[list[Answer]], outcomes: Array) -> Array:
        return outcomes[:, EXACT]

    def predictions_json(
        self, examples: Mapping[str, list[SquadQuestion]], predictions: Mapping[str, Sequence[str | None]]
    ) -> dict[str, str]:
        """Return {id: text}, the format of the official scripts; an empty text means no answer."""
        [(split, questions)] = examples.items()
        pairs = zip(questions, predictions[split], strict=True)
        return {question.id: text for question, text in pairs if text is not None}

    def read_predictions(self, path: Path, examples: Mapping[str, list[SquadQuestion]]) -> dict[str, list[str | None]]:
        saved = read_predictions(path)
        return {split: [saved.get(question.id) for question in questions] for split, questions in examples.items()}

    def outcomes(self, examples: list[SquadQuestion], predictions: Sequence[str | None]) -> Array:
        scores = [
            (0.0, 0.0)
            if text is None
            else tuple(rule(text, question.texts, self.nullable) for rule in (exact_match, f1))
            for question, text in zip(examples, predictions, strict=True)
        ]
        columns = np.array(scores, dtype=np.float64).reshape(-1, 2)
        return np.column_stack([has_answers(examples), columns]) if self.nullable else columns

    def choose_rule(self, root: Path) -> str:
        """Return the rule with the best score on the training questions."""
        return choose_rule(read_questions(self.entry.examples_file(TRAIN, root), most=MOST_QUESTIONS))

    def read_rule(self, metrics: Mapping[str, object], path: Path) -> str:
        rule = str(metrics.get(BASELINE))
        if rule not in RULES:
            raise InputError(f"{path} has no {BASELINE}. Run the stage {self.entry.stage('evaluate')} again")
        return rule

    def baselines(self, examples: Mapping[str, list[SquadQuestion]], rule: str = "") -> list[Baseline]:
        """Return the answers of the rule, or never answering if that is better."""
        answers = {"giving no answer": lambda context: ""} if self.nullable else {}
        answers |= {f"{rule} as the answer": RULES[rule]} if rule else {}
        candidates = [
            self.outcomes_of(
                examples,
                {split: [take(question.context) for question in questions] for split, questions in examples.items()},
            )
            for take in answers.values()
        ]
        if not candidates:
            return []
        best = max(candidates, key=lambda outcomes: self.metrics.compute(outcomes)["f1"])
        return [Baseline(" or ".join(answers), best)]

    @property
    def metrics(self) -> Metrics:
        if not self.nullable:
            return OVERALL
        return Metrics(
            (
                F1,
                mean_metric("exact", "exact match", EXACT, is_share=True),
                _group_metric("HasAns_exact", "exact match of answerable questions", EXACT, 1.0),
                _group_metric("HasAns_f1", "F1 of answerable questions", OVERLAP, 1.0),
                _group_metric("NoAns_exact", "exact match of unanswerable questions", EXACT, 0.0),
            )
        )

    def figures(self, outcomes: Outcomes, baseline: Baseline | None) -> dict[str, float]:
        """Return the metrics; with unanswerable questions also under the names and in the precision of the official
        script."""
        figures = super().figures(outcomes, baseline)
        if not self.nullable:
            return figures
        [rows] = outcomes.values()
        columns = (rows[:, column].tolist() for column in (HAS_ANSWER, EXACT, OVERLAP))
        return {name: x for name, x in figures.items() if not math.isnan(x)} | figures_v2(*columns)

    @property
    def limits(self) -> tuple[Limit, ...]:
        keys = {"f1": "f1", "exact" if self.nullable else "exact_match": "exact_match"}
        keys |= {"HasAns_f1": "has_answer_f1", "NoAns_exact": "no_answer_exact_match"} if self.nullable else {}
        return tuple(self.make_limit(metric, f"min_{key}", f"max_{key}_drop") for metric, key in keys.items())

    def settings(self, metrics: Mapping[str, object]) -> dict[str, object]:
        return {NULL_THRESHOLD: metrics[NULL_THRESHOLD]} if self.nullable else {}

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return quantities[EXACT] in (0, 1) and 0 <= quantities[OVERLAP] <= 1


def _group_metric(name: str, title: str, quantity: int, has_answer: float) -> Metric:
    """Return a metric: the mean of a quantity of questions with (1) or without (0) an answer; NaN without such
    questions."""

    def members(outcomes: Array) -> Array:
        return (outcomes[:, HAS_ANSWER] == has_answer).astype(np.float64)

    def extremes(outcomes: Array) -> tuple[Array, Array]:
        worst, best = unit_extremes(outcomes)
        worst[HAS_ANSWER] = best[HAS_ANSWER] = has_answer
        return worst, best

    def above(outcomes: Array) -> Array:
        return outcomes[:, quantity] * members(outcomes)

    return ratio_metric(name, title, above, members, extremes=extremes, right=above if quantity == EXACT else None)


def has_answers(questions: Sequence[SquadQuestion]) -> list[bool]:
    """Return True for each question with an answer."""
    return [bool(question.answers) for question in questions]


def flat_logits(windows: SquadWindows) -> tuple[Array, np.ndarray]:
    """Return start and end logits of the context tokens and [CLS], and the question number of each."""
    window = np.repeat(np.arange(len(windows)), np.diff(windows.bounds))
    where = np.concatenate([window, window, np.repeat(np.arange(len(windows)), 2)])
    values = np.concatenate([windows.start_logits, windows.end_logits, windows.cls_logits.reshape(-1)])
    return values.astype(np.float64), windows.example_index[where]
