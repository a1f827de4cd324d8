"""Stages of a run and their order. This module does not import Prefect, so that it loads fast."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.core.strict import nearest
from tasks.plan.plan_file import PLAN_FILE, Plan, Stage, read_definitions
from tasks.stage.errors import InputError, ParamsError

PUBLISH = "publish"
"""Last step of a run. It is not a stage of dvc.yaml, as it changes things outside the project."""
MERGED = {"validate_examples": "examples", "validate_rows": "rows"}
"""Former stage -> the stage that does its work."""
ALL, PRETRAINING, FINETUNING = "all", "pretraining", "finetuning"
"""Built-in parts of the pipeline; the `meta` of stages names more. `finetuning` is all but pre-training."""


def publish_step(gate: Stage) -> str:
    """Return the name of the publish step after a gate."""
    return f"{PUBLISH}@{gate.item}"


def select_stages(project: Path, plan: Plan, part: str = ALL, to: Sequence[str] = ()) -> list[str]:
    """Return the stages of a plan that a run brings up to date, in order, without publish.

    Args:
        project: folder with dvc.yaml.
        plan: all stages for the parameters.
        part: part of the pipeline; see `list_parts`.
        to: stages, or names before the `@` of several stages. These and their dependencies run, instead of a part.

    Raises:
        ParamsError: these parameters have no such part or stage, or both are given.
        InputError: dvc.yaml or plan.yaml is invalid.
    """
    definitions = read_definitions(project)
    if not plan:
        raise InputError(f"{project / PLAN_FILE} has no stages: restore the file of this revision")
    if to and part != ALL:
        raise ParamsError(f"--to {to[0]} and --part {part} cannot be combined: leave one of them out")
    if to:
        return plan.with_upstream([stage for name in to for stage in _match_stages(name, plan, definitions)])
    if part == ALL:
        return list(plan)
    wanted = PRETRAINING if part == FINETUNING else part
    if wanted not in (known := list_parts(plan, definitions)):
        raise ParamsError(f"--part {part} not found{nearest(part, known)}")
    ends = [stage.name for stage in plan.values() if stage.meta.get("part") == wanted]
    if not ends and part != FINETUNING:
        groups = (group for group in definitions if _read_meta(definitions, group).get("part") == wanted)
        raise ParamsError(f"--part {part} has no stages with these parameters{_hint(groups, definitions)}")
    found = plan.with_upstream(ends)
    return [stage for stage in plan if stage not in found] if part == FINETUNING else found


def list_parts(plan: Plan, definitions: Mapping[str, Any]) -> list[str]:
    """Return the names of parts: `all`, those in the `meta` of stages, and `finetuning` (all but pre-training)."""
    stated = [str(stage.meta["part"]) for stage in plan.values() if "part" in stage.meta]
    stated += [part for group in definitions if "$" not in (part := _read_meta(definitions, group).get("part", "$"))]
    return list(dict.fromkeys([ALL, *stated, FINETUNING]))


def known_parts(definitions: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """Return all names of parts that any parameters can have.

    Args:
        kinds: kinds of entries, each of which is a part.
    """
    stated = [str(_read_meta(definitions, group).get("part", "")) for group in definitions]
    names = [name for part in stated if part for name in (kinds if "$" in part else [part])]
    return list(dict.fromkeys([ALL, PRETRAINING, FINETUNING, *names]))


def _read_meta(definitions: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the meta of a group of stages from dvc.yaml, with variables left as they are."""
    body = definitions[group]
    return body.get("do", body).get("meta") or {}


def _match_stages(name: str, plan: Plan, definitions: Mapping[str, Any]) -> list[str]:
    found = [stage.name for stage in plan.values() if name in (stage.name, stage.group)]
    if found:
        return found
    group, at, item = name.partition("@")
    if group in MERGED:
        new = f"{MERGED[group]}{at}{item}"
        raise ParamsError(f"--to {name}: {new} validates what it makes; use --to {new}")
    if group == PUBLISH:
        raise ParamsError(f"--to {name}: publishing is not a stage; use podium publish after the run")
    if group in definitions:
        near = nearest(name, [stage for stage in plan if stage.startswith(f"{group}@")], "")
        raise ParamsError(f"--to {name}: these parameters have no such stage{_hint([group], definitions)}{near}")
    words = dict.fromkeys([*plan, *(stage.group for stage in plan.values())])
    raise ParamsError(f"--to {name} not found{nearest(name, list(words))}")


def _hint(groups: Iterable[str], definitions: Mapping[str, Any]) -> str:
    """Return a hint with the parameter that decides whether the stages of these groups exist; empty if unknown."""
    because = next((said for group in groups if (said := _read_meta(definitions, group).get("because"))), "")
    return f"; it depends on {because} (--set {because}=...)" if because else ""
