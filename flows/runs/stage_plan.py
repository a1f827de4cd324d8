"""Stages of a run and their order. This module loads fast: it imports no Prefect, and the table of stages only to use
it.
"""

from collections.abc import Sequence

from ipu_model.core.strict import nearest
from tasks.plan.plan_file import Plan, Stage
from tasks.stage.errors import ParamsError

PUBLISH = "publish"
"""Last step of a run. It is not a stage of dvc.yaml, as it changes things outside the project."""
MERGED = {"validate_examples": "examples", "validate_rows": "rows"}
"""Former stage -> the stage that does its work."""
ALL, PRETRAINING, FINETUNING = "all", "pretraining", "finetuning"
"""Built-in parts of the pipeline; the `meta` of stages names more. `finetuning` is all but pre-training."""


def publish_step(gate: Stage) -> str:
    """Return the name of the publish step after a gate."""
    return f"{PUBLISH}@{gate.item}"


def select_stages(plan: Plan, part: str = ALL, to: Sequence[str] = ()) -> list[str]:
    """Return the stages of a plan that a run brings up to date, in order, without publish.

    Args:
        plan: all stages for the parameters.
        part: part of the pipeline; see `list_parts`.
        to: stages, or names before the `@` of several stages. These and their dependencies run, instead of a part.

    Raises:
        ParamsError: these parameters have no such part or stage, or both are given.
    """
    if to and part != ALL:
        raise ParamsError(f"--to {to[0]} and --part {part} cannot be combined: leave one of them out")
    if to:
        return plan.with_upstream([stage for name in to for stage in _match_stages(name, plan)])
    if part == ALL:
        return list(plan)
    wanted = PRETRAINING if part == FINETUNING else part
    if wanted not in (known := list_parts(plan)):
        raise ParamsError(f"--part {part} not found{nearest(part, known)}")
    ends = [stage.name for stage in plan.values() if stage.meta.get("part") == wanted]
    if not ends and part != FINETUNING:
        raise ParamsError(f"--part {part} has no stages with these parameters{_hint('part', wanted)}")
    needed = plan.with_upstream(ends)
    return [stage for stage in plan if stage not in needed] if part == FINETUNING else needed


def list_parts(plan: Plan) -> list[str]:
    """Return the names of parts: `all`, those of stages, and `finetuning` (all but pre-training)."""
    parts = [str(stage.meta["part"]) for stage in plan.values() if "part" in stage.meta]
    return list(dict.fromkeys([ALL, *parts, *known_parts(()), FINETUNING]))


def known_parts(kinds: Sequence[str]) -> list[str]:
    """Return all names of parts that any parameters can have.

    Args:
        kinds: kinds of entries, each of which is a part.
    """
    parts = (part for part in _list_table("part") if "{" not in part)
    return list(dict.fromkeys([ALL, PRETRAINING, FINETUNING, *parts, *kinds]))


def _match_stages(name: str, plan: Plan) -> list[str]:
    names = [stage.name for stage in plan.values() if name in (stage.name, stage.group)]
    if names:
        return names
    group, at, item = name.partition("@")
    if group in MERGED:
        new = f"{MERGED[group]}{at}{item}"
        raise ParamsError(f"--to {name}: {new} validates what it makes; use --to {new}")
    if group == PUBLISH:
        raise ParamsError(f"--to {name}: publishing is not a stage; use podium publish after the run")
    if group in _list_table("name"):
        near = nearest(name, [stage for stage in plan if stage.startswith(f"{group}@")], "")
        raise ParamsError(f"--to {name}: these parameters have no such stage{_hint('name', group)}{near}")
    words = dict.fromkeys([*plan, *(stage.group for stage in plan.values())])
    raise ParamsError(f"--to {name} not found{nearest(name, list(words))}")


def _list_table(attribute: str) -> list[str]:
    from tasks.plan.stages import STAGES

    return [value for group in STAGES if (value := getattr(group, attribute))]


def _hint(attribute: str, value: str) -> str:
    """Return a hint with the parameter that decides whether the stages of a name or part exist; empty if unknown."""
    from tasks.plan.stages import STAGES

    because = next((group.because for group in STAGES if getattr(group, attribute) == value and group.because), "")
    return f"; it depends on {because} (--set {because}=...)" if because else ""
