"""What DVC does not say when a stage fails: a disk that is full, and a file that no longer holds what was written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.project import intact
from tasks.project.errors import InputError
from tasks.project.plan_file import read_plan
from tasks.project.stage_kinds import cache_of

NOT_KEPT = "ERROR: failed to transfer "
"""How DVC begins the line about a file it could not copy into its cache; it may still end with exit code 0."""
PARAMETERS = re.compile(r"Unable to read parameters from '([^']+)'")
"""DVC reads parameters of a stage (compile: the manifest of rows) before any of our code may look at the file."""
LITTLE = 64 * 1024
"""Bytes; a disk with less room than this is full for every writer here."""


def explain(stage: str, root: Path, tail: Sequence[str]) -> str:
    """What is known beyond DVC's own words, each part behind "; ". Empty where nothing is.

    Args:
        stage: the stage that failed.
        root: the checkout.
        tail: the last lines DVC printed.
    """
    return "".join(f"; {part}" for part in (*_full_disks(stage, root), *_damaged(root, tail)))


def _full_disks(stage: str, root: Path) -> Iterable[str]:
    """Names the folders of a failed stage whose disk has no room left."""
    plan = read_plan(root)
    outs = plan[stage].outs if stage in plan else ()
    places = [root, cache_of(root), *(root / Path(out).parent for out in outs)]
    full: dict[int, Path] = {}
    for place in places:
        while not place.exists():
            place = place.parent
        state = os.statvfs(place)
        if state.f_bavail * state.f_frsize < LITTLE:
            full.setdefault(place.stat().st_dev, place)
    return [f"No space left on device: the disk of {place} is full, make room there" for place in full.values()]


def _damaged(root: Path, tail: Sequence[str]) -> Iterable[str]:
    """Looks at the files that DVC could not read parameters from, as stages look at what they read."""
    for name in {found[1] for line in tail if (found := PARAMETERS.search(line))}:
        folders = [str(parent) for parent in (Path(name), *Path(name).parents)]
        try:
            intact.require(folders, root)
        except InputError as error:
            yield str(error)
