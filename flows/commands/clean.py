"""`podium clean`: remove what runs made, after saying what that is."""

from __future__ import annotations

import re
import shlex
import sys

import click

from flows import cleaning, runs
from flows.commands import options
from flows.commands.project import Place, entered
from ipu_model.units import format_bytes
from tasks.project import streams
from tasks.project.params_command import table

SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def _read_age(text: str) -> float:
    stated = re.fullmatch(r"(\d+)([hdw])", text)
    if stated is None:
        raise click.BadParameter(f"{text!r} is no age: a number and h, d or w for hours, days or weeks, as in 30d")
    return int(stated[1]) * SECONDS[stated[2]]


@click.command(
    help="Remove runs and what they left. Says first what would go, and asks. A run that is at work stays, and so does "
    "what was published. Without a choice it says what could go.",
    epilog="What goes of a run is its checkout; of the run '.' what lies in the project's folder. DVC's cache keeps "
    "their outs until --orphans.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=options.complete_runs)
@click.option("--older-than", type=_read_age, metavar="30d", help="runs that ended so long ago, logs, damaged files")
@click.option("--caches", is_flag=True, help="what is made again: a lent home, programs for IPUs beside DVC's")
@click.option("--orphans", is_flag=True, help="objects of DVC's cache that no run here uses")
@click.option("--all", "every", is_flag=True, help="every run and log, and the results in the project's own folder")
@click.option("--yes", is_flag=True, help="do not ask")
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    older_than: float | None,
    caches: bool,
    orphans: bool,
    every: bool,
    yes: bool,
) -> None:
    project = entered(ctx)
    chosen = cleaning.Chosen(names, every, older_than, caches, orphans)
    if chosen == cleaning.Chosen():
        found = cleaning.look(project, cleaning.Chosen(every=True, caches=True))
        found.parts += cleaning.look(project, cleaning.Chosen(orphans=True)).parts
        _show(found, "could go")
        options.say_next("podium clean NAME, --older-than 30d, --caches, --orphans or --all")
        return
    found = cleaning.look(project, chosen)
    _show(found, "would go")
    if not found.parts:
        return
    if not yes and not sys.stdin.isatty():
        place: Place = ctx.obj
        options.say_next(f"nothing was removed; to do it: {place.words or 'podium clean'} --yes")
        return
    if yes or click.confirm("remove it?", err=True):
        before = cleaning.in_all(project)
        cleaning.remove(project, found, streams.note)
        after = cleaning.in_all(project)
        sizes = (format_bytes(size) for size in (before, after))
        streams.say("runs and DVC's cache took {} and take {} now\n".format(*sizes))


def _show(found: cleaning.Found, how: str) -> None:
    rows = [(part.name, format_bytes(part.size.own), part.why) for part in found.parts]
    if rows:
        whole = runs.size_of([path for part in found.parts for path in part.paths])
        streams.say(table([(how, "frees", ""), *rows, ("in all", format_bytes(whole.own), "")]))
        if whole.shared:
            size = format_bytes(whole.shared)
            streams.say(f"another {size} have names elsewhere, most in DVC's cache: see --orphans\n")
    else:
        streams.say(f"nothing {how}\n")
    for name, reason in found.kept:
        streams.say(f"{shlex.quote(name)} stays: {reason}\n")
