"""`podium releases`: list the releases of a published model, and give them names such as champion."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.project import enter_project, resolve_path
from flows.runs import listing
from ipu_model.core.strict import nearest
from tasks.params.sections import HUB_NAME
from tasks.plan.named_files import escape_name
from tasks.release.hub.token import TOKEN
from tasks.release.names import CHAMPION, FolderReleases, NamedReleases
from tasks.stage import streams
from tasks.stage.errors import InputError

name_options = options.combine_options(
    click.argument("model", shell_complete=options.complete_runs),
    options.json_option,
    click.option("--as", "name", default=CHAMPION, show_default=True, metavar="NAME", help="name of the release"),
)
"""Arguments that promote and rollback share."""


@click.group(
    cls=options.ListByDefault,
    help="List the releases of MODEL, a run, a published folder or a Hub repository, and name them. The default "
    "command is list.",
)
def command() -> None:
    pass


@command.command("list", help="List the releases of MODEL, newest first, with day, score, signature and names.")
@click.argument("model", shell_complete=options.complete_runs)
@options.json_option
@click.pass_context
def list_releases(ctx: click.Context, model: str, as_json: bool, **_: Any) -> None:
    target = open_releases(ctx, model)
    releases = target.describe()
    if as_json:
        options.print_json([asdict(release) for release in releases])
        return
    scores = [escape_name(release.score) for release in releases]  # of a card that others may have edited
    for release, score in zip(releases, scores, strict=True):
        signed = "signed" if release.signed else "unsigned"
        words = (
            release.tag,
            release.published or "",
            score.ljust(max(map(len, scores))),
            f"{signed:8}",
            ", ".join(release.names),
        )
        streams.say_line("  ".join(words).rstrip())
    if not releases:
        streams.note(f"{target.title} has no release yet: podium publish RUN publishes one", "")


@command.command(
    help="Give the name champion, or one of your own, to a release of MODEL. RELEASE is its tag; without it, the "
    "newest. Gates compare with the champion."
)
@name_options
@click.argument("release", required=False)
@click.pass_context
def promote(ctx: click.Context, model: str, release: str | None, name: str, as_json: bool, **_: Any) -> None:
    target = open_releases(ctx, model)
    print_change(target, name, target.promote(release, name), as_json)


@command.command(help="Give the name champion, or one of your own, back to the release that had it before.")
@name_options
@click.pass_context
def rollback(ctx: click.Context, model: str, name: str, as_json: bool, **_: Any) -> None:
    target = open_releases(ctx, model)
    print_change(target, name, target.rollback(name), as_json)


def open_releases(ctx: click.Context, model: str) -> NamedReleases:
    """Return the releases of a run's publish target, of a published folder or of a Hub repository.

    Raises:
        InputError: there is no such target, or the run has published nothing, or to several targets.
    """
    project = enter_project(ctx)
    runs = {run.name: run for run in listing.list_all(project)}
    folder = resolve_path(ctx, Path(model))
    if model in runs and (record := runs[model].record) is not None:
        receipts = [result["published"] for result in record.results.values() if result.get("published")]
        if len(receipts) != 1:
            count = "several models" if receipts else "no model"
            raise InputError(f"run {model} has published {count}: pass the folder or repository of the release")
        model = receipts[0].get("repository") or receipts[0]["folder"]
        folder = project / model
    if folder.is_dir():
        return FolderReleases(Path(folder), model)
    if not HUB_NAME.fullmatch(model):
        raise InputError(f"{model} is not a run, a folder or a repository{nearest(model, list(runs))}")
    if not os.environ.get(TOKEN):
        raise InputError(
            f"{model} is not a run or a folder; for a repository on the Hub, export a write token as {TOKEN}"
        )
    from tasks.release.hub.name_tags import HubReleases  # slow to import

    return HubReleases(model)


def print_change(target: NamedReleases, name: str, change: tuple[str, str | None], as_json: bool) -> None:
    """Print which release has a name now, and which one had it before."""
    release, before = change
    if as_json:
        options.print_json({"name": name, "release": release, "before": before, "model": target.address(name)})
        return
    was = "unchanged" if before == release else f"before: {before or 'none'}"
    streams.say_line(f"{name} of {target.title} is {release} ({was})")
    newest = next(iter(target.releases()))
    if newest != release:
        streams.say_line(f"{target.title} itself keeps its newest release, {newest}: load {target.address(name)}")
    options.print_next(f"podium predict {target.address(name)} --text TEXT")
