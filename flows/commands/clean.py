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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.project import CommandContext, enter_project
from flows.runs import environment, listing, locks, log
from flows.runs.checkout import checkout_folder
from flows.runs.report import read_json_object
from ipu_model.files import read_json
from ipu_model.units import format_bytes
from tasks.params.tables import format_table
from tasks.plan.composing import FOLDERS
from tasks.plan.dvc_records import DAMAGED, LOCK, dvc_processes, find_cache, uses_cache
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError

LIVE = ".live"
"""Folder in executables/ with the IPU programs that PopTorch caches on this host (ipu_model/ipu/executables.py)."""
ORPHANS = "orphans"
OBJECTS = Path("files/md5")
MD5 = re.compile(r"\bmd5: ['\"]?([0-9a-f]{32}(?:\.dir)?)\b")
SKIPPED_FOLDERS = {".dvc", ".git", ".venv", ".venv-poplar", "runs"}
REMOVED = ".removed-"
"""Prefix of a checkout while it is removed. An interrupted removal does not leave something that looks like a run."""


@dataclass(frozen=True)
class Selection:
    """Selection of what to remove."""

    names: tuple[str, ...] = ()
    every: bool = False
    """All runs, including the one in the project folder."""
    older_than: float | None = None
    """Minimum age, in seconds, of runs, logs and damaged files."""
    caches: bool = False
    orphans: bool = False


@dataclass(frozen=True)
class RemovalItem:
    """Files that are removed together."""

    name: str
    why: str
    paths: tuple[Path, ...]
    run: str = ""
    """Run whose lock must be free. Empty: none. `*`: all runs and DVC's cache."""

    @property
    def size(self) -> listing.DiskUsage:
        """Disk space of the files."""
        return listing.measure_disk(self.paths)


@dataclass
class RemovalPlan:
    """Parts to remove, and runs that stay."""

    parts: list[RemovalItem] = field(default_factory=list)
    retained: list[tuple[str, str]] = field(default_factory=list)
    """Name of a run and why it stays."""


def plan_removal(project: Path, chosen: Selection) -> RemovalPlan:
    """Decide what would be removed; remove nothing.

    Raises:
        ParamsError: a named run does not exist.
        InputError: a named run is running, or contains a published model.
    """
    found, busy = RemovalPlan(), _running_dvc()
    going = listing.find_runs(project, chosen.names)
    for run in going:
        if reason := _use_of(run, busy) or _release_inside(run):
            raise InputError(f"{run.name} cannot be removed, so nothing was: {reason}")
    before = time.time() - (chosen.older_than or 0.0)
    every = [run for run in listing.list_all(project) if run.name not in chosen.names]
    for run in every:
        if not chosen.every and (chosen.older_than is None or run.last >= before):
            continue
        if reason := _use_of(run, busy) or _release_inside(run) or ("" if chosen.every else _needs_name(run)):
            found.retained.append((run.name, reason))
        else:
            going.append(run)
    found.parts = [*map(_run_item, going), *_interrupted_removals(project)]
    names = {run.name for run in going}
    left = [run for run in every if run.name not in names and not _use_of(run, busy)]
    if chosen.every or chosen.older_than is not None:
        found.parts += _old_items(project, left, before)
    if chosen.caches:
        found.parts += _cache_items(project, left)
    if chosen.orphans and (objects := _orphans(project, names)):
        found.parts.append(
            RemovalItem(ORPHANS, f"{len(objects)} objects in DVC's cache that no run uses", tuple(objects), "*")
        )
    return found


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
    lock_files = (run.folder / LOCK for run in listing.list_all(project) if run.name not in going)
    used = set(_used_hashes(cache, [*lock_files, *_dvc_files(project)]))
    found = [path for path in (cache / OBJECTS).glob("??/*") if path.parent.name + path.name not in used]
    return sorted(found, key=lambda path: (path.suffix != ".dir", path))


def _dvc_files(project: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in names if name.endswith(".dvc"))


def _used_hashes(cache: Path, files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        for name in MD5.findall(path.read_text(encoding="utf-8")) if path.is_file() else ():
            yield name
            if name.endswith(".dir"):
                yield from _listed_hashes(cache / OBJECTS / name[:2] / name[2:])


def _listed_hashes(folder_object: Path) -> Iterator[str]:
    """Yield the hashes that the `.dir` object of a folder lists; none if this host lacks the object."""
    if not folder_object.is_file():
        return
    try:
        yield from (entry["md5"] for entry in read_json(folder_object))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder_object} is not a directory listing ({error}): run dvc fetch or remove the file, then try again"
        ) from None


def _run_item(run: listing.Run) -> RemovalItem:
    status = f"{run.status}; its published model stays" if _receipts(run) else run.status
    return RemovalItem(run.name, status, tuple(path for path in run.parts() if os.path.lexists(path)), run.name)


