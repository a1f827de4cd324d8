"""`podium open`: open the page of a run, or of all runs, in the browser."""

import os
import sys
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from flows.commands import options, runs
from flows.commands.project import enter_project
from flows.runs import listing
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Variables of which one is set on Linux if a browser can open a window."""
REMOTE = ("SSH_CONNECTION", "SSH_TTY")
"""Variables of which one is set in a shell over ssh, where a browser would open on the wrong host."""


@click.command(
    help="Open the page of RUN in the browser, or without RUN that of the run started last. Prints the page's address, "
    "and only that over ssh, without a display and into a pipe."
)
@click.argument("run", required=False, shell_complete=options.complete_runs)
@click.option("--all", "every", is_flag=True, help="open the page of all runs instead")
@click.pass_context
def command(ctx: click.Context, run: str | None, every: bool) -> None:
    if every and run is not None:
        raise click.UsageError(f"--all opens the page of all runs: leave out {run} or --all", ctx)
    project = enter_project(ctx)
    address = _find_address(project, _write_index(project) if every else _find_page(project, run))
    streams.say_line(address)
    if has_browser() and not webbrowser.open(address):
        streams.note("no browser could be started: open the address above")


def _find_page(project: Path, name: str | None) -> Path:
    """Return the page of a run, with its current status; None: of the run started last."""
    shown = listing.find_runs(project, [name]) if name is not None else listing.list_shown(project)[:1]
    if not shown:
        raise InputError("no runs yet: podium run starts one")
    runs.fix_pages(project, shown)
    page = shown[0].folder / artifacts.RUN_PAGE
    if not page.is_file():
        raise InputError(f"run {shown[0].name} has no page: it is {shown[0].status}")
    return page


def _write_index(project: Path) -> Path:
    from flows.views import index_page  # slow to import

    runs.fix_pages(project, listing.list_all(project))
    index_page.write_index(project)
    return project / artifacts.INDEX_PAGE


def _find_address(project: Path, page: Path) -> str:
    """Return the URL of a page: on the web server that serves the project, if there is one, else of the file."""
    from flows.views.run_view import PAGES_URL

    base = os.environ.get(PAGES_URL)
    return f"{base.rstrip('/')}/{quote(str(page.relative_to(project)))}" if base else page.resolve().as_uri()


def has_browser() -> bool:
    """Return whether a browser would open in front of the user who called this command."""
    if not sys.stdout.isatty() or any(map(os.environ.get, REMOTE)):
        return False
    return not sys.platform.startswith("linux") or any(map(os.environ.get, DISPLAYS))
