"""Whether a stage reads what the stages before it wrote: bytes against the hashes that dvc.lock states.

DVC looks at a file's bytes again only when its time or its size changed. What a disk changes by itself changes
neither, so a stage that runs looks at all it is going to read, and so does publish.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path

from tasks.common.errors import InputError
from tasks.common.stage_kinds import paths_of, read_dvc_file

LOCK = Path("dvc.lock")
THREADS = 8
"""Hashing leaves Python's lock alone; a core hashes about 0.6 GB/s, a disk reads more."""


def require_inputs(stage: str, root: Path = Path()) -> None:
    """Look at everything that `stage` of dvc.yaml reads and a stage before it wrote.

    Raises:
        InputError: see `require`.
    """
    require(paths_of(stage, root, ("deps",)), root)


def require(paths: Iterable[str], root: Path = Path()) -> None:
    """Look at those of `paths` that dvc.lock states as an output, wherever they are there.

    Raises:
        InputError: one holds other bytes than its stage wrote. Its time is set to now, so that DVC looks at it again
            and the next run restores it.
    """
    written = _written(root)
    for path in paths:
        if path not in written or not (root / path).exists():
            continue
        found = md5_of(root / path)
        if found != written[path]:
            _show_to_dvc(root / path)
            raise InputError(
                f"{path} does not hold what its stage wrote (MD5 {found}, dvc.lock says {written[path]}): it was "
                "changed by hand, or the disk is damaged. Run again: DVC restores it from its cache, or makes it anew"
            )


def _written(root: Path) -> dict[str, str]:
    """Path -> MD5 (of a folder: of the list of its files) of every output that dvc.lock states."""
    stages = read_dvc_file(root / LOCK).get("stages", {})
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", []) if "md5" in out}


def md5_of(path: Path) -> str:
    """The MD5 that DVC gives a file, or a folder: that of the JSON list of its files, sorted by name."""
    if path.is_file():
        return _md5_of_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = list(pool.map(_md5_of_file, files))
    listed = [
        {"md5": found, "relpath": file.relative_to(path).as_posix()} for file, found in zip(files, hashes, strict=True)
    ]
    text = json.dumps(sorted(listed, key=itemgetter("relpath")), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _show_to_dvc(path: Path) -> None:
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        os.utime(file)
