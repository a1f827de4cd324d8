"""`podium doctor`: what a run would find here, without starting one."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import textwrap

import click

from flows.checks import preflight
from flows.commands import options
from flows.commands.project import entered
from flows.runs.run_request import resolve_request
from tasks.stage import streams
from tasks.stage.errors import FAILED, WRONG_USAGE

MARKS = {"ok": "ok", "warning": "note", "problem": "NO"}
COLORS = {"ok": "green", "warning": "yellow", "problem": "red"}
WIDEST = 120
"""Characters of a line."""


@click.command(
    help="Look at this host, the device, files, the Hub, remotes, disk and server, as a run would. Nothing is started "
    "or changed. Exit code 0: a run can start; 1: this host, its environment or a given file stands in its way; "
    "2: the parameters do."
)
@options.parameters
@options.run_name
@options.as_json
@click.option("--no-publish", is_flag=True, help="as of a run that stops after the gate")
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    overrides: tuple[str, ...],
    name: str | None,
    json_wanted: bool,
    no_publish: bool,
) -> None:
    project = entered(ctx)
    options.tell_unread(project, preset)
    request = resolve_request(project, preset, overrides, publish=not no_publish, curious=True, name=name)
    findings = preflight.look(request)
    problems = [finding for finding in findings if finding.level == "problem"]
    if json_wanted:
        options.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        _print_table(findings)
    if not problems:
        options.say_next(f"podium run{request.words}")
        return
    options.say_next(f"turn what is named above, then again: podium doctor{request.words}")
    raise SystemExit(WRONG_USAGE if preflight.of_parameters(problems) else FAILED)


def _print_table(findings: list[preflight.Finding]) -> None:
    names = max(len(finding.name) for finding in findings)
    width = min(WIDEST, shutil.get_terminal_size().columns)
    for finding in findings:
        mark = click.style(f"{MARKS[finding.level]:<4}", fg=COLORS[finding.level])
        before = f"     {finding.name:<{names}}  "
        text = textwrap.fill(finding.text, width, initial_indent=before, subsequent_indent=" " * len(before))
        click.echo(f"{mark}{streams.printable(text)[4:]}", file=sys.stdout)
