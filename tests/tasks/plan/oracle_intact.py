"""An oracle of tasks/plan/dvc_records.py, as it was before: bytes against the hashes that dvc.lock states.

DVC looks at a file's bytes again only when its time or its size changed, and never at those that it takes from its
cache or a remote. What a disk changes by itself changes neither, nor does who means to deceive, so a stage that runs
looks at all it is going to read, and so do a run that believes a verdict, and publish.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ipu_model.files import parse_json
from tasks.plan.dvc_records import at_work, cache_of, default_remote
from tasks.plan.plan_file import read_dvc_file
from tasks.stage import artifacts
from tasks.stage.errors import InputError

LOCK = Path("dvc.lock")
THREADS = 8
"""Hashing leaves Python's lock alone; a core hashes about 0.6 GB/s, a disk reads more."""
DAMAGED = artifacts.RUNS / "damaged"
STAGE = "DVC_STAGE"
"""Set by DVC for what it starts, which then runs itself."""
FOLDER = ".dir"
"""How DVC ends the hash of a folder, which is that of the list of its files."""


class _Stated(NamedTuple):
    """A path of the checkout and the MD5 that dvc.lock gives it."""

    path: str
    md5: str


def require(paths: Iterable[str], root: Path = Path()) -> None:
    """Look at those of `paths` that are, or are in, an output of dvc.lock, wherever they are there.

    Raises:
        InputError: some hold other bytes than their stage wrote. They are moved to runs/damaged, and objects of DVC's
            cache that are not what their names say are removed, which DVC would put back: the next run restores the
            files, or makes them again.
    """
    written = _outs(read_dvc_file(root / LOCK))
    _require([stated for path in paths if (stated := _stated(path, written, root)) is not None], root, root)


def require_judged(stage: str, root: Path = Path(), copies: Path | None = None) -> None:
    """Look at what a gate wrote, and at all that it read of other stages, as its entry in dvc.lock states them.

    Args:
        stage: of dvc.yaml.
        root: the checkout.
        copies: of its files, dvc.lock included, to look at in place of the files themselves.

    Raises:
        InputError: see `require`.
    """
    place = root if copies is None else copies
    lock = read_dvc_file(place / LOCK)
    made, entry = _outs(lock), lock.get("stages", {}).get(stage, {})
    paths = [item for part in ("deps", "outs") for item in entry.get(part, []) if "md5" in item]
    _require([_Stated(item["path"], item["md5"]) for item in paths if _maker(item["path"], made)], root, place)


def _outs(lock: dict[str, Any]) -> dict[str, str]:
    """Path -> MD5 of every output that dvc.lock states."""
    stages = lock.get("stages", {})
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", []) if "md5" in out}


def _maker(path: str, written: dict[str, str]) -> str | None:
    """The output that a path is, or is in."""
    folders = (path, *map(str, PurePosixPath(path).parents))
    return next((folder for folder in folders if folder in written), None)


def _stated(path: str, written: dict[str, str], root: Path) -> _Stated | None:
    """What dvc.lock says of a path; of a file in a folder whose list is lost, what it says of the folder."""
    out = _maker(path, written)
    if out is None or out == path:
        return None if out is None else _Stated(path, written[path])
    name = PurePosixPath(path).relative_to(out).as_posix()
    listed = {entry["relpath"]: entry["md5"] for entry in _listing(written[out], root)}
    return _Stated(path, listed[name]) if name in listed else _Stated(out, written[out])


def _require(stated: list[_Stated], root: Path, place: Path) -> None:
    """Raise InputError if files of `place`, which may be copies of those of `root`, hold other bytes than stated."""
    there = [one for one in dict.fromkeys(stated) if (place / one.path).exists()]  # a stage may state a path twice
    wrong = [(one, found) for one in there if (found := _other_md5(one, root, place)) is not None]
    if not wrong:
        return
    said = "; ".join(
        f"{one.path} is not what its stage wrote (MD5 {found}, dvc.lock has {one.md5})" for one, found in wrong
    )
    if STAGE not in os.environ and (others := at_work(root)):
        raise InputError(f"{said}: DVC is running here (process {', '.join(map(str, others))}), wait until it ends")
    removed = []
    for one, _ in wrong:
        _move_away(one.path, root)
        removed += _discard(one, root)
    raise InputError(said + _way_out(removed, root))


