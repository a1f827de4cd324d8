"""The same model, rows and questions in two places: how far its logits lie apart, and which answers changed.

    python -m tasks.downstream.parity RUNTIME[:PRECISION]      the stage: against what the stage predict wrote
    python -m tasks.downstream.parity cuda:bf16 --baseline cpu:fp32 [--model DIR] [--rows DIR] [--questions FILE]
        [--output FILE]

The second form computes both and writes nothing but FILE. Device settings (batch, IPU config) are those of params.yaml.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.downstream.comparison import compare
from tasks.downstream.entries import QUESTIONS, entry_of
from tasks.downstream.jobs import predict_job
from tasks.downstream.squad.answers import Answer, best_answers
from tasks.downstream.squad.files import Question, read_dev_questions
from tasks.downstream.squad.windows import Windows, read_windows
from tasks.downstream.task import about
from tasks.jobs.device_job import JobResult, run_device_job
from tasks.jobs.training import require_verdict
from tasks.project import artifacts
from tasks.project.errors import InputError, ParityLost
from tasks.project.files import read_json, write_json
from tasks.project.main import run_main
from tasks.project.param_sections import Place
from tasks.project.params import EvaluateParams, Params, load_params
from tasks.project.process import item

ROWS = "squad-dev"


@dataclass(frozen=True)
class Inputs:
    """What both places compute, and where the questions are."""

    model: Path = artifacts.SQUAD_MODEL
    rows: Path = artifacts.rows_folder(ROWS)
    questions: Path = artifacts.QUESTIONS / "dev.parquet"


def logit_differences(first: Windows, second: Windows, ids: Sequence[str]) -> dict[str, Any]:
    """How far the logits of the same windows lie apart: of the context's tokens and [CLS], start and end alike.

    Args:
        first, second: windows of the same features.
        ids: of the questions.

    Returns:
        max_logit_difference, the question of the window it is in, mean_logit_difference (of absolute values),
        rms_logit_difference, and max_logit, the largest absolute logit of the first, to compare them with.
    """
    if not np.array_equal(first.bounds, second.bounds):
        raise InputError("the logits are of different features: compute both from the same rows")
    window = np.repeat(np.arange(len(first)), np.diff(first.bounds))
    where = np.concatenate([window, window, np.repeat(np.arange(len(first)), 2)])
    logits = [
        np.concatenate([one.start_logits, one.end_logits, one.cls_logits.reshape(-1)]).astype(np.float64)
        for one in (first, second)
    ]
    apart = np.abs(logits[1] - logits[0])
    largest = int(apart.argmax())
    return {
        "max_logit_difference": float(apart[largest]),
        "max_logit_difference_in": ids[int(first.example_index[where[largest]])],
        "mean_logit_difference": float(apart.mean()),
        "rms_logit_difference": float(np.sqrt((apart**2).mean())),
        "max_logit": float(np.abs(logits[0]).max()),
    }


def compare_logits(
    questions: Sequence[Question], features: Path, first: Path, second: Path, params: EvaluateParams
) -> dict[str, Any]:
    """Differences of two logits files of the same features, and of the answers that follow from them.

    Args:
        params: section `evaluate`: answers are chosen as the stage evaluate chooses them.

    Returns:
        What `logit_differences` gives, the scores of both, and `changed`: id, both answers, their F1, and the margin:
        by how much the first answer's score led the next other answer before; small margins turn first.

    Raises:
        InputError: files that do not belong together.
    """
    ids, contexts = [question.id for question in questions], [question.context for question in questions]
    windows = [read_windows(features, path, ids) for path in (first, second)]
    before, after = (
        best_answers(one, contexts, n_best=params.n_best, max_answer_length=params.max_answer_length) for one in windows
    )
    compared = compare(
        [(question.id, question.answers) for question in questions],
        {name: found[0].text for name, found in zip(ids, before, strict=True)},
        {name: found[0].text for name, found in zip(ids, after, strict=True)},
    ).record()
    margins = {name: margin(found) for name, found in zip(ids, before, strict=True)}
    changed = [{**one, "margin": margins[one["id"]]} for one in compared.pop("changed")]
    return {
        **logit_differences(windows[0], windows[1], ids),
        **compared,
        "changed_answers": len(changed),
        "changed": changed,
    }


def margin(answers: Sequence[Answer]) -> float | None:
    """By how much the best answer's score leads that of the next answer with another text; None where there is none."""
    others = [answer.score for answer in answers[1:] if answer.text != answers[0].text]
    return round(answers[0].score - others[0], 4) if others else None


