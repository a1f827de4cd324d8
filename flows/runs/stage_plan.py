"""Which stages a run has, and in which order. Knows nothing of Prefect, so that it is imported at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.strict import nearest
from tasks.plan.plan_file import PLAN_FILE, Plan, Stage, definitions_of
from tasks.stage.errors import InputError, ParamsError

PUBLISH = "publish"
"""The last line of a run: no stage of dvc.yaml, as what it changes is outside."""
ALL, PRETRAINING, FINETUNING = "all", "pretraining", "finetuning"
"""Parts of the pipeline beside those that the `meta` of stages names: everything, and all that pre-training leaves."""


def publish_after(gate: Stage) -> str:
    """The line of a run for what follows a gate that accepts."""
    return f"{PUBLISH}@{gate.item}"


def stages_to_run(project: Path, plan: Plan, part: str = ALL, to: Sequence[str] = ()) -> list[str]:
    """The stages of a plan that a run brings up to date, in order; publish aside.

    Args:
        project: holds dvc.yaml.
        plan: every stage that the parameters have.
        part: a part of the pipeline; see `parts_of`.
        to: stages, or names that several have before their `@`: these and what they need, in place of a part.

    Raises:
        ParamsError: there is no such part or stage with these parameters, or both are named.
        InputError: dvc.yaml cannot be used.
    """
    definitions = definitions_of(project)
    if not plan:
        raise InputError(f"{project / PLAN_FILE} holds no stage: put back the one of this revision")
    if to and part != ALL:
        raise ParamsError(f"--to {to[0]} and --part {part} name two ends of one run: leave one of them out")
    if to:
        return plan.behind([stage for name in to for stage in _named(name, plan, definitions)])
    if part == ALL:
        return list(plan)
    wanted = PRETRAINING if part == FINETUNING else part
    if wanted not in (known := parts_of(plan, definitions)):
        raise ParamsError(f"--part {part} is not known{nearest(part, known)}")
    ends = [stage.name for stage in plan.values() if stage.meta.get("part") == wanted]
    if not ends and part != FINETUNING:
        groups = (group for group in definitions if _written(definitions, group).get("part") == wanted)
        raise ParamsError(f"the part {part} has no stage with these parameters{_why(groups, definitions)}")
    found = plan.behind(ends)
    return [stage for stage in plan if stage not in found] if part == FINETUNING else found


def parts_of(plan: Plan, definitions: Mapping[str, Any]) -> list[str]:
    """Names of parts: `all`, `finetuning` (what pre-training does not need), and those that stages state in `meta`."""
    stated = [str(stage.meta["part"]) for stage in plan.values() if "part" in stage.meta]
    stated += [part for group in definitions if "$" not in (part := _written(definitions, group).get("part", "$"))]
    return list(dict.fromkeys([ALL, *stated, FINETUNING]))


def part_names(definitions: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """Names of parts that there are with some parameters; one that is the kind of an entry is any of `kinds`.

    Args:
        kinds: of entries.
    """
    stated = [str(_written(definitions, group).get("part", "")) for group in definitions]
    names = [name for part in stated if part for name in (kinds if "$" in part else [part])]
    return list(dict.fromkeys([ALL, PRETRAINING, FINETUNING, *names]))


def _written(definitions: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The meta of a group of stages as dvc.yaml has it, variables not filled in."""
    body = definitions[group]
    meta: dict[str, Any] = body.get("do", body).get("meta") or {}
    return meta


def _named(name: str, plan: Plan, definitions: Mapping[str, Any]) -> list[str]:
    """The stages that a word of --to names."""
    found = [stage.name for stage in plan.values() if name in (stage.name, stage.group)]
    if found:
        return found
    group = name.partition("@")[0]
    if group == PUBLISH:
        raise ParamsError(f"--to {name}: a run to a stage publishes nothing; podium publish does, after it")
    if group in definitions:
        raise ParamsError(f"--to {name}: these parameters have no such stage{_why([group], definitions)}")
    words = dict.fromkeys([*plan, *(stage.group for stage in plan.values())])
    raise ParamsError(f"--to {name} is not known{nearest(name, list(words))}")


def _why(groups: Iterable[str], definitions: Mapping[str, Any]) -> str:
    """The parameter that says for what stages of these groups are made."""
    because = next((said for group in groups if (said := _written(definitions, group).get("because"))), "")
    return f": {because} says for what it is made (--set {because}=...)" if because else ""
