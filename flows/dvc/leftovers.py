"""Repair of files left by a killed DVC or a full disk: dvc.lock, .dvc/tmp/rwlock and temporary files in the cache.

DVC writes the first two in place and cannot read an incomplete one, so every later run would fail. Temporary files
waste disk space.
"""

import contextlib
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from ipu_model.core.units import format_count
from tasks.plan.dvc_records import LOCK, find_cache, find_dvc_processes, uses_cache
from tasks.plan.plan_file import read_dvc_file, read_plan
from tasks.stage.artifacts import RUNS
from tasks.stage.errors import ParamsError

UNFINISHED = f".{'?' * 22}.tmp"
"""Pattern of DVC's temporary files: a random name of 22 characters."""


def repair(root: Path, say: Callable[[str], None]) -> None:
    """Repair dvc.lock and rwlock, so that the next `dvc repro` works, and remove temporary files."""
    _repair_rwlock(root, say)
    _repair_lock(root, say)
    _remove_temporary(root, say)


def _remove_temporary(root: Path, say: Callable[[str], None]) -> None:
    """Remove temporary files in the cache and next to the outs, unless a running DVC may be writing them.

    An incomplete run-cache entry also breaks DVC: it reads the newest file there as the entry and fails with `'outs'`,
    and it fails on an empty folder. Files are listed before processes, so that no file of a DVC that started meanwhile
    is removed.
    """
    cache = find_cache(root)
    places = "files/md5", "files/md5/??", "runs/??/*"
    left = [path for pattern in places for path in cache.glob(f"{pattern}/{UNFINISHED}")]
    left += [path for folder in output_folders(root) for path in folder.rglob(UNFINISHED)]
    entries = list(cache.glob("runs/??/*"))
    hollow = [entry for entry in entries if entry.is_dir() and set(entry.iterdir()) <= set(left)]
    if not (left or hollow) or uses_cache(cache):
        return
    freed = sum(path.stat().st_size for path in left)
    for path in left:
        path.unlink()
    for entry in hollow:
        entry.rmdir()
    files = (
        f"{format_count(len(left), 'temporary files')} ({freed / 1e6:.1f} MB)" if left else "empty run-cache entries"
    )
    say(f"removed {files} that DVC left when it was killed or the disk was full")


def output_folders(root: Path) -> set[Path]:
    """Return the top-level folders of the checkout that contain outs."""
    return {root / Path(out).parts[0] for stage in read_plan(root).values() for out in stage.outs}


def _repair_lock(root: Path, say: Callable[[str], None]) -> None:
    """Move away a dvc.lock that DVC cannot read. DVC then restores the stages from its run-cache and reruns none."""
    path, values = root / LOCK, None
    if not path.is_file():
        return
    with contextlib.suppress(ParamsError):
        values = read_dvc_file(path)
    # A truncated file may still be YAML, with a last key that has no value.
    stages = values.get("stages", {}) if isinstance(values, dict) and "schema" in values else None
    is_valid = isinstance(stages, dict) and all(map(_is_valid_stage, stages.values()))
    if is_valid or find_dvc_processes(root):
        return
    aside = root / RUNS / "dvc.lock.broken"
    aside.parent.mkdir(exist_ok=True)
    path.replace(aside)
    say(f"{path} was incomplete and was moved to {aside}: stages are restored from DVC's run-cache")


def _is_valid_stage(stage: Any) -> bool:
    if not isinstance(stage, dict) or not isinstance(stage.get("cmd"), (str, list)):
        return False
    entries, files = [stage.get(part, []) for part in ("deps", "outs")], stage.get("params", {})
    if not all(isinstance(part, list) for part in entries) or not isinstance(files, dict):
        return False
    items = [item for part in entries for item in part]
    whole = all(isinstance(item, dict) and "path" in item and None not in item.values() for item in items)
    return whole and all(isinstance(params, dict) for params in files.values())


def _repair_rwlock(root: Path, say: Callable[[str], None]) -> None:
    """Remove an incomplete .dvc/tmp/rwlock of the checkout `root` if no process can have an entry in it.

    It is read under DVC's own lock, so that a file that is being written does not count as incomplete. It stays while
    another DVC runs in the checkout, as that has an entry there; DVC then reports the error itself.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    # It is not created: with DVC's core.hardlink_lock, which removes it, its existence is the lock.
    guard = path.with_suffix(".lock")
    with guard.open("r+") if guard.exists() else contextlib.nullcontext() as file:
        try:
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            read_json(path)
        except (BlockingIOError, FileNotFoundError):
            pass  # it is being written now, or was removed
        except ValueError:
            if others := ", ".join(map(str, find_dvc_processes(root))):
                say(f"{path} is incomplete but was not removed: DVC is running here (process {others})")
            else:
                path.unlink(missing_ok=True)
                say(f"removed {path}, which DVC left incomplete when it was killed or the disk was full")
