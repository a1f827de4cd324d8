"""`podium clean`: remove what runs made, after saying what that is.

Never a run that is at work, never what was published.
"""

from __future__ import annotations

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
from flows.commands.project import Place, entered
from flows.runs import environment, listing, locks, log
from flows.runs.checkout import own_folder
from flows.runs.report import read_json_object
from ipu_model.files import read_json
from ipu_model.units import format_bytes
from tasks.params.tables import table
from tasks.plan.composing import FOLDERS
from tasks.plan.dvc_records import DAMAGED, LOCK, cache_of, dvc_processes, uses_cache
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError

LIVE = ".live"
"""In executables/: programs for IPUs that PopTorch keeps on this host (ipu_model/ipu/executables.py)."""
ORPHANS = "orphans"
OBJECTS = Path("files/md5")
MD5 = re.compile(r"\bmd5: ['\"]?([0-9a-f]{32}(?:\.dir)?)\b")
NOT_THE_USERS = {".dvc", ".git", ".venv", ".venv-poplar", "runs"}
REMOVED = ".removed-"
"""How the name of a checkout begins that is being removed: what is interrupted is no run any more."""


@dataclass(frozen=True)
class Chosen:
    """What somebody asked to remove."""

    names: tuple[str, ...] = ()
    every: bool = False
    """All runs, that of the project's own folder, too."""
    older_than: float | None = None
    """Seconds; runs that ended so long ago, logs and damaged files."""
    caches: bool = False
    orphans: bool = False


@dataclass(frozen=True)
class Part:
    """Something that can go."""

    name: str
    why: str
    paths: tuple[Path, ...]
    run: str = ""
    """Whose lock has to be free; empty: nobody's. `*`: all, and DVC's cache."""

    @property
    def size(self) -> listing.Size:
        """The room it takes."""
        return listing.size_of(self.paths)