def predict_in(place: Place, inputs: Inputs, params: Params, logits: Path, run_folder: Path) -> JobResult:
    """Run the model over the rows in a place and write `logits`.

    Raises:
        DeviceJobFailed: the place cannot compute it; the message says why.
    """
    device = params.device.model_copy(update={"runtime": place.runtime, "precision": place.precision})
    task = about(entry_of(params, QUESTIONS))
    return run_device_job(predict_job(task, params, inputs.rows, logits, run_folder, model=inputs.model, device=device))


def check(found: dict[str, Any], limit: float | None) -> None:
    """Raises: ParityLost, if the logits lie further apart than `limit` (None: any distance will do)."""
    if limit is not None and found["max_logit_difference"] > limit:
        raise ParityLost(
            f"the logits lie up to {found['max_logit_difference']:.4g} apart (question "
            f"{found['max_logit_difference_in']!r}), allowed are {limit:g} (parity.max_logit_difference); "
            f"{found['changed_answers']} of {found['questions']} answers changed"
        )


def in_words(first: str, second: str, found: dict[str, Any]) -> str:
    """One line for people."""
    return (
        f"parity of {second} with {first}: logits up to {found['max_logit_difference']:.4g} apart (mean "
        f"{found['mean_logit_difference']:.2g}, largest logit {found['max_logit']:.3g}), {found['changed_answers']} of "
        f"{found['questions']} answers changed, F1 {found['f1_first']:.2f} -> {found['f1_second']:.2f}"
    )


def _of(result: JobResult) -> dict[str, str]:
    return {"runtime": result.runtime, "precision": result.precision}


def stage(place: Place, name: str, params: Params) -> str:
    """Write metrics/parity-<name>.json: the place against what the stage predict wrote; a line for people.

    Raises:
        ParityLost: after the figures were written.
    """
    require_verdict(ROWS)
    inputs, figures = Inputs(), read_json(artifacts.PREDICT_METRICS)
    folder = artifacts.RUNS / f"parity-{name}"
    result = predict_in(place, inputs, params, folder / "logits.arrow", folder)
    questions = read_dev_questions(inputs.questions)
    features = inputs.rows / artifacts.FEATURES
    found = compare_logits(questions, features, artifacts.LOGITS, folder / "logits.arrow", params.evaluate)
    first = {name: figures[name] for name in ("runtime", "precision")}
    write_json(artifacts.parity_metrics(name), {"first": first, "second": _of(result), **found})
    check(found, params.parity.max_logit_difference)
    return in_words(f"{first['runtime']}:{first['precision']}", f"{result.runtime}:{result.precision}", found)


def between(first: Place, second: Place, inputs: Inputs, params: Params, output: Path | None) -> str:
    """Compute both and compare; a line for people.

    Raises:
        ParityLost: after `output` was written.
    """
    questions = read_dev_questions(inputs.questions)
    with tempfile.TemporaryDirectory(prefix="podium-parity-") as scratch:
        one, two = Path(scratch) / "first", Path(scratch) / "second"
        before = predict_in(first, inputs, params, one / "logits.arrow", one)
        after = predict_in(second, inputs, params, two / "logits.arrow", two)
        found = compare_logits(
            questions, inputs.rows / artifacts.FEATURES, one / "logits.arrow", two / "logits.arrow", params.evaluate
        )
    if output is not None:
        write_json(output, {"first": _of(before), "second": _of(after), **found})
    check(found, params.parity.max_logit_difference)
    return in_words(f"{before.runtime}:{before.precision}", f"{after.runtime}:{after.precision}", found)


def place_argument(text: str) -> Place:
    """For argparse."""
    try:
        return Place.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a model's logits and answers in two places.")
    parser.add_argument(
        "place", type=item, metavar="RUNTIME[:PRECISION]", help="for example cpu:bf16, cuda or ipu:fp16"
    )
    parser.add_argument("--baseline", type=place_argument, metavar="RUNTIME[:PRECISION]", help="compute this, too")
    for name, text in (("model", "model folder"), ("rows", "row folder"), ("questions", "Parquet file")):
        parser.add_argument(f"--{name}", type=Path, default=getattr(Inputs, name), help=f"{text}, with --baseline")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the comparison as JSON, with --baseline")
    arguments = parser.parse_args()
    try:
        place = Place.of(arguments.place)
    except ValueError as error:
        parser.error(str(error))
    inputs, params = Inputs(arguments.model, arguments.rows, arguments.questions), load_params()
    if arguments.baseline is not None:
        said = between(arguments.baseline, place, inputs, params, arguments.output)
    elif inputs != Inputs() or arguments.output is not None:
        parser.error("--model, --rows, --questions and --output need --baseline")
    else:
        said = stage(place, arguments.place, params)
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    run_main(main)
