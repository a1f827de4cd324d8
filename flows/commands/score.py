"""`podium score`: compute exact match and F1 by the official rules of SQuAD 1.1 and 2.0."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.options import FILE
from flows.commands.project import resolve_output, resolve_path
from ipu_model.core.files import write_json


@click.command(
    help="Score PREDICTIONS, a JSON object {question id: text}, against QUESTIONS in SQuAD JSON, like the official "
    "script: that of 2.0 if a question has no answer, else that of 1.1. An empty text predicts no answer."
)
@click.argument("questions", type=FILE)
@click.argument("predictions", type=FILE)
@click.option("--output", type=FILE, metavar="FILE", help="also write the scores to FILE, as JSON")
@click.option("--na-probs", type=FILE, metavar="FILE", help="JSON {question id: no-answer score}, as null_odds.json")
@click.option(
    "--na-threshold", type=float, default=1.0, show_default=True, metavar="ODDS", help="score above which none is given"
)
@options.json_option
@click.pass_context
def command(ctx: click.Context, questions: Path, predictions: Path, as_json: bool, **args: Any) -> None:
    from tasks.downstream.squad.score_files import score_files

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    output, odds = args["output"], None if args["na_probs"] is None else resolve_path(ctx, args["na_probs"])
    read = resolve_path(ctx, questions), resolve_path(ctx, predictions)
    target = None if output is None else resolve_output(ctx, output, [*read, *([] if odds is None else [odds])])
    summary = score_files(*read, odds, args["na_threshold"])
    if target is not None:
        write_json(target, summary)
    after = f"podium compare OTHER.json {predictions} --questions {questions} tests which of two is better"
    options.print_result(as_json, summary, _format_scores(summary), after)


def _format_scores(found: Mapping[str, float]) -> str:
    """Format the scores of all questions, and of those with and without an answer if there are both."""
    lines = []
    for prefix, what in (("", "questions"), ("HasAns_", "with an answer"), ("NoAns_", "without an answer")):
        if f"{prefix}total" in found:
            exact = found.get(f"{prefix}exact", found.get("exact_match", 0.0))
            lines.append(f"{found[f'{prefix}total']} {what}, exact match {exact:.2f}, F1 {found[f'{prefix}f1']:.2f}")
    lines += [
        f"best {title} {found[f'best_{name}']:.2f}, with a no-answer threshold of {found[f'best_{name}_thresh']:.4f}"
        for name, title in (("exact", "exact match"), ("f1", "F1"))
        if f"best_{name}" in found
    ]
    return "".join(f"{line}\n" for line in lines)
