"""`podium plan`: show what a run would do, why, and its time and memory. It changes nothing."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flows import dvc
from flows.checks.preflight import require_fitting_model
from flows.commands import options
from flows.commands.ledger import print_ledger
from flows.commands.project import enter_project, resolve_output
from flows.runs import checkout, run_params
from flows.runs.run_estimate import RunEstimate, estimate_run
from flows.runs.run_options import RunOptions
from flows.runs.run_request import RunRequest, resolve_request
from flows.views import plan_page
from ipu_model.core.files import write_text
from tasks.estimates.job_estimates import MK2, EstimateOptions
from tasks.params.schema import load_params
from tasks.plan import stages
from tasks.plan.named_files import list_input_paths
from tasks.plan.plan_file import PLAN_FILE
from tasks.plan.writing import remove_stale, write_project_plan
from tasks.stage import artifacts, streams
from tasks.stage.errors import WRONG_USAGE, ParamsError

GB = 1e9


@click.command(
    help="Show which stages a run would skip, restore or run, and why. For each device job, estimate memory, time and "
    "throughput, and name the parameters that change them. Nothing is run or changed, except by --measure and --write. "
    "Exit code 2: a device job cannot run with these parameters. RUN: plan with the parameters of that run."
)
@click.argument("run", required=False, shell_complete=options.complete_runs)
@options.parameter_options
@options.name_option
@options.stage_options
@click.option("--price", type=click.FloatRange(0, min_open=True), metavar="PER_HOUR", help="price of one device hour")
@click.option("--memory", type=click.FloatRange(0, min_open=True), metavar="GB", help="of each GPU, or of a CPU host")
@click.option("--bow", is_flag=True, help="plan for Bow IPUs instead of Mk2")
@click.option("--measure", is_flag=True, help="time a few updates of each job on a CPU or GPU, and record the results")
@click.option("--page", type=options.FILE, metavar="FILE", help="write the plan as an HTML page")
@click.option("--ledger", "of_past", is_flag=True, help="only compare past estimates on this host with measurements")
@click.option("--write", is_flag=True, help="only write dvc.yaml, for `dvc repro`, from params.yaml")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    price: float | None,
    memory: float | None,
    bow: bool,
    measure: bool,
    page: Path | None,
    of_past: bool,
    write: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    if of_past:
        print_ledger(as_json)
        return
    project, overrides = enter_project(ctx), asked["overrides"]
    if write:
        _write(project, bool(run or asked["preset"] or overrides or asked["name"]))
        return
    wanted, values = RunOptions(**asked), None
    if run is not None:
        wanted, values = run_params.copy_params(project, run, wanted)
    options.warn_unread_params(project, wanted.preset if run is None else None)
    request = resolve_request(project, wanted, values)
    require_fitting_model(request)
    if page is not None:
        project_paths = (artifacts.PARAMS, artifacts.PRESETS, PLAN_FILE)
        read = [*project_paths, *map(Path, list_input_paths(request.values))]
        page = resolve_output(ctx, page, [project / path for path in read])
    limit = None if memory is None else memory * GB
    measured = request.target if measure else ()
    words = "".join(f" --set {shlex.quote(text)}" for text in overrides)
    again = None if run is None else f"podium run --like {run}{words}"
    show_plan(request, as_json, price, EstimateOptions((), limit, "bow" if bow else MK2, measured), page, again)


def show_plan(
    request: RunRequest,
    as_json: bool,
    price: float | None = None,
    estimating: EstimateOptions | None = None,
    page: Path | None = None,
    again: str | None = None,
    notes: Sequence[str] | None = None,
) -> None:
    """Print what a run would do, and write it as a page if there is a file for it.

    Args:
        price: of a device hour.
        again: command that starts the run; None: `podium run` with the options of the request.
        notes: lines about the input files, if they were checked; None: read the development sets.

    Raises:
        ParamsError, InputError: the run would be refused.
        SystemExit: a device job cannot run with these parameters.
    """
    project, again = request.project, again or f"podium run{request.options.as_words}"
    checkout.check_inputs(project, request.values, request.plan)
    estimate = estimate_run(request, price, dataclasses.replace(estimating or EstimateOptions(), say=streams.note))
    if page is not None:
        write_text(page, plan_page.render_plan(estimate, request, page.parent, again))
    if as_json:
        options.print_json(estimate.as_values())
    else:
        streams.say(options.truncate_lines(plan_page.format_stages(estimate)))
        streams.say(plan_page.format_jobs(estimate))
        from flows.checks.input_checks import describe_dev_sets

        for text in describe_dev_sets(request.params) if notes is None else notes:
            streams.say_line(text)
        if dvc.has_remote(project) and any(stage.status == "runs" for stage in estimate.stages):
            streams.say("the DVC remote was not checked: stages that it has are restored instead of run\n")
    _end(estimate, again, as_json)


def _end(estimate: RunEstimate, again: str, as_json: bool) -> None:
    """Print the next step: the run, or what to change if it would be refused."""
    impossible = [job.name for job in estimate.running if job.impossible]
    refused = impossible or [job.name for job in estimate.running if job.refusal]
    if refused:
        what = "cannot run with these parameters" if impossible else "does not fit into memory"
        options.print_next(f"{', '.join(refused)} {what}: change the parameter named above, and plan again")
    elif not as_json:
        options.print_next(again)
    if impossible:
        raise SystemExit(WRONG_USAGE)


def _write(project: Path, laid_over: bool) -> None:
    if laid_over:
        raise ParamsError(
            "--write uses params.yaml only: leave out RUN, --preset, --set and --name, or put them into params.yaml"
        )
    changed = write_project_plan(project, stages.define(load_params(project / artifacts.PARAMS)))
    remove_stale(project, print)
    streams.say(f"{PLAN_FILE} {'written' if changed else 'is already up to date with params.yaml'}\n")
    options.print_next("dvc repro, or podium run")