@dataclass
class Found:
    """What is to go, and what was looked at and stays."""

    parts: list[Part] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Name and reason."""


def look(project: Path, chosen: Chosen) -> Found:
    """What would go.

    Raises:
        ParamsError: there is no run of a name.
        InputError: a run that was named is at work, or holds what was published.
    """
    found, busy = Found(), _busy()
    going = listing.named(project, chosen.names)
    for run in going:
        if reason := _in_use(run, busy) or _holds_release(run):
            raise InputError(f"{run.name} stays, and so does everything else: {reason}")
    before = time.time() - (chosen.older_than or 0.0)
    every = [run for run in listing.every(project) if run.name not in chosen.names]
    for run in every:
        if not chosen.every and (chosen.older_than is None or run.last >= before):
            continue
        if reason := _in_use(run, busy) or _holds_release(run) or ("" if chosen.every else _to_be_named(run)):
            found.kept.append((run.name, reason))
        else:
            going.append(run)
    found.parts = [*map(_part, going), *_left_over(project)]
    names = {run.name for run in going}
    left = [run for run in every if run.name not in names and not _in_use(run, busy)]
    if chosen.every or chosen.older_than is not None:
        found.parts += _aged(project, left, before)
    if chosen.caches:
        found.parts += _caches(project, left)
    if chosen.orphans and (objects := _orphans(project, names)):
        found.parts.append(
            Part(ORPHANS, f"{len(objects)} objects of DVC's cache that no run uses", tuple(objects), "*")
        )
    return found


def _orphans(project: Path, going: Collection[str]) -> list[Path]:
    """Files of the cache that no dvc.lock of a run that stays and no .dvc file of the project names.

    Lists of folders come before what they hold, so that none is left half.

    `dvc gc -w -p CHECKOUT ...` would remove the same; it does not say how much that is, and reads every plan for it.

    Args:
        going: names of the runs that do not stay.

    Raises:
        InputError: the cache may be that of other projects, too, or what it holds cannot be read.
    """
    cache = cache_of(project)
    if not cache.resolve().is_relative_to(project.resolve()):
        raise InputError(
            f"DVC's cache {cache} lies outside of the project, so that others may use it: dvc gc -w with -p for each "
            "project and checkout removes what none of them uses"
        )
    lock_files = (run.folder / LOCK for run in listing.every(project) if run.name not in going)
    used = set(_used(cache, [*lock_files, *_added(project)]))
    found = [path for path in (cache / OBJECTS).glob("??/*") if path.parent.name + path.name not in used]
    return sorted(found, key=lambda path: (path.suffix != ".dir", path))


def _added(project: Path) -> Iterator[Path]:
    """Yield the files of what a user added with `dvc add`."""
    for folder, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in NOT_THE_USERS]
        yield from (Path(folder, name) for name in names if name.endswith(".dvc"))


def _used(cache: Path, files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        for name in MD5.findall(path.read_text(encoding="utf-8")) if path.is_file() else ():
            yield name
            if name.endswith(".dir"):
                yield from _members(cache / OBJECTS / name[:2] / name[2:])


def _members(folder_object: Path) -> Iterator[str]:
    """Yield the hashes that the `.dir` object of a folder lists; none where this host has no such object."""
    if not folder_object.is_file():
        return
    try:
        yield from (entry["md5"] for entry in read_json(folder_object))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder_object} does not list a folder ({error}): run dvc fetch, or remove it, and again"
        ) from None


def _part(run: listing.Run) -> Part:
    status = f"{run.status}; what was published stays" if _receipts(run) else run.status
    return Part(run.name, status, tuple(path for path in run.parts() if os.path.lexists(path)), run.name)


def _busy() -> dict[Path, int]:
    """Where a DVC is at work: whoever started it, a run of that folder is in use."""
    return {here.resolve(): pid for pid, here in dvc_processes() if here is not None}


def _in_use(run: listing.Run, busy: Mapping[Path, int]) -> str:
    if run.at_work:
        return "it is at work"
    pid = busy.get(run.folder.resolve())
    return f"DVC is at work there (process {pid})" if pid else ""


def _to_be_named(run: listing.Run) -> str:
    if run.name == listing.PROJECT:
        return "the project's own results: name it to remove them"
    return "published: name it to remove its checkout; what was published stays" if _receipts(run) else ""


def _receipts(run: listing.Run) -> list[dict[str, Any]]:
    """What publishing said, once for each release."""
    files = sorted(run.folder.glob(str(artifacts.receipt_file("*"))))
    return [receipt for path in files if (receipt := read_json_object(path)) is not None]


def _holds_release(run: listing.Run) -> str:
    """Why what was published would go with a run; empty where it would not."""
    parts = [path.resolve() for path in run.parts()]
    for release in [run.folder / str(one["folder"]) for one in _receipts(run) if one.get("folder")]:
        files = [release, *release.rglob("*")] if release.is_dir() else []
        if inside := [path for path in files if any(path.resolve().is_relative_to(part) for part in parts)]:
            return f"what was published lies in it, or is a link into it ({inside[0]}): copy {release} elsewhere first"
    return ""


def _left_over(project: Path) -> Iterator[Part]:
    """What a removal that was interrupted left."""
    if left := tuple(own_folder(project, "").glob(f"{REMOVED}*")):
        yield Part("left over", "of a removal that was interrupted", left)


def _aged(project: Path, left: Sequence[listing.Run], before: float) -> Iterator[Part]:
    logs = [path for path in (project / log.LOGS).glob("*.log") if path.stat().st_mtime < before]
    if logs:
        yield Part("logs", f"{len(logs)} of runs", tuple(logs))
    for run in left:
        damaged = [path for path in (run.folder / DAMAGED).glob("*") if path.stat().st_mtime < before]
        if damaged:
            yield Part(f"{run.name}: damaged", "what was set aside as it had changed", tuple(damaged), run.name)


def _caches(project: Path, left: Sequence[listing.Run]) -> Iterator[Part]:
    home = project / environment.HOMES
    if home.is_dir():
        yield Part("home", "what libraries keep for users without a home", (home,), "*")
    for run in left:
        live = run.folder / artifacts.EXECUTABLES / LIVE
        if live.is_dir():
            yield Part(f"{run.name}: programs", "for IPUs, compiled again where they are needed", (live,), run.name)


def remove(project: Path, found: Found, say: Callable[[str], None]) -> None:
    """Remove it, each part only if nobody uses it now; a removal that is interrupted goes on when it is asked again.

    Args:
        say: told what stays after all.
    """
    going = {part.run for part in found.parts}
    for part in found.parts:
        taken = locks.cache_taken(project) if part.run == "*" else locks.taken(project, part.run)
        with taken if part.run else contextlib.nullcontext(True) as free:
            if not free or _is_in_use_by_dvc(project, part):
                say(f"{part.name} stays: a run, or DVC, is at work by now; again when it has ended")
                continue
            # What a run has restored since it was looked at is in use.
            still = set(_orphans(project, going)) if part.name == ORPHANS else set(part.paths)
            for path in part.paths:
                if path in still:
                    _remove(path)


def _is_in_use_by_dvc(project: Path, part: Part) -> bool:
    if part.run == "*":
        return uses_cache(cache_of(project))
    return bool(part.run) and listing.folder_of(project, part.run).resolve() in _busy()


def _remove(path: Path) -> None:
    """Remove a file or folder; a checkout is no run from the first moment on."""
    if path.parent.name == "checkouts" and not path.name.startswith(REMOVED):
        aside = path.with_name(f"{REMOVED}{path.name}-{os.getpid()}")
        path = path.rename(aside)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def in_all(project: Path) -> int:
    """Bytes of everything that runs made, DVC's cache included."""
    size = listing.size_of([*(project / name for name in FOLDERS), project / artifacts.RUNS, cache_of(project)])
    return size.own + size.shared


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
    chosen = Chosen(names, every, older_than, caches, orphans)
    if chosen == Chosen():
        found = look(project, Chosen(every=True, caches=True))
        found.parts += look(project, Chosen(orphans=True)).parts
        _show(found, "could go")
        options.say_next("podium clean NAME, --older-than 30d, --caches, --orphans or --all")
        return
    found = look(project, chosen)
    _show(found, "would go")
    if not found.parts:
        return
    if not yes and not sys.stdin.isatty():
        place: Place = ctx.obj
        options.say_next(f"nothing was removed; to do it: {place.words or 'podium clean'} --yes")
        return
    if yes or click.confirm("remove it?", err=True):
        before = in_all(project)
        remove(project, found, streams.note)
        after = in_all(project)
        sizes = (format_bytes(size) for size in (before, after))
        streams.say("runs and DVC's cache took {} and take {} now\n".format(*sizes))


def _show(found: Found, how: str) -> None:
    rows = [(part.name, format_bytes(part.size.own), part.why) for part in found.parts]
    if rows:
        whole = listing.size_of([path for part in found.parts for path in part.paths])
        streams.say(table([(how, "frees", ""), *rows, ("in all", format_bytes(whole.own), "")]))
        if whole.shared:
            size = format_bytes(whole.shared)
            streams.say(f"another {size} have names elsewhere, most in DVC's cache: see --orphans\n")
    else:
        streams.say(f"nothing {how}\n")
    for name, reason in found.kept:
        streams.say(f"{shlex.quote(name)} stays: {reason}\n")
