"""`podium clean`: list what runs left behind, then remove it.

Running runs and published models are never removed.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.project import CommandContext, enter_project
from flows.runs import environment, listing, locks, log
from flows.runs.report import read_json_object
from ipu_model.core.files import read_json
from ipu_model.core.units import format_bytes, format_count
from tasks.params.tables import format_table
from tasks.plan.dvc_records import DAMAGED, LOCK, dvc_processes, find_cache, uses_cache
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError

LIVE = ".live"
"""Folder in executables/ with the IPU programs that PopTorch caches on this host (ipu_model/ipu/executables.py)."""
ORPHANS = "orphans"
OBJECTS = Path("files/md5")
MD5 = re.compile(r"\bmd5: ['\"]?([0-9a-f]{32}(?:\.dir)?)\b")
SKIPPED_FOLDERS = {".dvc", ".git", ".venv", ".venv-poplar", "runs"}


@dataclass(frozen=True)
class RemovalItem:
    """Files that are removed together."""

    name: str
    why: str
    paths: tuple[Path, ...]
    run: str = ""
    """Run whose lock must be free. Empty: none. `*`: all runs and DVC's cache."""


def plan_removal(
    project: Path,
    names: Sequence[str] = (),
    every: bool = False,
    older_than: float | None = None,
    caches: bool = False,
    orphans: bool = False,
) -> tuple[list[RemovalItem], dict[str, str]]:
    """Decide what would be removed; remove nothing.

    Args:
        project: project folder.
        names: names of runs.
        every: all runs, including the one in the project folder.
        older_than: minimum age, in seconds, of runs, logs and damaged files.
        caches: caches that are rebuilt when needed.
        orphans: objects in DVC's cache that no run uses.

    Returns:
        Items to remove, and name -> reason of the selected runs that stay.

    Raises:
        ParamsError: a named run does not exist.
        InputError: a named run is running, or contains a published model.
    """
    retained, busy = dict[str, str](), _running_dvc()
    going = listing.find_runs(project, names)
    for run in going:
        if reason := _use_of(run, busy) or _release_inside(run):
            raise InputError(f"{run.name} cannot be removed, so nothing was: {reason}")
    before = time.time() - (older_than or 0.0)
    others = [run for run in listing.list_all(project) if run.name not in names]
    for run in others:
        if every or (older_than is not None and run.last < before):
            if reason := _use_of(run, busy) or _release_inside(run) or ("" if every else _needs_name(run)):
                retained[run.name] = reason
            else:
                going.append(run)
    items = [*map(_run_item, going)]
    removed = {run.name for run in going}
    left = [run for run in others if run.name not in removed and not _use_of(run, busy)]
    if every or older_than is not None:
        items += _old_items(project, left, before)
    if caches:
        items += _cache_items(project, left)
    if orphans and (objects := _orphans(project, removed)):
        why = format_count(len(objects), "objects in DVC's cache that no run uses")
        items.append(RemovalItem(ORPHANS, why, tuple(objects), "*"))
    return items, retained


def _orphans(project: Path, going: Collection[str]) -> list[Path]:
    """Return the cache files that no dvc.lock of a remaining run and no .dvc file of the project references.

    Directory listings come before the files they list, so that an interrupted removal leaves no incomplete folder.

    `dvc gc -w -p CHECKOUT ...` would remove the same files, but it does not report their size, and it reads every plan.

    Args:
        going: names of the runs to remove.

    Raises:
        InputError: the cache may be shared with other projects, or its contents cannot be read.
    """
    cache = find_cache(project)
    if not cache.resolve().is_relative_to(project.resolve()):
        raise InputError(
            f"DVC's cache {cache} is outside the project, and other projects may use it: run dvc gc -w with -p for "
            "each project and checkout"
        )
    files = [run.folder / LOCK for run in listing.list_all(project) if run.name not in going]
    for folder, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        files += [Path(folder, name) for name in names if name.endswith(".dvc")]
    used = {name for path in files if path.is_file() for name in MD5.findall(path.read_text(encoding="utf-8"))}
    for name in [name for name in used if name.endswith(".dir")]:
        listed = cache / OBJECTS / name[:2] / name[2:]
        try:
            used.update(entry["md5"] for entry in (read_json(listed) if listed.is_file() else ()))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{listed} is not a directory listing ({error}): run dvc fetch or remove the file, then try again"
            ) from None
    unused = [path for path in (cache / OBJECTS).glob("??/*") if path.parent.name + path.name not in used]
    return sorted(unused, key=lambda path: (path.suffix != ".dir", path))


def _run_item(run: listing.Run) -> RemovalItem:
    status = f"{run.status}; its published model stays" if _receipts(run) else run.status
    return RemovalItem(run.name, status, tuple(path for path in run.parts() if os.path.lexists(path)), run.name)


def _running_dvc() -> dict[Path, int]:
    """Return folder -> process ID of each running DVC. A run in such a folder is in use."""
    return {folder.resolve(): pid for pid, folder in dvc_processes() if folder is not None}


def _use_of(run: listing.Run, busy: Mapping[Path, int]) -> str:
    if run.at_work:
        return "it is running"
    pid = busy.get(run.folder.resolve())
    return f"DVC is running there (process {pid})" if pid else ""


def _needs_name(run: listing.Run) -> str:
    if run.name == listing.PROJECT:
        return "results in the project folder; pass the name to remove them"
    return "published; pass the name to remove its checkout (the published model stays)" if _receipts(run) else ""


def _receipts(run: listing.Run) -> list[dict[str, Any]]:
    files = sorted(run.folder.glob(str(artifacts.receipt_file("*"))))
    return [receipt for path in files if (receipt := read_json_object(path)) is not None]


