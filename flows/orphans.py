"""What lies in DVC's cache and no run uses: objects that no dvc.lock of the project or of a checkout names, and no .dvc
file of the project.

`dvc gc -w -p CHECKOUT ...` would remove the same; it does not say how much that is, and reads every plan for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ipu_model.files import read_json
from tasks.project.dvc_at_work import dvc_processes
from tasks.project.errors import InputError
from tasks.project.stage_kinds import cache_of

OBJECTS = Path("files/md5")
MD5 = re.compile(r"\bmd5: ['\"]?([0-9a-f]{32}(?:\.dir)?)\b")
NOT_THE_USERS = {".dvc", ".git", ".venv", ".venv-poplar", "runs"}


def orphans(project: Path, locks: Iterable[Path]) -> list[Path]:
    """Files of the cache that nothing uses; lists of folders before what they hold, so that none is left half.

    Args:
        locks: the dvc.lock of each run that stays.

    Raises:
        InputError: the cache may be that of other projects, too, or what it holds cannot be read.
    """
    cache = cache_of(project)
    if not cache.resolve().is_relative_to(project.resolve()):
        raise InputError(
            f"DVC's cache {cache} lies outside of the project, so that others may use it: dvc gc -w with -p for each "
            "project and checkout removes what none of them uses"
        )
    used = set(_used(cache, [*locks, *_added(project)]))
    found = [path for path in (cache / OBJECTS).glob("??/*") if path.parent.name + path.name not in used]
    return sorted(found, key=lambda path: (path.suffix != ".dir", path))


def dvc_uses(cache: Path) -> bool:
    """Whether a DVC is at work on this cache, which nobody of this project may have started."""
    return any(here is None or cache_of(here).resolve() == cache.resolve() for _, here in dvc_processes())


def _added(project: Path) -> Iterator[Path]:
    """What somebody gave to DVC with `dvc add`."""
    for folder, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in NOT_THE_USERS]
        yield from (Path(folder, name) for name in names if name.endswith(".dvc"))


def _used(cache: Path, files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        for name in MD5.findall(path.read_text(encoding="utf-8")) if path.is_file() else ():
            yield name
            if name.endswith(".dir"):
                yield from _members(cache / OBJECTS / name[:2] / name[2:])


def _members(listing: Path) -> Iterator[str]:
    """What a folder holds, by the object that lists it; nothing where it was never brought to this host."""
    if not listing.is_file():
        return
    try:
        yield from (entry["md5"] for entry in read_json(listing))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{listing} does not list a folder ({error}): run dvc fetch, or remove it, and again"
        ) from None
