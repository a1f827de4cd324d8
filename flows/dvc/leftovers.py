"""What a DVC left that was killed or found the disk full: half of dvc.lock, of its list of who reads and writes what,
or of a file on its way into the cache.

DVC writes the first two in place; no DVC can read half of one again, and every later run would end there. The last keep
room on the disk that nobody gets back.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.plan.dvc_records import LOCK, at_work, cache_of, uses_cache
from tasks.plan.plan_file import OUTS, definitions_of, read_dvc_file
from tasks.stage.artifacts import RUNS
from tasks.stage.errors import ParamsError

UNFINISHED = f".{'?' * 22}.tmp"
"""What DVC calls a file until it is whole: a random name of 22 characters."""


def mend(root: Path, say: Callable[[str], None]) -> None:
    """Put the first two right where they are broken, so that the next `dvc repro` works, and remove the last."""
    _mend_list(root, say)
    _mend_lock(root, say)
    _sweep(root, say)


def _sweep(root: Path, say: Callable[[str], None]) -> None:
    """Remove files that never got their name, in the cache and beside the outs, unless a DVC may be writing them.

    Half of an entry of the run-cache does more than keep room: DVC takes the newest file there for the entry itself,
    and ends with `'outs'`; where it finds the folder of an entry empty, it ends, too. They are listed before the
    processes are, so that none is removed of a DVC that started meanwhile.
    """
    cache = cache_of(root)
    places = "files/md5", "files/md5/??", "runs/??/*"
    left = [path for place in places for path in cache.glob(f"{place}/{UNFINISHED}")]
    left += [path for folder in folders_of_outs(root) for path in folder.rglob(UNFINISHED)]
    entries = list(cache.glob("runs/??/*"))
    hollow = [entry for entry in entries if entry.is_dir() and set(entry.iterdir()) <= set(left)]
    if not (left or hollow) or uses_cache(cache):
        return
    freed = sum(path.stat().st_size for path in left)
    for path in left:
        path.unlink()
    for entry in hollow:
        entry.rmdir()
    files = f"{len(left)} unfinished files ({freed / 1e6:.1f} MB)" if left else "empty entries of the run-cache"
    say(f"removed {files} that a DVC left: it was killed, or its disk full")


def folders_of_outs(root: Path) -> set[Path]:
    """The folders of the checkout in which DVC puts outs: the first part of each path."""
    stages = definitions_of(root).values()
    outs = [out for stage in stages for part in OUTS for out in stage.get("do", stage).get(part, [])]
    return {root / Path(next(iter(out)) if isinstance(out, dict) else out).parts[0] for out in outs}


def _mend_lock(root: Path, say: Callable[[str], None]) -> None:
    """Set a dvc.lock aside that DVC cannot read: it finds the stages again in its run-cache, and runs none of them."""
    path = root / LOCK
    if not path.is_file():
        return
    try:
        values: Any = read_dvc_file(path)
    except ParamsError:
        values = None
    if _is_whole_lock(values) or at_work(root):
        return
    aside = root / RUNS / "dvc.lock.broken"
    aside.parent.mkdir(exist_ok=True)
    path.replace(aside)
    say(f"{path} was written by half and now is {aside}: stages are found again in DVC's run-cache")


def _is_whole_lock(values: Any) -> bool:
    """Whether DVC takes it: what ends too early may be YAML all the same, of which the last key has no value."""
    stages = values.get("stages", {}) if isinstance(values, dict) and "schema" in values else None
    return isinstance(stages, dict) and all(map(_is_whole_stage, stages.values()))


def _is_whole_stage(stage: Any) -> bool:
    if not isinstance(stage, dict) or not isinstance(stage.get("cmd"), (str, list)):
        return False
    entries, files = [stage.get(part, []) for part in ("deps", "outs")], stage.get("params", {})
    if not all(isinstance(part, list) for part in entries) or not isinstance(files, dict):
        return False
    items = [item for part in entries for item in part]
    whole = all(isinstance(item, dict) and "path" in item and None not in item.values() for item in items)
    return whole and all(isinstance(params, dict) for params in files.values())


def _mend_list(root: Path, say: Callable[[str], None]) -> None:
    """Remove the list of the checkout `root` if it is broken and nobody can be in it.

    The list is .dvc/tmp/rwlock. It is looked at under DVC's own guard, so that no list that is just being written is
    taken for broken, and it stays while another DVC works in the checkout: that one entered itself there. DVC then says
    what is wrong.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if _is_whole(path):
        return
    with path.with_suffix(".lock").open("a", encoding="utf-8") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # it is being written now
        if _is_whole(path):
            return
        if others := at_work(root):
            say(f"{path} is broken and stays, as DVC is at work here (process {', '.join(map(str, others))})")
            return
        path.unlink(missing_ok=True)
        say(f"removed {path}: a DVC that was killed, or found the disk full, had left half of it")


def _is_whole(path: Path) -> bool:
    try:
        read_json(path)
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True
