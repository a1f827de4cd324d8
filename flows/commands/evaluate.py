"""`podium evaluate`: score a finished model on a labelled file, or predictions by the official rules of SQuAD."""

import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from flows.commands import model_options, options
from flows.commands.project import resolve_output, resolve_path
from ipu_model.core.files import write_json
from tasks.stage import artifacts, streams

OF_PREDICTIONS = ("na_probs", "na_threshold")
"""Options for files of predictions."""


@click.command(
    help="Score MODEL on the labelled examples in FILE: official metrics with 95% intervals, and a report, in a new "
    "folder. MODEL is a run, a release folder, a model folder or a Hub repository; or a .json file of predictions, "
    "{question id: text}, which is scored against the SQuAD JSON in FILE like the official script: that of 2.0 if a "
    "question has no answer, else that of 1.1. An empty text predicts no answer."
)
@click.argument("model")
@click.argument("file", type=options.FILE)
@click.option(
    "--output", type=options.FILE, metavar="DIR", help="new folder (evaluation-MODEL-FILE); of predictions, a JSON file"
)
@click.option("--na-probs", type=options.FILE, metavar="FILE", help="with predictions: {question id: no-answer score}")
@click.option("--na-threshold", type=float, metavar="ODDS", help="with predictions: score above which none is given")
@model_options.inference_options
@options.json_option
@click.pass_context
def command(ctx: click.Context, model: str, file: Path, output: Path | None, as_json: bool, **args: Any) -> None:
    path, of_predictions = resolve_path(ctx, Path(model)), [args.pop(name) for name in OF_PREDICTIONS]
    if path.suffix == ".json" or (path.exists() and not path.is_dir()):
        if other := [name for name in args if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE]:
            raise click.UsageError(f"--{other[0].replace('_', '-')} is for models, and {model} has predictions", ctx)
        _score_predictions(ctx, path, resolve_path(ctx, file), output, as_json, *of_predictions)
        return
    if any(option is not None for option in of_predictions):
        raise click.UsageError(f"--na-probs and --na-threshold are for a .json file of predictions, not {model}", ctx)
    from tasks.downstream.inference.predict import evaluate

    loaded, entry = model_options.load_model(ctx, model, args, resolve_path(ctx, file), labelled=True)
    called = path.resolve().name if path.exists() else model
    folder = output or Path(re.sub(r"[^\w.-]+", "-", f"evaluation-{called}-{file.stem}"))
    settings = model_options.choose_settings(loaded, args)
    metrics, words = evaluate(entry, loaded, resolve_path(ctx, file), resolve_path(ctx, folder), settings, called)
    streams.note("computed on {runtime} in {precision}".format_map(metrics["predict"]), "")
    page = folder / artifacts.evaluation_page(entry.name).name
    options.print_result(as_json, metrics, f"{words}\n", f"open {page}")


def _score_predictions(
    ctx: click.Context,
    predictions: Path,
    questions: Path,
    output: Path | None,
    as_json: bool,
    odds: Path | None,
    threshold: float | None,
) -> None:
    """Print exact match and F1 of a file of predictions, and write them to `output`."""
    from tasks.downstream.squad.score_files import score_files

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    odds = None if odds is None else resolve_path(ctx, odds)
    read = [questions, predictions, *([] if odds is None else [odds])]
    target = None if output is None else resolve_output(ctx, output, read)
    summary = score_files(questions, predictions, odds, 1.0 if threshold is None else threshold)
    if target is not None:
        write_json(target, summary)
    after = f"podium compare OTHER.json {predictions.name} --questions {questions.name} tests which of two is better"
    options.print_result(as_json, summary, _format_scores(summary), after)


def _format_scores(scores: Mapping[str, float]) -> str:
    """Format the scores of all questions, and of those with and without an answer if there are both."""
    lines = []
    for prefix, what in (("", "questions"), ("HasAns_", "with an answer"), ("NoAns_", "without an answer")):
        if f"{prefix}total" in scores:
            exact = scores.get(f"{prefix}exact", scores.get("exact_match", 0.0))
            lines.append(f"{scores[f'{prefix}total']} {what}, exact match {exact:.2f}, F1 {scores[f'{prefix}f1']:.2f}")
    lines += [
        f"best {title} {scores[f'best_{name}']:.2f}, with a no-answer threshold of {scores[f'best_{name}_thresh']:.4f}"
        for name, title in (("exact", "exact match"), ("f1", "F1"))
        if f"best_{name}" in scores
    ]
    return "".join(f"{line}\n" for line in lines)
