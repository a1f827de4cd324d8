"""Files and folders that params.yaml names, checked in one way before anything is read or written there.

A named path may be a link. Below it, the files are those that DVC hashes, and everything that a listing would skip
silently is rejected by name: linked folders (DVC does not enter them, and they may form a cycle), files that this user
cannot read, pipes and devices, names that are not UTF-8. A link to a file in the same folder is followed if files are
read by name, as are links in the Hub's cache to its own blobs; if a whole folder is read, every link is rejected.

The only pipeline is the project's own dvc.yaml. DVC would run the commands of every dvc.yaml below the project, restore
and delete what .dvc files name, and miss changes in files that a .dvcignore lists or that are next to a `.dvc`. The
project's .dvcignore hides all of these but the last from DVC. Podium checks for them before it starts DVC; plain DVC
does not, so each stage checks as well.
"""

import fnmatch
import functools
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ipu_model.core.units import shorten
from tasks.params.downstream import PUBLISHED, UNCOMPARED
from tasks.params.strict_yaml import leaves, value_at
from tasks.plan.plan_file import PLAN_FILE, Plan, Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError

Links = Literal["none", "files", "any"]
"""Allowed links in a folder: none, links to files of the folder, or any whose target can be read."""
INPUTS = Path("inputs")
IGNORING = ".dvcignore"
PLAN_NAMES = ("dvc.yaml", "dvc.lock", IGNORING)
PLAN_SUFFIX = ".dvc"
"""Suffix of files that name outs, and name of the folder that marks a separate DVC project."""
SHOWN_NAMES = 5
HOLDING = {
    "dangling": "broken link(s), {}: remove them, or restore their targets",
    "linked": "link(s), {}, which are not followed: replace them with the files (cp -rL copies a folder that way)"
    ", or set {key} to their target",
    "special": "pipe(s), socket(s) or device(s), {}: remove them",
    "unnamed": "name(s) that are not UTF-8, {}: rename them",
    "ignoring": f"{IGNORING} file(s), {{}}, and DVC does not hash a folder with one: remove them",
}
"""Kind of rejected entry -> message about a folder that contains some."""
FILE, FOLDER, PLAN, PASSED_BY = "file", "folder", "plan", ""
"""Other kinds: files to read, folders to enter, DVC files, and everything else."""
Kind = Callable[[os.DirEntry[str]], str]

OWN_INPUTS = ("corpus.path", "tokenizer.path", "pretrain_rows.*.path", "base_model.path", "ipu.config")
INPUTS_OF_ENTRIES = tuple(
    f"downstream.*.{name}" for name in ("data.*path", "gate.released", "gate.seeds", "distill.teacher")
)
READ = (*OWN_INPUTS, *INPUTS_OF_ENTRIES)
"""Parameters that name inputs: dependencies of stages, which DVC hashes in every run."""
NAMED = ("corpus.dataset", "pretrain_rows.*.dataset", "tokenizer.repository", "downstream.*.data.dataset")
"""Parameters that name something on the Hub, or a local folder of that name if it exists."""
WHOLE = ("corpus.path", "pretrain_rows.*.path", "downstream.*.data.path")
"""Inputs that are folders read as a whole, if `source` is files."""
RELEASED = ("downstream.*.publish.folder",)
"""Parameters that name the folder of a release, which publishing replaces as a whole."""
WRITTEN = (*RELEASED, "checkpoint.remote", "tracking.folder")
"""Parameters that name outputs."""
KEPT = (*artifacts.SOURCES, str(PLAN_FILE), ".git", ".dvc", "presets", str(artifacts.FETCHED))
"""Contents of a checkout other than outs of stages and files of users."""
OF_RUNS = artifacts.CHECKOUTS.parts