def _other_md5(stated: _Stated, root: Path, place: Path) -> str | None:
    """The MD5 of what is there, None where it is as stated. Of a folder, a copy may hold some of the files."""
    found = md5_of(place / stated.path)
    if found == stated.md5 or place == root or not stated.md5.endswith(FOLDER):
        return None if found == stated.md5 else found
    listed = {entry["relpath"]: entry["md5"] for entry in _listing(stated.md5, root)}
    folder = place / stated.path
    if listed:
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        return None if all(listed.get(name) == md5_of(path) for name, path in files.items()) else found
    found = md5_of(root / stated.path)  # DVC's list of it is lost
    return None if found == stated.md5 else found


def _way_out(removed: list[str], root: Path) -> str:
    text = (
        f": it was changed by hand, or the disk is damaged. It is in {DAMAGED} now; run again: DVC restores the file "
        "from its cache, or its stage runs again"
    )
    if not removed:
        return text
    text += f". Damaged objects were removed from DVC's cache: {', '.join(removed)}"
    if remote := default_remote(root):
        text += (
            ". If this happens again after DVC restored the file, the remote "
            f"{remote[0]} ({remote[1]}) is damaged as well: remove the same objects there, and run again"
        )
    return text


def _discard(stated: _Stated, root: Path) -> list[str]:
    """Remove the objects of DVC's cache for a path that are not what their names say; returns their names.

    DVC believes what its cache holds, and would put these very bytes back.
    """
    hashes = [stated.md5, *(entry["md5"] for entry in _listing(stated.md5, root))]
    removed = []
    for md5 in dict.fromkeys(hashes):
        place = _object(md5, root)
        if place.is_file() and _md5_of_file(place) != md5.removesuffix(FOLDER):
            place.unlink()
            removed.append(f"files/md5/{md5[:2]}/{md5[2:]}")
    return removed


def _listing(md5: str, root: Path) -> Iterator[dict[str, str]]:
    """The files of a folder, from DVC's cache; none where the list is lost or damaged."""
    place = _object(md5, root)
    if not (md5.endswith(FOLDER) and place.is_file()):
        return
    text = place.read_bytes()
    if hashlib.md5(text, usedforsecurity=False).hexdigest() == md5.removesuffix(FOLDER):
        yield from parse_json(text.decode())


def _object(md5: str, root: Path) -> Path:
    return cache_of(root) / "files" / "md5" / md5[:2] / md5[2:]


def md5_of(path: Path, *, compiled: bool = True) -> str:
    """The MD5 that DVC gives a file, or a folder: that of the JSON list of its files, sorted by name.

    Args:
        path: of the file or the folder.
        compiled: count what Python compiled, which .dvcignore hides from DVC in folders of code.
    """
    if path.is_file():
        return _md5_of_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and (compiled or not _is_compiled(file)))
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = list(pool.map(_md5_of_file, files))
    listed = [
        {"md5": found, "relpath": file.relative_to(path).as_posix()} for file, found in zip(files, hashes, strict=True)
    ]
    text = json.dumps(sorted(listed, key=itemgetter("relpath")), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + FOLDER


def _is_compiled(file: Path) -> bool:
    return file.suffix == ".pyc" or file.parent.name == "__pycache__"


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _move_away(path: str, root: Path) -> None:
    """Out of DVC's sight, which would not look at it again, or not dare to replace it."""
    aside = root / DAMAGED / path
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    aside.parent.mkdir(parents=True, exist_ok=True)
    (root / path).replace(aside)
