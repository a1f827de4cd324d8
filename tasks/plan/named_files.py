"""Files and folders that a person names in params.yaml: looked at in one way, before anything is read or written there.

The path that is named may be a link. Below it the files are those that DVC hashes, and whatever a listing would pass
over without a word is refused by name: a linked folder (DVC does not look into it, and it may lead in a circle), what
this user may not read, pipes and devices, names that are not UTF-8. A link to a file of the same folder is followed
where files are read by their names, as are the links of the Hub's cache to its own blobs; where all of a folder is
read, every link is refused.

Plans come from one place, the project's own dvc.yaml. DVC runs the commands of every dvc.yaml below the project,
restores and deletes what .dvc files name, and does not see the files that a .dvcignore states or that lie beside a
`.dvc`: changes there go unnoticed. The project's .dvcignore keeps DVC from reading all of these but the last. Here they
are found before Podium starts DVC; plain DVC asks nobody before it starts, so a stage looks in Podium's place.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ipu_model.units import shorten
from tasks.params.downstream import PUBLISHED
from tasks.params.strict_yaml import leaves, value_at
from tasks.plan.plan_file import Plan, Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError

Links = Literal["none", "files", "any"]
"""Which links are good inside of a folder: none, those to files of its own, or any whose target can be read."""
INPUTS = Path("inputs")
IGNORING = ".dvcignore"
PLAN_NAMES = ("dvc.yaml", "dvc.lock", IGNORING)
PLAN_SUFFIX = ".dvc"
"""The suffix of files that name outs, and the whole name of a folder that makes another project of the one it is in."""
SHOWN_NAMES = 5
HOLDING = {
    "dangling": "link(s) that lead nowhere, {}: remove them, or put back what they lead to",
    "linked": "link(s), {}, which are not followed: put the files themselves in their place (cp -rL copies a folder so)"
    ", or set {key} to what they lead to",
    "special": "pipe(s), socket(s) or device(s), {}: take them out",
    "unnamed": "name(s) that are not UTF-8, {}: rename them",
    "ignoring": f"{IGNORING} file(s), {{}}, and DVC hashes no folder with one in it: take them out",
}
"""Kind of entry that is refused -> what is said of a folder that holds some."""
FILE, FOLDER, PLAN, PASSED_BY = "file", "folder", "plan", ""
"""Other kinds: files to read, folders to walk through, what DVC takes for its own, and the rest."""
Kind = Callable[[os.DirEntry[str]], str]

OWN_INPUTS = ("corpus.path", "tokenizer.path", "pretrain_rows.*.path", "base_model.path", "ipu.config")
INPUTS_OF_ENTRIES = tuple(f"downstream.*.{name}" for name in ("data.*path", "gate.released", "gate.seeds"))
READ = (*OWN_INPUTS, *INPUTS_OF_ENTRIES)
"""Parameters that name what is read: dependencies of stages, so that DVC hashes all of them in every run."""
NAMED = ("corpus.dataset", "pretrain_rows.*.dataset", "tokenizer.repository", "downstream.*.data.dataset")
"""Parameters that name something of the Hub, or a folder, where there is one of that name."""
WHOLE = ("corpus.path", "pretrain_rows.*.path", "downstream.*.data.path")
"""Of what is read: folders that are read as a whole, where `source` is files."""
RELEASED = ("downstream.*.publish.folder",)
"""Parameters that name the folder of a release, which publishing replaces as a whole."""
WRITTEN = (*RELEASED, "checkpoint.remote", "tracking.folder")
"""Parameters that name what is written."""
KEPT = (*artifacts.SOURCES, ".git", ".dvc", "presets", str(artifacts.FETCHED))
"""What a checkout holds beside what stages write and what users put there."""
OF_RUNS = artifacts.CHECKOUTS.parts


def find_parameters(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the parameters of these names that are not null, by their dotted names.

    Args:
        values: of params.yaml, or of some of its sections.
        names: of READ and the like; * stands for the name of an entry or of a phase.
    """
    pattern = _pattern(names)
    return {
        name: value
        for name, value in leaves(values)
        if value is not None
        and pattern.fullmatch(name)
        and not (value == PUBLISHED and name.endswith(".gate.released"))  # it is fetched
    }


@functools.cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, names)))


def given_paths(values: Mapping[str, Any]) -> list[str]:
    """All that the parameters name and that may be a path."""
    return list(find_parameters(values, (*READ, *NAMED)).values())


def check_given(values: dict[str, Any], root: Path) -> list[str]:
    """What is wrong with the files and folders that the parameters name: a sentence each, none where all is well.

    Args:
        values: of params.yaml, checked.
        root: the project, which relative paths count from.
    """
    problems = [problem for name in find_parameters(values, READ) for problem in _check_place(values, name, root)]
    return [*problems, *_check_plans(root, given_paths(values))]


