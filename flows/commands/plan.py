"""`podium plan`: what a run would do, why, and what it would take; it does nothing."""

from __future__ import annotations

from pathlib import Path

import click

from flows import dvc
from flows.commands import options
from flows.commands.project import entered, output_file
from flows.runs import checkout
from flows.runs.run_estimate import RunEstimate, estimate_run
from flows.runs.run_request import resolve_request
from flows.views import plan_page
from ipu_model.files import write_text
from tasks.estimates.job_estimates import MK2, EstimateOptions
from tasks.params.schema import load_params
from tasks.plan.composing import compose, remove_gone, write_plan
from tasks.plan.named_files import given_paths
from tasks.stage import artifacts, streams
from tasks.stage.errors import WRONG_USAGE, ParamsError

GB = 1e9


@click.command(
    help="Say which stages a run would skip, restore or run, and why; of each device job the memory, time and "
    "throughput to expect, what decides them, and what moves it. Runs nothing and changes nothing, but for --measure. "
    "Exit code 2: a device job cannot run as stated."
)
@options.parameters
@options.run_name
@options.stages
@click.option("--price", type=click.FloatRange(0, min_open=True), metavar="X", help="of an hour of the device(s)")
@click.option("--memory", type=click.FloatRange(0, min_open=True), metavar="GB", help="of each GPU, or of a CPU host")
@click.option("--bow", is_flag=True, help="the IPUs are Bow and not Mk2")
@click.option("--measure", is_flag=True, help="time a few updates of each job on a CPU or GPU; keep what they take")
@click.option("--page", type=click.Path(path_type=Path), metavar="FILE", help="write all of it as a page (HTML)")
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
    price: float | None,
    memory: float | None,
    bow: bool,
    measure: bool,
    page: Path | None,
    write: bool,
    json_wanted: bool,
) -> None:
    project = entered(ctx)
    if write:
        _write(project, preset is not None or bool(overrides) or name is not None)
        return
    options.tell_unread(project, preset)
    request = resolve_request(project, preset, overrides, part, to, name=name)
    checkout.check_inputs(project, request.values, request.plan)
    if page is not None:
        own = (artifacts.PARAMS, artifacts.PLAN, artifacts.PRESETS, Path("dvc.yaml"))
        read = [*own, *map(Path, given_paths(request.values))]
        page = output_file(ctx, page, [project / one for one in read])
    limit = None if memory is None else memory * GB
    measured = request.target if measure else ()
    found = estimate_run(request, price, EstimateOptions((), limit, "bow" if bow else MK2, measured, say=streams.note))
    if page is not None:
        write_text(page, plan_page.page(found, request, preset))
    if json_wanted:
        options.print_json(found.as_values())
    else:
        streams.say(options.narrow(plan_page.stages_text(found)))
        streams.say(plan_page.jobs_text(found))
        if dvc.has_remote(project) and any(one.status == "runs" for one in found.stages):
            streams.say("what would run is restored instead where the DVC remote has it; it was not asked\n")
    _end(found, request.words, json_wanted)


def _end(found: RunEstimate, words: str, json_wanted: bool) -> None:
    """Say what is useful next; a plan of a run that would be refused does not propose it."""
    impossible = [job.name for job in found.running if job.impossible]
    refused = impossible or [job.name for job in found.running if job.refusal]
    if refused:
        what = "cannot run as stated" if impossible else "does not fit"
        options.say_next(f"{', '.join(refused)} {what}: change the parameter named above, then podium plan{words}")
    elif not json_wanted:
        options.say_next(f"podium run{words}")
    if impossible:
        raise SystemExit(WRONG_USAGE)


def _write(project: Path, laid_over: bool) -> None:
    if laid_over:
        raise ParamsError(
            "--write takes params.yaml as it is: leave --preset, --set and --name out, or write them into it"
        )
    changed = write_plan(project, compose(load_params(project / artifacts.PARAMS)))
    remove_gone(project, print)
    streams.say(f"{artifacts.PLAN} {'was written' if changed else 'says what params.yaml does'}\n")
    options.say_next("dvc repro, or podium run")