def find_parameters(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters with these names that are not null, by dotted name; * matches an entry or a phase."""
    pattern = _pattern(names)
    return {
        name: value
        for name, value in leaves(values)
        if value is not None
        and pattern.fullmatch(name)
        and not (value in (PUBLISHED, UNCOMPARED) and name.endswith(".gate.released"))
    }


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, names)))


def list_input_paths(values: Mapping[str, Any]) -> list[str]:
    """Return all values of parameters that may be a path."""
    return list(find_parameters(values, (*READ, *NAMED)).values())


def check_input_paths(values: dict[str, Any], root: Path) -> list[str]:
    """Return the problems of files and folders that the parameters name, one sentence each."""
    problems = [problem for name in find_parameters(values, READ) for problem in _check_place(values, name, root)]
    try:
        reject_dvc_files(root, list_input_paths(values))
    except InputError as error:
        problems.append(str(error))
    return problems


def reject_dvc_files(root: Path, paths: Iterable[str]) -> None:
    """Reject DVC files below the project's inputs and the named paths.

    Raises:
        InputError: a DVC file was found.
    """
    if owned := find_dvc_files(root, paths):
        raise InputError(
            f"DVC would treat {_shorten_names(owned)} as its own, but only the project's dvc.yaml may be used: remove "
            "them or move their folder out of the project"
        )


def _check_place(values: dict[str, Any], key: str, root: Path) -> list[str]:
    path, words = value_at(values, key), key.split(".")
    if _trouble(root / path) is None and (root / path).resolve() in (root.resolve(), *root.resolve().parents):
        return [
            f"{key}='{escape_name(path)}' contains the project itself: set it to a file or folder with the data only"
        ]
    source = value_at(values, ".".join([*words[: 3 if words[0] == "downstream" else 1], "source"]))
    if source is not None and source not in ("files", "file", "folder"):
        return inspect_files(root / path, key, "any", path)[1]
    return inspect_files(root / path, key, "none" if _pattern(WHOLE).fullmatch(key) else "files", path)[1]


def is_dvc_file(name: str) -> bool:
    """Return True if DVC would use a file or folder of this name; case-insensitive, as some file systems are."""
    name = name.lower()
    return name.endswith(PLAN_SUFFIX) or name in PLAN_NAMES


def locate_in_project(path: Path, root: Path) -> Path | None:
    """Return `path` relative to the project `root`; None if it is outside, by name and after resolving links.

    DVC hashes inputs outside of the project and does not look for DVC files there; such a folder may be a DVC project.
    """
    for normalize in (os.path.abspath, os.path.realpath):
        absolute, project = Path(normalize(path)), Path(normalize(root))
        if absolute.is_relative_to(project):
            return absolute.relative_to(project)
    return None


def find_dvc_files(root: Path, paths: Iterable[str] = ()) -> list[str]:
    """Return DVC files, relative to `root`, below the project's inputs and below `paths` that are in the project.

    The parent folders of the paths, which the parameters name, are checked as well.
    """
    present = [root / path for path in paths if os.path.exists(root / path)]
    inner = {relative for path in present if (relative := locate_in_project(path, root)) is not None and relative.parts}
    # Outs of another run are outside of the checkout that uses them.
    places = {path for path in inner if not path.is_relative_to(artifacts.CHECKOUTS)}
    above = {folder for path in places for folder in path.parents[:-1]}
    named = {str(folder) for folder in (*places, *above) if is_dvc_file(folder.name)}
    seen: set[str] = set()
    # Everything in the named folders, then their siblings in the parent folders.
    for folders, is_deep in (((INPUTS, *places), True), (above, False)):
        for folder in folders:
            names = _walk(root / folder, functools.partial(_kind_for_dvc, is_deep), seen)
            named |= {os.path.relpath(path, root) for kind, path in names if kind == PLAN}
    return sorted(named)


def _kind_for_dvc(is_deep: bool, entry: os.DirEntry[str]) -> str:
    """Return PLAN for a DVC file, and FOLDER to search a folder below, if `is_deep`; DVC skips linked folders."""
    if is_dvc_file(entry.name):
        return PLAN
    return FOLDER if is_deep and entry.is_dir(follow_symlinks=False) else PASSED_BY


def _walk(top: Path, kind_of: Kind, seen: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield kind and path of everything in a folder, recursively through folders of kind FOLDER but those in `seen`.

    The kind of an unreadable entry is the reason. Paths are text, because Path doubles the time for many files.
    """
    seen = set() if seen is None else seen
    folders = [str(top)]
    while folders:
        if (folder := folders.pop()) in seen:
            continue
        seen.add(folder)
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            yield _reason(error), folder
            continue
        for entry in entries:
            try:
                kind = kind_of(entry)
            except OSError as error:
                kind = _reason(error)
            if kind == FOLDER:
                folders.append(entry.path)
            else:
                yield kind, entry.path


def check_output_folders(values: Mapping[str, Any], root: Path, plan: Plan) -> list[str]:
    """Return the problems of folders that the parameters name for outputs, one sentence each."""
    problems, targets = [], dict[str, str]()
    for key, path in find_parameters(values, WRITTEN).items():
        if "://" in path:
            continue
        is_target = bool(_pattern(RELEASED).fullmatch(key))
        if is_target and (first := targets.setdefault(os.path.realpath(root / path), key)) != key:
            problems.append(f"{key}='{escape_name(path)}' is the folder of {first}: set it to another folder")
            continue
        for named in dict.fromkeys((root / path, Path(os.path.realpath(root / path)))):
            if (place_inside := locate_in_project(named, root)) is None:
                continue
            # The checkout is the project's own, or that of a run.
            depth = len(OF_RUNS) + 1 if place_inside.parts[: len(OF_RUNS)] == OF_RUNS else 0
            home, rest = Path(*place_inside.parts[:depth]), Path(*place_inside.parts[depth:])
            stages = [*plan.values(), *read_plan(root / home).values()]
            if reason := _why_not(rest, stages, replaced=is_target):
                problems.append(f"{key}='{escape_name(path)}' {reason}: set it to another folder")
                break
    return problems


def _why_not(path: Path, stages: Iterable[Stage], replaced: bool) -> str:
    """Return why a path in a checkout cannot be written to; empty if it can."""
    if replaced and not path.parts:
        return "contains a whole checkout, and a release replaces its folder"
    if path.parts and path.parts[0] in KEPT:
        return f"is in {path.parts[0]}, which Podium uses"
    for name, out in ((stage.name, Path(out)) for stage in stages for out in stage.outs):
        if out in (path, *path.parents):
            return f"is in {out}, which the stage {name} replaces when it runs"
        if replaced and path in out.parents:
            return f"contains {out} of the stage {name}, and a release replaces its folder"
    return ""


def list_files(path: Path, key: str) -> list[Path]:
    """Return all files below a folder, sorted by name; for a file, that file. Raise as `require_readable`."""
    return sorted(map(Path, require_readable(path, key, "none")))


def require_readable(path: Path, key: str, links: Links = "files") -> list[str]:
    """Require that this user can read a path, and return its files; see `inspect_files`.

    Raises:
        InputError: it cannot be read; the message lists all problems.
    """
    files, problems = inspect_files(path, key, links)
    if problems:
        raise InputError("\n".join(problems))
    return files


def inspect_files(
    path: Path, key: str, links: Links = "files", name: Path | str | None = None
) -> tuple[list[str], list[str]]:
    """Return the files of a folder, or a file, and the problems with reading them, one sentence per kind.

    Messages name the path `name`, by default as it is.
    """
    name = path if name is None else name
    where = f"{key}='{escape_name(name)}'"
    if problem := _trouble(path) if is_utf8(str(name)) else "is not UTF-8: rename it":
        return [], [f"{where} {problem}"]
    if not path.is_dir():
        return [str(path)], []
    by_kind: dict[str, list[str]] = defaultdict(list)
    for kind, entry in _walk(path, functools.partial(_kind_of, path, links)):
        by_kind[kind].append(entry)
    files = by_kind.pop(FILE, [])
    problems = []
    for kind, places in sorted(by_kind.items()):
        names = sorted(os.path.relpath(member, path) for member in places)
        if kind in HOLDING:
            problems.append(
                f"{where} contains {len(names):,} {HOLDING[kind].format(_shorten_names(names), key=key)} ({key})"
            )
        elif kind != PASSED_BY:
            shown = _shorten_names(names)
            reason = f"files that this user cannot read, {shown} ({kind}): fix their permissions, or remove them"
            problems.append(f"{where} contains {reason} ({key})")
    return files, problems


def _kind_of(folder: Path, links: Links, entry: os.DirEntry[str]) -> str:
    """Return FILE, FOLDER, PASSED_BY for an allowed folder link, or the reason to reject an entry of a folder."""
    if not is_utf8(entry.name):
        return "unnamed"
    if entry.name == IGNORING:
        return "ignoring"
    if entry.is_symlink():
        if not os.path.exists(entry.path):
            return "dangling"
        if links == "none" or (links == "files" and (entry.is_dir() or leads_outside(entry.path, folder))):
            return "linked"
        if entry.is_dir():
            return PASSED_BY
    elif entry.is_dir():
        return FOLDER
    if not entry.is_file():
        return "special"
    return FILE if os.access(entry.path, os.R_OK) else "Permission denied"


def _shorten_names(names: Sequence[str]) -> str:
    return escape_name(shorten(names, SHOWN_NAMES))


def escape_name(name: Path | str) -> str:
    """Return a name for messages, with bytes that are not UTF-8, line ends and similar characters escaped."""
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in str(name))


