"""Plans come from one place, the project's own dvc.yaml: what DVC would take for its own among given files is refused.

DVC runs the commands of every dvc.yaml below the project, restores and deletes what .dvc files name, and does not see
the files that a .dvcignore states or that lie beside a `.dvc`: changes there go unnoticed. The project's .dvcignore
keeps DVC from reading all of these but the last. Here they are found before Podium starts DVC; plain DVC asks nobody
before it starts, so a stage looks in Podium's place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tasks.project import artifacts

INPUTS = Path("inputs")
IGNORING = ".dvcignore"
NAMES = ("dvc.yaml", "dvc.lock", IGNORING)
SUFFIX = ".dvc"
"""The suffix of files that name outs, and the whole name of a folder that makes another project of the one it is in."""


def is_plan(name: str) -> bool:
    """Whether DVC would take a file or folder of this name for its own; some file systems know no capitals."""
    name = name.lower()
    return name.endswith(SUFFIX) or name in NAMES


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
    seen: set[str] = set()
    found = {name for place in (INPUTS, *places) for name in _below(root, place, seen)}
    above = {folder for place in places for folder in place.parents[:-1]}
    found |= {str(folder) for folder in (*places, *above) if is_plan(folder.name)}
    for folder in above:
        if (path := os.path.join(root, folder)) not in seen:
            found |= {str(folder / entry.name) for entry in _entries(path) if is_plan(entry.name)}
    return sorted(found)


def _below(root: Path, place: Path, seen: set[str]) -> Iterator[str]:
    """Names from `root`; linked folders are passed by, as DVC does, and so are those `seen` before, which grow."""
    folders = [str(place)]
    while folders:
        folder = folders.pop()
        path = os.path.join(root, folder)
        if path in seen:
            continue
        seen.add(path)
        for entry in _entries(path):
            name = f"{folder}/{entry.name}"
            if is_plan(entry.name):
                yield name
            elif entry.is_dir(follow_symlinks=False):
                folders.append(name)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where this user cannot look, as DVC cannot either, and where it is none."""
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return []
