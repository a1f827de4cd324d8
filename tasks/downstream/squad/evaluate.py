"""Stage evaluate: from logits to answers, exact match and F1, with intervals and slices.

python -m tasks.downstream.squad.evaluate
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.downstream.squad.files import read_predictions, read_references
from tasks.downstream.squad.metrics import Scores, figures, score
from tasks.pages.markup import csv_text
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import new_folder, sha256_of, write_json, write_text
from tasks.project.main import run_main
from tasks.project.process import takes_no_words

if TYPE_CHECKING:
    from tasks.downstream.squad.answers import Answer
    from tasks.downstream.squad.files import Question
    from tasks.downstream.squad.slices import Slice
    from tasks.project.params import EvaluateParams
    from tasks.statistics.calibration import Calibration

log = logging.getLogger(__name__)

SHOWN_IDS = 5
"""Ids that a warning names before it only counts."""


def score_files(questions: Path, predictions: Path) -> Scores:
    """Score a {id: text} file against a SQuAD v1.1 file.

    Missing predictions count 0 and superfluous ones nothing; both are logged as warnings.

    Raises:
        InputError: one of the files cannot be used.
    """
    scores = score(read_references(questions), read_predictions(predictions))
    if scores.unanswered:
        log.warning(
            "%d of %d questions have no prediction and count 0: %s",
            len(scores.unanswered),
            scores.total,
            _some(scores.unanswered),
        )
    if scores.extra:
        log.warning("%d predictions belong to no question and are ignored: %s", len(scores.extra), _some(scores.extra))
    return scores


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")


@dataclass(frozen=True)
class EvaluateInputs:
    """What the stage reads."""

    questions: Path = artifacts.QUESTIONS / "dev.parquet"
    features: Path = artifacts.rows_folder("squad-dev") / artifacts.FEATURES
    logits: Path = artifacts.LOGITS
    weights: Path = artifacts.SQUAD_MODEL / "model.safetensors"


def evaluate(params: EvaluateParams, inputs: EvaluateInputs, root: Path = Path()) -> dict[str, Any]:
    """Answer the dev questions from their logits and write predictions, scores, plots and the page.

    Args:
        params: the section evaluate.
        inputs: files of the stages before.
        root: folder that gets evaluation/, metrics/squad.json and plots/squad-*.csv.

    Returns:
        The content of metrics/squad.json: exact_match and f1 in percent with the bounds of their 95%
        bootstrap intervals, total, answered, calibration_error, brier_score, the bins of the calibration, slices, and
        the SHA-256 of the weights and predictions.

    Raises:
        InputError: a file that is missing, damaged, or belongs to another run.
    """
    from tasks.downstream.squad.answers import best_answers
    from tasks.downstream.squad.files import read_dev_questions
    from tasks.downstream.squad.slices import f1_counts, slices
    from tasks.downstream.squad.windows import read_windows
    from tasks.statistics.calibration import calibration

    questions = read_dev_questions(inputs.questions)
    if not inputs.weights.is_file():
        raise InputError(f"{inputs.weights} is not there; run the stage finetune")
    windows = read_windows(inputs.features, inputs.logits, [question.id for question in questions])
    contexts = [question.context for question in questions]
    answers = best_answers(windows, contexts, n_best=params.n_best, max_answer_length=params.max_answer_length)
    scores = score(
        [(question.id, question.answers) for question in questions],
        {question.id: found[0].text for question, found in zip(questions, answers, strict=True)},
    )
    parts = slices(questions, windows.windows_of_examples(len(questions)), scores.exact_match, scores.f1)
    calibrated = calibration([found[0].probability for found in answers], scores.exact_match)
    evaluation = Evaluation(questions, answers, scores, parts, f1_counts(scores.f1), calibrated)
    metrics = _metrics(scores, parts, calibrated)
    with new_folder(root / artifacts.EVALUATION) as folder:
        _write_evaluation(folder, evaluation, metrics, inputs.weights)
    _write_plots(root / artifacts.PLOTS, evaluation)
    write_json(root / artifacts.SQUAD_METRICS, metrics)
    return metrics


@dataclass(frozen=True)
class Evaluation:
    """All that was found, per question and per slice."""

    questions: Sequence[Question]
    answers: Sequence[Sequence[Answer]]
    """The answers to every question, best first."""
    scores: Scores
    parts: Sequence[Slice]
    f1_counts: Mapping[str, int]
    calibrated: Calibration
    """Probability of the predictions against exact match."""


def _write_evaluation(folder: Path, found: Evaluation, metrics: dict[str, Any], weights: Path) -> None:
    """Write predictions.json, nbest.json and report.html; add the files that the scores are about to `metrics`."""
    from tasks.downstream.squad.evaluation_page import page, worst_mistakes

    best = [answers[0] for answers in found.answers]
    predictions = folder / artifacts.SQUAD_PREDICTIONS.name
    write_json(predictions, {q.id: answer.text for q, answer in zip(found.questions, best, strict=True)})
    write_text(folder / "nbest.json", nbest_json(found.questions, found.answers))
    metrics["files"] = [
        {"path": str(artifacts.SQUAD_MODEL / weights.name), "sha256": sha256_of(weights)},
        {"path": str(artifacts.SQUAD_PREDICTIONS), "sha256": sha256_of(predictions)},
    ]
    mistakes = worst_mistakes(found.questions, found.answers, found.scores.exact_match, found.scores.f1)
    html = page(metrics, found.parts, found.f1_counts, found.calibrated, mistakes)
    write_text(folder / "report.html", html)


def _metrics(scores: Scores, parts: Sequence[Slice], calibrated: Calibration) -> dict[str, Any]:
    # Lists and not objects below: `dvc metrics show` makes a column of every number and string in an object.
    return {
        **figures(scores),
        "answered": scores.total - len(scores.unanswered),
        **calibrated.record(),
        "slices": [part.record() for part in parts],
    }


def _write_plots(folder: Path, found: Evaluation) -> None:
    """plots/squad-slices.csv (all of them), -question-words.csv (a plot needs a file), -f1.csv and -calibration.csv."""
    from tasks.downstream.squad.slices import QUESTION_WORD, Slice
    from tasks.statistics.calibration import Bin

    columns = ("questions", "exact_match", "f1", "f1_low", "f1_high")
    words = [part for part in found.parts if part.by == QUESTION_WORD]
    rows = [[part.slice, *(getattr(part, name) for name in columns)] for part in words]
    _write_csv(folder / "squad-question-words.csv", ("question_word", *columns), rows)
    _write_csv(
        folder / "squad-slices.csv", [one.name for one in fields(Slice)], [astuple(part) for part in found.parts]
    )
    bins = [astuple(one) for one in found.calibrated.bins if one.count]
    _write_csv(folder / "squad-calibration.csv", [one.name for one in fields(Bin)], bins)
    _write_csv(folder / "squad-f1.csv", ("f1", "questions"), list(found.f1_counts.items()))


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    write_text(path, csv_text(columns, rows))


def nbest_json(questions: Sequence[Question], answers: Sequence[Sequence[Answer]]) -> str:
    """{question id: [{"text", "start", "end", "score", "probability"}]}, one question per line.

    start and end count characters of the context; score is the sum of the two logits.
    """
    lines = []
    for question, found in zip(questions, answers, strict=True):
        records = [
            {
                "text": answer.text,
                "start": answer.start,
                "end": answer.end,
                "score": round(answer.score, 4),
                "probability": round(answer.probability, 6),
            }
            for answer in found
        ]
        lines.append(f"{json.dumps(question.id, ensure_ascii=False)}: {json.dumps(records, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    takes_no_words("Stage evaluate: answers, scores and pages from logits. To score any predictions: podium score")
    from tasks.project.params import load_params

    started_at = time.perf_counter()
    metrics = evaluate(load_params().evaluate, EvaluateInputs())
    print(
        f"evaluate: {metrics['total']} questions, exact match {metrics['exact_match']:.2f} "
        f"({metrics['exact_match_low']:.2f} to {metrics['exact_match_high']:.2f}), f1 {metrics['f1']:.2f} "
        f"({metrics['f1_low']:.2f} to {metrics['f1_high']:.2f}), {time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
