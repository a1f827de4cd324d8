"""`podium compare`: compare runs, or two files of predictions."""

import re
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.options import FILE
from flows.commands.project import CommandContext, enter_project, resolve_output, resolve_path
from ipu_model.core.files import write_json, write_text
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

FILE_OPTIONS = ("questions", "confidence", "changed")
"""Options that apply to files of predictions only."""


@click.command(
    help="Compare runs: parameters, scores with paired tests against FIRST, and loss curves. A run is a NAME from "
    "podium runs, NAME:ENTRY if it has several entries, or a release folder. Or compare two files of predictions on "
    "the same questions."
)
@click.argument("first", shell_complete=options.complete_runs)
@click.argument("others", nargs=-1, required=True, shell_complete=options.complete_runs)
@click.option("--questions", type=FILE, metavar="FILE", help="for files: reference answers (default: of the project)")
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="for files: confidence of the intervals  [default: 0.95; runs use that of the gate]",
)
@click.option("--changed", type=FILE, metavar="FILE", help="for files: write the changed answers as CSV")
@click.option("--output", type=FILE, metavar="FILE", help="write the comparison as JSON")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context, first: str, others: tuple[str, ...], output: Path | None, as_json: bool, **of_files: Any
) -> None:
    words = (first, *others)
    changed, questions = of_files["changed"], of_files["questions"]
    read = [resolve_path(ctx, Path(word)) for word in (*words, *filter(None, [questions]))]
    written = [resolve_output(ctx, path, read) for path in (output, changed) if path is not None]
    if len(set(written)) < len(written):
        raise click.UsageError("--output and --changed name the same file: use two files", ctx)
    # Even a missing file or a pipe, which is refused later.
    paths = [resolve_path(ctx, Path(word)) for word in words]
    if all(path.suffix == ".json" or (path.exists() and not path.is_dir()) for path in paths):
        if len(words) != 2:
            raise click.UsageError(f"files of predictions are compared in pairs, but {len(words)} were passed", ctx)
        comparison, text, after = _compare_files(ctx, *words, **of_files)
    else:
        if misused := [name for name in FILE_OPTIONS if of_files[name] is not None]:
            raise click.UsageError(f"--{misused[0]} applies to files of predictions only, but these are runs", ctx)
        comparison, text, after = _compare_runs(ctx, words)
    if output is not None:
        write_json(resolve_path(ctx, output), comparison)
    options.print_result(as_json, comparison, text, after)


def _compare_runs(ctx: click.Context, words: tuple[str, ...]) -> tuple[dict[str, Any], str, str]:
    from flows.views import compare_page

    project = enter_project(ctx)
    if len(set(words)) < len(words):
        raise ParamsError("the same run is named twice: pass different runs")
    context: CommandContext = ctx.obj
    sides = compare_page.resolve_sides(project, context.folder, words)
    values = compare_page.compare_sides(sides)
    names = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", word).strip("-") or "own" for word in words)
    page = artifacts.REPORTS / f"compare-{names[:100]}.html"
    pages = compare_page.page_links(project, sides)
    write_text(project / page, compare_page.render_comparison(values, project, pages))
    return values, compare_page.format_comparison(values), f"open {page} for the same comparison with overlaid curves"


def _compare_files(
    ctx: click.Context, first: str, second: str, questions: Path | None, confidence: float | None, changed: Path | None
) -> tuple[dict[str, Any], str, str]:
    from tasks.downstream.squad.compare import changed_csv, compare_files, format_comparison
    from tasks.params.entries import only_entry
    from tasks.params.schema import load_params

    context: CommandContext = ctx.obj
    if questions is None:
        project = context.project or context.folder
        entry = only_entry(load_params(project / artifacts.PARAMS), "squad")
        references = project / artifacts.examples_file(entry.name, "dev")
        if not references.is_file():
            raise ParamsError("pass the questions of these predictions: --questions FILE")
    else:
        references = resolve_path(ctx, questions)
    comparison = compare_files(
        references, resolve_path(ctx, Path(first)), resolve_path(ctx, Path(second)), confidence or 0.95
    )
    if changed is not None:
        write_text(resolve_path(ctx, changed), changed_csv(comparison["changed"]))
    after = "--changed FILE lists the answers that changed, --output FILE saves the comparison"
    return comparison, format_comparison(comparison, confidence or 0.95) + "\n", after
