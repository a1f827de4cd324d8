"""Outs of stages that went away: what an earlier plan.yaml had, and this one has not.

DVC leaves them where they are, and a folder that a stage reads would still hold them. What they held stays in DVC's
cache, so that a plan which has them again restores them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ipu_model.files import write_text
from tasks.project.dvc_records import LOCK, md5_of
from tasks.project.plan_file import read_plan, stages_of
from tasks.project.strict_yaml import yaml_text

FOLDERS = (
    "data",
    "evaluation",
    "executables",
    "measurements",
    "metrics",
    "models",
    "plots",
    "predictions",
    "reports",
)
"""Where stages write; nothing is removed elsewhere, whatever dvc.lock says."""
LOCK_SCHEMA = "2.0"
"""Of the dvc.lock that DVC 3 writes."""


def remove_gone(root: Path, say: Callable[[str], None]) -> None:
    """Remove outs of stages that are in dvc.lock and not in the plan, and their lines there.

    An out that does not hold what its stage wrote is somebody's own: it stays, and is named.

    Args:
        root: a checkout whose plan.yaml is up to date.
        say: told what was removed, and what was left.
    """
    plan, stages = read_plan(root), stages_of(root / LOCK)
    gone = {name: stages[name] for name in stages if name not in plan}
    if not gone or not plan:
        return
    kept = {out for stage in plan.values() for out in stage.outs}
    removed = []
    for out in _outs_of(gone):
        if out["path"] in kept or not (root / out["path"]).exists() or not _may_go(out["path"]):
            continue
        if md5_of(root / out["path"]) != out.get("md5"):
            say(f"{out['path']} of a stage that is no longer in the plan was changed by hand: it was left where it is")
            continue
        _remove(root, PurePosixPath(out["path"]), kept)
        removed.append(out["path"])
    if removed:
        names = ", ".join(sorted(removed))
        say(f"removed what stages wrote that are no longer in the plan ({names}); DVC's cache has it")
    kept_stages = {name: stage for name, stage in stages.items() if name in plan}
    write_text(root / LOCK, yaml_text({"schema": LOCK_SCHEMA, "stages": kept_stages}))


def _outs_of(stages: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What they wrote; the last of them may be half of a stage."""
    for stage in stages.values():
        for out in (stage.get("outs") or ()) if isinstance(stage, dict) else ():
            if isinstance(out, dict) and out.get("path"):
                yield out


def _may_go(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return parts[0] in FOLDERS and ".." not in parts


def _remove(root: Path, path: PurePosixPath, kept: Collection[str]) -> None:
    """Remove a file or folder, but what stages of the plan write in it."""
    place = root / path
    if not place.is_dir() or place.is_symlink():
        place.unlink()
    elif not any(path in PurePosixPath(one).parents for one in kept):
        shutil.rmtree(place)
    else:
        for entry in place.iterdir():
            if str(path / entry.name) not in kept:
                _remove(root, path / entry.name, kept)