def _running_dvc() -> dict[Path, int]:
    """Return folder -> process ID of each running DVC. A run in such a folder is in use."""
    return {here.resolve(): pid for pid, here in dvc_processes() if here is not None}


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
    for release in [run.folder / str(one["folder"]) for one in _receipts(run) if one.get("folder")]:
        files = [release, *release.rglob("*")] if release.is_dir() else []
        if inside := [path for path in files if any(path.resolve().is_relative_to(part) for part in parts)]:
            return f"its published model is inside it or links into it ({inside[0]}): copy {release} elsewhere first"
    return ""


def _interrupted_removals(project: Path) -> Iterator[RemovalItem]:
    if left := tuple(checkout_folder(project, "").glob(f"{REMOVED}*")):
        yield RemovalItem("left over", "from an interrupted removal", left)


def _old_items(project: Path, left: Sequence[listing.Run], before: float) -> Iterator[RemovalItem]:
    logs = [path for path in (project / log.LOGS).glob("*.log") if path.stat().st_mtime < before]
    if logs:
        yield RemovalItem("logs", f"{len(logs)} run log{'s' if len(logs) > 1 else ''}", tuple(logs))
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


def remove_items(project: Path, found: RemovalPlan, say: Callable[[str], None]) -> None:
    """Remove the parts that are not in use. Call it again to resume an interrupted removal.

    Args:
        say: called with a message for each part that is in use and stays.
    """
    going = {part.run for part in found.parts}
    for part in found.parts:
        taken = locks.try_lock_cache(project) if part.run == "*" else locks.try_lock_run(project, part.run)
        with taken if part.run else contextlib.nullcontext(True) as free:
            if not free or _is_in_use_by_dvc(project, part):
                say(f"{part.name} stays: a run or DVC uses it now; try again when that has ended")
                continue
            # A run may have restored some of these objects since they were listed.
            still = set(_orphans(project, going)) if part.name == ORPHANS else set(part.paths)
            for path in part.paths:
                if path in still:
                    _remove(path)


def _is_in_use_by_dvc(project: Path, part: RemovalItem) -> bool:
    if part.run == "*":
        return uses_cache(find_cache(project))
    return bool(part.run) and listing.run_folder(project, part.run).resolve() in _running_dvc()


def _remove(path: Path) -> None:
    """Remove a file or folder. A checkout is renamed first, so that it no longer counts as a run."""
    if path.parent.name == "checkouts" and not path.name.startswith(REMOVED):
        aside = path.with_name(f"{REMOVED}{path.name}-{os.getpid()}")
        path = path.rename(aside)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def total_bytes(project: Path) -> int:
    """Return the bytes of all files that runs made, including DVC's cache."""
    size = listing.measure_disk([*(project / name for name in FOLDERS), project / artifacts.RUNS, find_cache(project)])
    return size.own + size.shared


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
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    older_than: float | None,
    caches: bool,
    orphans: bool,
    every: bool,
    yes: bool,
) -> None:
    project = enter_project(ctx)
    chosen = Selection(names, every, older_than, caches, orphans)
    if chosen == Selection():
        found = plan_removal(project, Selection(every=True, caches=True))
        found.parts += plan_removal(project, Selection(orphans=True)).parts
        _print_plan(found, "can be removed")
        options.print_next("podium clean NAME, --older-than 30d, --caches, --orphans or --all")
        return
    found = plan_removal(project, chosen)
    _print_plan(found, "to remove")
    if not found.parts:
        return
    if not yes and not sys.stdin.isatty():
        context: CommandContext = ctx.obj
        options.print_next(f"nothing was removed; to remove it: {context.command_line or 'podium clean'} --yes")
        return
    if yes or click.confirm("remove it?", err=True):
        before = total_bytes(project)
        remove_items(project, found, streams.note)
        after = total_bytes(project)
        sizes = (format_bytes(size) for size in (before, after))
        streams.say("runs and DVC's cache: {} before, {} now\n".format(*sizes))


def _print_plan(found: RemovalPlan, how: str) -> None:
    rows = [(part.name, format_bytes(part.size.own), part.why) for part in found.parts]
    if rows:
        whole = listing.measure_disk([path for part in found.parts for path in part.paths])
        streams.say(format_table([(how, "frees", ""), *rows, ("total", format_bytes(whole.own), "")]))
        if whole.shared:
            size = format_bytes(whole.shared)
            streams.say(f"another {size} is shared by hard links, mostly with DVC's cache: see --orphans\n")
    else:
        streams.say(f"nothing {how}\n")
    for name, reason in found.retained:
        streams.say(f"{shlex.quote(name)} stays: {reason}\n")
