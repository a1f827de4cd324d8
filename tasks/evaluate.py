"""Stage evaluate: from logits to answers, exact match and F1, with intervals and slices.

    python -m tasks.evaluate
    python -m tasks.evaluate --questions FILE --predictions FILE [--output FILE]

The second form scores any SQuAD v1.1 JSON as the official script does and needs no params.yaml; standard
output then holds the scores as JSON and nothing else.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import artifacts
from tasks.errors import InputError, run_main
from tasks.squad import Scores, score
from tasks.squad_files import read_predictions, read_references

if TYPE_CHECKING:
    from tasks.answers import Answer
    from tasks.params import EvaluateParams
    from tasks.squad_files import Question

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
            len(scores.unanswered), scores.total, _some(scores.unanswered),
        )  # fmt: skip
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
        bootstrap intervals, total, answered, slices, and the SHA-256 of the weights and predictions.

    Raises:
        InputError: a file that is missing, damaged, or belongs to another run.
    """
    from tasks.answers import best_answers
    from tasks.squad_files import read_dev_questions
    from tasks.windows import read_windows

    questions = read_dev_questions(inputs.questions)
    if not inputs.weights.is_file():
        raise InputError(f"{inputs.weights} is not there; run the stage finetune")
    windows = read_windows(inputs.features, inputs.logits, [question.id for question in questions])
    answers = best_answers(
        windows,
        [question.context for question in questions],
        n_best=params.n_best,
        max_answer_length=params.max_answer_length,
    )
    predictions = {q.id: found[0].text for q, found in zip(questions, answers, strict=True)}
    scores = score([(q.id, q.answers) for q in questions], predictions)
    metrics = _metrics(questions, windows.windows_of_examples(len(questions)), scores)
    with artifacts.new_folder(root / artifacts.EVALUATION) as folder:
        artifacts.write_json(folder / artifacts.SQUAD_PREDICTIONS.name, predictions)
        artifacts.write_text(folder / "nbest.json", nbest_json(questions, answers))
        metrics["files"] = [
            {"path": str(artifacts.SQUAD_MODEL / inputs.weights.name), "sha256": artifacts.sha256_of(inputs.weights)},
            {
                "path": str(artifacts.SQUAD_PREDICTIONS),
                "sha256": artifacts.sha256_of(folder / artifacts.SQUAD_PREDICTIONS.name),
            },
        ]
    artifacts.write_json(root / artifacts.SQUAD_METRICS, metrics)
    return metrics


def _metrics(questions: Sequence[Question], windows: Sequence[int], scores: Scores) -> dict[str, Any]:
    from tasks.slices import slices
    from tasks.statistics import bootstrap_intervals

    exact, overlap = bootstrap_intervals(list(zip(scores.exact_match, scores.f1, strict=True)))
    # Lists and not objects below: `dvc metrics show` makes a column of every number and string in an object.
    return {
        **scores.summary(),
        "exact_match_low": round(100 * exact.low, 4),
        "exact_match_high": round(100 * exact.high, 4),
        "f1_low": round(100 * overlap.low, 4),
        "f1_high": round(100 * overlap.high, 4),
        "answered": scores.total - len(scores.unanswered),
        "slices": [part.record() for part in slices(questions, windows, scores.exact_match, scores.f1)],
    }


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Score the dev questions (no arguments), or any SQuAD v1.1 file with its predictions."
    )
    parser.add_argument("--questions", type=Path, help="SQuAD v1.1 JSON")
    parser.add_argument("--predictions", type=Path, help='JSON object {"question id": "answer text"}')
    parser.add_argument("--output", type=Path, help="also write the scores to this file")
    arguments = parser.parse_args()
    if (arguments.questions is None) != (arguments.predictions is None):
        parser.error("--questions and --predictions belong together")
    if arguments.output is not None and arguments.questions is None:
        parser.error("--output needs --questions and --predictions; the stage writes metrics/squad.json")
    return arguments


def main() -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    arguments = _arguments()
    if arguments.questions is not None:
        summary = score_files(arguments.questions, arguments.predictions).summary()
        if arguments.output is not None:
            artifacts.write_json(arguments.output, summary)
        print(json.dumps(summary))
        return
    from tasks.params import load_params

    started_at = time.perf_counter()
    metrics = evaluate(load_params().evaluate, EvaluateInputs())
    print(
        f"evaluate: {metrics['total']} questions, exact match {metrics['exact_match']:.2f} "
        f"({metrics['exact_match_low']:.2f} to {metrics['exact_match_high']:.2f}), f1 {metrics['f1']:.2f} "
        f"({metrics['f1_low']:.2f} to {metrics['f1_high']:.2f}), {time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