def require_one_plan(root: Path, given: Iterable[str]) -> None:
    """Refuse what DVC would take for its own below the project's inputs and given paths.

    Raises:
        InputError: something was found.
    """
    if problems := _check_plans(root, given):
        raise InputError(problems[0])


def _check_plans(root: Path, given: Iterable[str]) -> list[str]:
    if not (found := foreign_plans(root, given)):
        return []
    return [
        f"DVC would take {_some(found)} for its own, and the only plan is the project's own dvc.yaml: take them out, "
        "or keep what holds them outside of the project"
    ]


def _check_place(values: dict[str, Any], key: str, root: Path) -> list[str]:
    path, words = value_at(values, key), key.split(".")
    if _trouble(root / path) is None and (root / path).resolve() in (root.resolve(), *root.resolve().parents):
        return [f"{key}='{shown(path)}' holds the project itself: name a file or folder with nothing else in it"]
    source = value_at(values, ".".join([*words[: 3 if words[0] == "downstream" else 1], "source"]))
    if source is not None and source not in ("files", "file", "folder"):
        return check_readable(root / path, key, "any", path)
    return check_readable(root / path, key, "none" if _pattern(WHOLE).fullmatch(key) else "files", path)


def is_plan(name: str) -> bool:
    """Whether DVC would take a file or folder of this name for its own; some file systems know no capitals."""
    name = name.lower()
    return name.endswith(PLAN_SUFFIX) or name in PLAN_NAMES


def inside(path: Path, root: Path) -> Path | None:
    """`path` as seen from the project `root`, None where it is outside, by its name and by where its links lead.

    Outside of the project DVC hashes what is given and looks for no plans: a folder there may be a DVC project itself.
    """
    for way in (os.path.abspath, os.path.realpath):
        place, project = Path(way(path)), Path(way(root))
        if place.is_relative_to(project):
            return place.relative_to(project)
    return None


def foreign_plans(root: Path, given: Iterable[str] = ()) -> list[str]:
    """What DVC would take for its own below the project's inputs and below given paths that are in the project.

    Args:
        root: the project.
        given: paths that the parameters name, from `root`; the folders that they lie in are looked at, too.

    Returns:
        Names from `root`.
    """
    there = [root / path for path in given if os.path.exists(root / path)]
    inner = {place for path in there if (place := inside(path, root)) is not None and place.parts}
    # What another run made is outside of the checkout that takes it up.
    places = {place for place in inner if not place.is_relative_to(artifacts.CHECKOUTS)}
    above = {folder for place in places for folder in place.parents[:-1]}
    found = {str(folder) for folder in (*places, *above) if is_plan(folder.name)}
    seen: set[str] = set()
    # All that is in given folders, then what lies beside them in the folders above.
    for folders, kind_of in (((INPUTS, *places), _plan_below), (above, _plan_here)):
        for folder in folders:
            names = _walk(root / folder, kind_of, seen)
            found |= {os.path.relpath(path, root) for kind, path in names if kind == PLAN}
    return sorted(found)


def _plan_here(entry: os.DirEntry[str]) -> str:
    return PLAN if is_plan(entry.name) else PASSED_BY


def _plan_below(entry: os.DirEntry[str]) -> str:
    """Linked folders are passed by, as DVC does."""
    return _plan_here(entry) or (FOLDER if entry.is_dir(follow_symlinks=False) else PASSED_BY)


