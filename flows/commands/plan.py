"""`podium plan`: what a run would do, and why; it does nothing."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from flows import checkout, dvc, run_params
from flows.commands import options
from flows.commands.project import entered
from flows.forecast import StageForecast, forecast
from flows.plan import ALL, stages_to_run
from tasks.project import artifacts
from tasks.project.composing import write_plan
from tasks.project.errors import ParamsError
from tasks.project.gone import remove_gone
from tasks.project.params import load_params
from tasks.project.params_command import table

SHOWN = 3
"""Reasons of a stage on the screen; --json has all."""


@click.command(help="Say which stages a run would skip, restore or run, and why. Runs nothing and changes nothing.")
@options.parameters
@options.run_name
@options.stages
@click.option("--write", is_flag=True, help="only write plan.yaml, which `dvc repro` reads, from params.yaml")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    overrides: tuple[str, ...],
    name: str | None,
    part: str,
    to: tuple[str, ...],
    write: bool,
    json_wanted: bool,
) -> None:
    project = entered(ctx)
    if write:
        _write(project, preset is not None or bool(overrides) or name is not None)
        return
    options.tell_unread(project, preset)
    values = checkout.resolved_params(project, preset, list(overrides))
    checkout.check_inputs(project, values)
    root = checkout.folder_of(project, values, preset, overrides, name)
    run_params.require_same(project, values, name)
    seen = values if root == project else checkout.seen_from(values, project, root)
    found = forecast(project, root, seen, stages_to_run(project, values, part, to))
    if json_wanted:
        options.print_json([dataclasses.asdict(one) for one in found])
        return
    sys.stdout.write(options.narrow(table([("stage", "would be", "why"), *map(_row, found)])))
    sys.stdout.write(_in_all(found) + "\n")
    if dvc.has_remote(project) and any(one.status == "runs" for one in found):
        sys.stdout.write("what would run is restored instead where the DVC remote has it; it was not asked\n")
    ends = ["--part", part] if part != ALL else [word for name in to for word in ("--to", name)]
    options.say_next(f"podium run{options.said(preset, overrides, name, *ends)}")


def _write(project: Path, laid_over: bool) -> None:
    if laid_over:
        raise ParamsError(
            "--write takes params.yaml as it is: leave --preset, --set and --name out, or write them into it"
        )
    changed = write_plan(project, load_params(project / artifacts.PARAMS))
    remove_gone(project, print)
    sys.stdout.write(f"{artifacts.PLAN} {'was written' if changed else 'says what params.yaml does'}\n")
    options.say_next("dvc repro, or podium run")


def _row(one: StageForecast) -> tuple[str, str, str]:
    status = {"runs": "run"}.get(one.status, one.status)
    more = f", and {len(one.why) - SHOWN} more" if len(one.why) > SHOWN else ""
    return one.stage, status, ", ".join(one.why[:SHOWN]) + more


def _in_all(found: list[StageForecast]) -> str:
    counts = {status: sum(one.status == status for one in found) for status in ("skipped", "restored", "runs")}
    return f"{counts['skipped']} stages are up to date, {counts['restored']} would be restored, {counts['runs']} run"