def _release_inside(run: listing.Run) -> str:
    """Return why removing the run would remove a published model; empty if it would not."""
    parts = [path.resolve() for path in run.parts()]
    for release in [run.folder / str(receipt["folder"]) for receipt in _receipts(run) if receipt.get("folder")]:
        files = [release, *release.rglob("*")] if release.is_dir() else []
        if inside := [path for path in files if any(path.resolve().is_relative_to(part) for part in parts)]:
            return f"its published model is inside it or links into it ({inside[0]}): copy {release} elsewhere first"
    return ""


def _old_items(project: Path, left: Sequence[listing.Run], before: float) -> Iterator[RemovalItem]:
    logs = [path for path in (project / log.LOGS).glob("*.log") if path.stat().st_mtime < before]
    if logs:
        yield RemovalItem("logs", format_count(len(logs), "run logs"), tuple(logs))
    for run in left:
        damaged = [path for path in (run.folder / DAMAGED).glob("*") if path.stat().st_mtime < before]
        if damaged:
            yield RemovalItem(f"{run.name}: damaged", "files set aside as damaged", tuple(damaged), run.name)


def _cache_items(project: Path, left: Sequence[listing.Run]) -> Iterator[RemovalItem]:
    home = project / environment.HOMES
    if home.is_dir():
        yield RemovalItem("home", "library caches of users without a home folder", (home,), "*")
    for run in left:
        live = run.folder / artifacts.EXECUTABLES / LIVE
        if live.is_dir():
            yield RemovalItem(f"{run.name}: programs", "IPU programs, compiled again when needed", (live,), run.name)


def remove_items(project: Path, items: Sequence[RemovalItem], say: Callable[[str], None]) -> None:
    """Remove the items that are not in use. Call it again to resume an interrupted removal.

    Args:
        say: called with a message for each item that is in use and stays.
    """
    going = {part.run for part in items}
    for part in items:
        if link := next(filter(None, (_link_above(path, project) for path in part.paths)), None):
            say(f"{part.name} stays: {link} is a link, and nothing is removed through links. Remove it where it points")
            continue
        taken = locks.try_lock_cache(project) if part.run == "*" else locks.try_lock_run(project, part.run)
        with taken if part.run else contextlib.nullcontext(True) as free:
            if not free or _is_in_use_by_dvc(project, part):
                say(f"{part.name} stays: a run or DVC uses it now; try again when that has ended")
                continue
            # A run may have restored some of these objects since they were listed.
            still = set(_orphans(project, going)) if part.name == ORPHANS else set(part.paths)
            for path in part.paths:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path in still:
                    path.unlink(missing_ok=True)


def _link_above(path: Path, project: Path) -> Path | None:
    """Return a folder between the project and a path that is a link, as to another disk or another user's files."""
    above = [parent for parent in path.parents if parent.is_relative_to(project) and parent != project]
    return next((parent for parent in above if parent.is_symlink()), None)


def _is_in_use_by_dvc(project: Path, part: RemovalItem) -> bool:
    if part.run == "*":
        return uses_cache(find_cache(project))
    return bool(part.run) and listing.run_folder(project, part.run).resolve() in _running_dvc()


SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def _read_age(text: str) -> float:
    match = re.fullmatch(r"(\d+)([hdw])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not an age: use a number and h, d or w (hours, days, weeks), as in 30d")
    return int(match[1]) * SECONDS[match[2]]


@click.command(
    help="Remove runs and leftover files. Lists them first and asks for confirmation. Running runs and published "
    "models stay. Without names or options it only lists what could be removed.",
    epilog="Removing a run removes its checkout; for the run '.', its results in the project folder. DVC's cache keeps "
    "the outs of both until --orphans.",
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=options.complete_runs)
@click.option("--older-than", type=_read_age, metavar="AGE", help="runs, logs, damaged files older than this, e.g. 30d")
@click.option("--caches", is_flag=True, help="caches that are rebuilt when needed (runs/home, IPU programs)")
@click.option("--orphans", is_flag=True, help="objects in DVC's cache that no run here uses")
@click.option("--all", "every", is_flag=True, help="all runs and logs, and the results in the project folder")
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
@click.pass_context
def command(ctx: click.Context, yes: bool, **chosen: Any) -> None:
    project = enter_project(ctx)
    if not any(chosen.values()) and chosen["older_than"] is None:
        removed, retained = plan_removal(project, every=True, caches=True)
        removed += plan_removal(project, orphans=True)[0]
        _print_plan(removed, retained, "can be removed")
        options.print_next("podium clean NAME, --older-than 30d, --caches, --orphans or --all")
        return
    removed, retained = plan_removal(project, **chosen)
    _print_plan(removed, retained, "to remove")
    if not removed:
        return
    if not yes and not sys.stdin.isatty():
        context: CommandContext = ctx.obj
        options.print_next(f"nothing was removed; to remove it: {context.command_line or 'podium clean'} --yes")
    elif yes or click.confirm("remove it?", err=True):
        remove_items(project, removed, streams.note)


def _print_plan(items: Sequence[RemovalItem], retained: Mapping[str, str], how: str) -> None:
    if items:
        rows = [(item.name, format_bytes(listing.measure_disk(item.paths).own), item.why) for item in items]
        whole = listing.measure_disk([path for item in items for path in item.paths])
        streams.say(format_table([(how, "frees", ""), *rows, ("total", format_bytes(whole.own), "")]))
        if whole.shared:
            size = format_bytes(whole.shared)
            streams.say(f"another {size} is shared by hard links, mostly with DVC's cache: see --orphans\n")
    else:
        streams.say(f"nothing {how}\n")
    for name, reason in retained.items():
        streams.say(f"{shlex.quote(name)} stays: {reason}\n")
