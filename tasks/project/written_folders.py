"""Folders that a person names in params.yaml for what is written: none may be where stages or the code are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.project import artifacts, plans
from tasks.project.given import shown, value_at
from tasks.project.param_downstream import entry_places
from tasks.project.plan_file import Plan, Stage, read_plan

WRITTEN = (("checkpoint", "remote"), ("tracking", "folder"))
"""Parameters beside those of entries that name what is written."""
KEPT = (*artifacts.SOURCES, ".git", ".dvc", "presets", str(artifacts.FETCHED))
"""What a checkout holds beside what stages write and what users put there."""
OF_RUNS = artifacts.CHECKOUTS.parts


def release_places(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Parameters that name the folder of a release, which publishing replaces as a whole."""
    return list(entry_places(values, "publish", "folder"))


def written_places(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """All parameters that name what is written."""
    return [*release_places(values), *WRITTEN]


def check_written(values: Mapping[str, Any], root: Path, plan: Plan) -> list[str]:
    """Return what is wrong with the folders that the parameters name for what is written, a sentence each.

    Args:
        values: of params.yaml, checked.
        root: the project, which relative paths count from.
        plan: every stage that the parameters have.
    """
    found = []
    for place in written_places(values):
        path = value_at(values, place)
        if path is None or "://" in path:
            continue
        for named in dict.fromkeys((root / path, Path(os.path.realpath(root / path)))):
            if (inside := plans.inside(named, root)) is None:
                continue
            home, rest = _checkout_of(inside)
            stages = [*plan.values(), *read_plan(root / home).values()]
            if reason := _reason(rest, stages, replaced=place in release_places(values)):
                found.append(f"{'.'.join(place)}='{shown(path)}' {reason}: name another folder")
                break
    return found


def _checkout_of(path: Path) -> tuple[Path, Path]:
    """Split a path of the project into the checkout that it is in, the project's own or a run's, and the rest."""
    depth = len(OF_RUNS) + 1 if path.parts[: len(OF_RUNS)] == OF_RUNS else 0
    return Path(*path.parts[:depth]), Path(*path.parts[depth:])


def _reason(path: Path, stages: Iterable[Stage], replaced: bool) -> str:
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