def _walk(top: Path, kind_of: Kind, seen: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield kind and path of all that is in a folder, and in those of its folders that are of the kind FOLDER.

    The kind of what cannot be looked at is the reason. Paths are text: of many files, Path takes half of the time.

    Args:
        seen: folders that are passed by; it grows.
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


def check_written(values: Mapping[str, Any], root: Path, plan: Plan) -> list[str]:
    """Return what is wrong with the folders that the parameters name for what is written, a sentence each.

    Args:
        values: of params.yaml, checked.
        root: the project, which relative paths count from.
        plan: every stage that the parameters have.
    """
    found = []
    for key, path in find_parameters(values, WRITTEN).items():
        if "://" in path:
            continue
        for named in dict.fromkeys((root / path, Path(os.path.realpath(root / path)))):
            if (place_inside := inside(named, root)) is None:
                continue
            home, rest = _checkout_of(place_inside)
            stages = [*plan.values(), *read_plan(root / home).values()]
            if reason := _why_not(rest, stages, replaced=bool(_pattern(RELEASED).fullmatch(key))):
                found.append(f"{key}='{shown(path)}' {reason}: name another folder")
                break
    return found


def _checkout_of(path: Path) -> tuple[Path, Path]:
    """Split a path of the project into the checkout that it is in, the project's own or a run's, and the rest."""
    depth = len(OF_RUNS) + 1 if path.parts[: len(OF_RUNS)] == OF_RUNS else 0
    return Path(*path.parts[:depth]), Path(*path.parts[depth:])


def _why_not(path: Path, stages: Iterable[Stage], replaced: bool) -> str:
    """Say why nothing may be written to a folder of a checkout; empty where something may.

    Args:
        path: from the checkout.
        stages: that run there.
        replaced: whether what is written takes the place of the whole folder.
    """
    if replaced and not path.parts:
        return "holds a whole checkout, and a release replaces its folder"
    if path.parts and path.parts[0] in KEPT:
        return f"is in {path.parts[0]}, which Podium keeps for itself"
    for name, out in ((stage.name, Path(out)) for stage in stages for out in stage.outs):
        if out in (path, *path.parents):
            return f"is in {out}, which the stage {name} replaces when it runs"
        if replaced and path in out.parents:
            return f"holds {out} of the stage {name}, and a release replaces its folder"
    return ""


def check_readable(path: Path, key: str, links: Links = "files", name: Path | str | None = None) -> list[str]:
    """Whether this user can read a file, or everything in a folder.

    Args:
        path: may itself be a link.
        key: the params key that named it.
        links: which are good inside of it.
        name: how messages call it; None: `path`.

    Returns:
        What is wrong, a sentence for each kind of trouble.
    """
    return _look(path, key, links, name)[1]


def files_in(path: Path, key: str) -> list[Path]:
    """All files of a folder with its subfolders, in order of their names; of a file, that file.

    Raises:
        InputError: not all of it can be read; every trouble is named.
    """
    files, problems = _look(path, key, "none")
    if problems:
        raise InputError("\n".join(problems))
    return sorted(map(Path, files))


def require_readable(path: Path, key: str, links: Links = "files") -> None:
    """As `check_readable`.

    Raises:
        InputError: something is wrong.
    """
    if problems := check_readable(path, key, links):
        raise InputError("\n".join(problems))


def _look(path: Path, key: str, links: Links, name: Path | str | None = None) -> tuple[list[str], list[str]]:
    """The files there, and what is wrong."""
    name = path if name is None else name
    where = f"{key}='{shown(name)}'"
    if problem := _trouble(path) if is_utf8(str(name)) else "is not UTF-8: rename it":
        return [], [f"{where} {problem}"]
    if not path.is_dir():
        return [str(path)], []
    found: dict[str, list[str]] = defaultdict(list)
    for kind, place in _walk(path, functools.partial(_kind_of, path, links)):
        found[kind].append(place)
    files = found.pop(FILE, [])
    problems = []
    for kind, places in sorted(found.items()):
        names = sorted(os.path.relpath(place, path) for place in places)
        if kind in HOLDING:
            problems.append(f"{where} holds {len(names):,} {HOLDING[kind].format(_some(names), key=key)} ({key})")
        elif kind != PASSED_BY:
            reason = f"what this user cannot read, {_some(names)} ({kind}): allow it, or take it out"
            problems.append(f"{where} holds {reason} ({key})")
    return files, problems


def _kind_of(folder: Path, links: Links, entry: os.DirEntry[str]) -> str:
    """Return FILE, FOLDER, PASSED_BY for a link that is, or why an entry of a folder that is read is refused."""
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


def _some(names: Sequence[str]) -> str:
    return shown(shorten(names, SHOWN_NAMES))


def shown(name: Path | str) -> str:
    """A name for people: bytes that are not UTF-8, line ends and the like stand in it as escapes."""
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in str(name))


def _escape(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # how Python keeps a byte of a name that is not UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(letter)[1:-1]


def _trouble(path: Path) -> str | None:
    """Why the path that was named cannot be read."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            return f"is a link that leads nowhere ({shown(os.readlink(path))}): name what is there"
        home = "; ~ stands for nothing here, write the home folder out" if "~" in path.parts else ""
        return f"is not there; state a path that exists{home}"
    except (OSError, ValueError) as error:
        return f"cannot be read ({_reason(error)}): name a path that this user can read"
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return "is no file and no folder (a pipe, socket or device): name a file or folder"
    if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)):
        return "may not be read by this user (Permission denied): allow it, or name another path"
    return None


def is_utf8(name: str) -> bool:
    """Whether a name is text; others hold bytes that DVC and JSON have no way to write."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def leads_outside(path: Path | str, folder: Path) -> bool:
    """Whether a file of a folder is a link to something outside of it: what is there was not given.

    A snapshot of the Hub's cache holds links to the blobs beside it, which are its own.
    """
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    snapshot = next((one for one in (home, *home.parents) if one.parent.name == "snapshots"), None)
    places = [home] if snapshot is None else [home, snapshot.parent.parent / "blobs"]
    return not any(place in real.parents for place in places)
