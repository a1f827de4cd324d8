"""One look at what changed since the last run of a checkout, instead of one `dvc repro` per stage."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flows import dvc
from flows.dvc_leftovers import folders_of_outs
from tasks.project.intact import LOCK
from tasks.project.plan_file import read_plan, stages_of


@dataclass(frozen=True)
class Look:
    """What has to be done for a plan."""

    unchanged: list[str]
    """The first stages of the plan for which DVC would run nothing."""
    is_complete: bool
    """Whatever the plan's stages read is made by one of them, or is up to date and stays so."""


_ahead: dict[tuple[Path, tuple[str, ...]], Look] = {}


def look_ahead(root: Path, plan: Sequence[str]) -> Look:
    """What `look` finds; where something changed it is kept for the next call, that of the run which follows."""
    key = root.resolve(), tuple(plan)
    _ahead.pop(key, None)
    found = look(root, plan)
    if found.unchanged != list(plan):
        _ahead[key] = found
    return found


def look(root: Path, plan: Sequence[str]) -> Look:
    """What changed since the last run.

    DVC names a stage whose own inputs, parameters, command or outs changed, not those that come after it: all from the
    first such stage on count as changed. A status that cannot be read (another run at work) says nothing of any.

    Args:
        root: the checkout's folder.
        plan: stages of dvc.yaml, each after those it needs. If one changed that `plan` needs and lacks, all count as
            changed.
    """
    if (ahead := _ahead.pop((root.resolve(), tuple(plan)), None)) is not None:
        return ahead
    stages = stages_of(root / LOCK)
    maker = {out["path"]: name for name, stage in stages.items() for out in stage.get("outs", ())}
    foreign = [_maker_of(path, maker) for path in _made_elsewhere(root, plan)]
    needed = _needed(stages, maker, {*plan, *foreign})
    is_complete = not foreign and needed <= set(plan)
    if is_complete and plan[0] not in needed:
        return Look([], True)
    # Of all stages: DVC looks at what several targets need once for each of them.
    done = dvc.call("status", "--json", root=root, stderr=subprocess.DEVNULL)
    if done.returncode:
        return Look([], is_complete)
    try:
        found = set(json.loads(done.stdout))
    except ValueError:
        return Look([], is_complete)
    changed = (needed & found) | (set(plan) - needed)
    if not changed <= set(plan):
        return Look([], False)
    unchanged = list(itertools.takewhile(lambda stage: stage not in changed, plan))
    beneath_others = _needed(stages, maker, needed - set(plan))
    return Look(unchanged, None not in foreign and not beneath_others & set(plan) - set(unchanged))


def _needed(stages: dict[str, Any], maker: dict[str, str], wanted: Set[str | None]) -> set[str]:
    """Stages of dvc.lock that are `wanted`, or made what those read."""
    needed: set[str] = set()
    left = [stage for stage in stages if stage in wanted]
    while left:
        needed.add(stage := left.pop())
        makers = {_maker_of(dep["path"], maker) for dep in stages[stage].get("deps", ())}
        left += [name for name in makers if name is not None and name not in needed]
    return needed


def _maker_of(path: str, maker: dict[str, str]) -> str | None:
    """The stage that wrote a path, or the folder it is in."""
    folders = (PurePosixPath(path), *PurePosixPath(path).parents)
    return next((maker[str(folder)] for folder in folders if str(folder) in maker), None)


def _made_elsewhere(root: Path, plan: Sequence[str]) -> list[str]:
    """Paths that stages of `plan` read, that runs make, and that no stage of `plan` makes."""
    stages = [stage for stage in read_plan(root).values() if stage.name in plan]
    made = {path: stage.name for stage in stages for path in stage.outs}
    folders = {folder.name for folder in folders_of_outs(root)}
    read = [path for stage in stages for path in stage.deps]
    return [path for path in read if path.split("/")[0] in folders and _maker_of(path, made) is None]
