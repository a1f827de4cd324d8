"""`podium doctor`: check whether this host can start a run."""

import dataclasses
import shutil
import sys
import textwrap
from typing import Any

import click

from flows.checks import preflight
from flows.commands import options
from flows.commands.project import enter_project
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.stage import streams
from tasks.stage.errors import FAILED, WRONG_USAGE

MARKS = {"ok": "ok", "warning": "note", "problem": "NO"}
COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}
WIDEST = 120
"""Maximum characters in a line."""


@click.command(
    help="Check this host, the device, input files, the Hub, remotes, disk and server, as a run would. Nothing is "
    "started or changed. Exit code 0: a run can start; 1: the host, its environment or an input file prevents it; "
    "2: the parameters do."
)
@options.parameter_options
@options.name_option
@options.json_option
@click.option("--no-publish", is_flag=True, help="check for a run that stops after the gate")
@click.pass_context
def command(ctx: click.Context, as_json: bool, no_publish: bool, **asked: Any) -> None:
    project = enter_project(ctx)
    options.warn_unread_params(project, asked["preset"])
    request = resolve_request(project, RunOptions(**asked, publish=not no_publish), thorough=True)
    findings = preflight.run_checks(request)
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        options.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _print_table(findings)
    if not problems:
        options.print_next(f"podium run{request.options.as_words}")
        return
    options.print_next(f"fix the items marked NO, then rerun podium doctor{request.options.as_words}")
    raise SystemExit(WRONG_USAGE if preflight.has_parameter_problem(problems) else FAILED)


def _print_table(findings: list[preflight.CheckResult]) -> None:
    names = max(len(finding.name) for finding in findings)
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for finding in findings:
        mark = click.style(f"{MARKS[finding.level]:<4}", fg=COLORS[finding.level])
        before = f"     {finding.name:<{names}}  "
        text = textwrap.fill(finding.text, width, initial_indent=before, subsequent_indent=" " * len(before))
        click.echo(f"{mark}{streams.printable(text)[4:]}", file=sys.stdout)