def _escape(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # surrogateescape encoding of a byte
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(letter)[1:-1]


def _trouble(path: Path) -> str | None:
    """Return why a named path cannot be read; None if it can."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            return f"is a broken link ({escape_name(os.readlink(path))}): set it to a path that exists"
        home = "; ~ is not expanded, write out the home folder" if "~" in path.parts else ""
        return f"does not exist: set it to a path that exists{home}"
    except (OSError, ValueError) as error:
        return f"cannot be read ({_reason(error)}): set it to a path that this user can read"
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return "is neither a file nor a folder (a pipe, socket or device): set it to a file or folder"
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        return "cannot be read by this user (Permission denied): fix its permissions, or set another path"
    return None


def is_utf8(name: str) -> bool:
    """Return True if a name is valid text; DVC and JSON cannot write other bytes."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def leads_outside(path: Path | str, folder: Path) -> bool:
    """Return True if a file of a folder links to a target outside of it, which the user did not name.

    A snapshot in the Hub's cache links to the blobs next to it, which belong to it.
    """
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    snapshot = next((ancestor for ancestor in (home, *home.parents) if ancestor.parent.name == "snapshots"), None)
    places = [home] if snapshot is None else [home, snapshot.parent.parent / "blobs"]
    return not any(root in real.parents for root in places)
