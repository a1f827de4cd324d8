"""The checks of a run's gates as rows for people: found, required, margin, and which floors were lowered.

A floor counts as lowered where the run was told of a lower one than its preset or params.yaml states, or states a lower
one than the kind of its entry has by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import report, run_params
from tasks.project.plan_file import Plan, read_plan

FLOOR = "min_"
"""How the parameter of a floor begins; the name of its check follows."""


@dataclass(frozen=True)
class GateRow:
    """One check."""

    check: str
    found: str
    required: str
    margin: str
    """How far a number lies above its floor, with its sign; empty where the two are no numbers."""
    ok: bool
    lowered_from: str | None = None
    """The floor that was stated before."""

    @property
    def required_in_words(self) -> str:
        """What is required, and that it was more."""
        return self.required if self.lowered_from is None else f"{self.required} (lowered from {self.lowered_from})"

    @property
    def verdict(self) -> str:
        """In a word, or two."""
        held = "passed" if self.ok else "failed"
        return held if self.lowered_from is None else f"{held}, against a lowered floor"


@dataclass(frozen=True)
class Gate:
    """What a gate asked and found."""

    checks: tuple[GateRow, ...] = ()
    """None of one that did not run."""
    unusual: tuple[tuple[str, str, str], ...] = ()
    """Name, default and own value of each of its parameters that is not as the kind of its entry has it."""


def gates_of(run: report.RunReport, root: Path, project: Path) -> dict[str, Gate]:
    """Every gate of the run that decided on something.

    Args:
        run: the record.
        root: its checkout.
        project: where the checkout belongs.
    """
    plan = read_plan(root)
    checks = {stage: found for stage in run.results if (found := _checks(stage, plan, root))}
    settings = run_params.settings_of(run, root, project) if checks else run_params.Settings()
    return {
        stage: _gate(found, *(_own(rows, plan[stage].item) for rows in (settings.told, settings.unusual)))
        for stage, found in checks.items()
    }


def leading_score(run: report.RunReport, root: Path) -> tuple[str, float] | None:
    """Name and value of the score that says most of a run: of its first gate, the one that this looks at first."""
    plan = read_plan(root)
    for stage, found in run.results.items():
        names = [str(check["name"]) for check in _checks(stage, plan, root)]
        known = [name for name in (*names, *found["scores"]) if name in found["scores"]]
        if known:
            return known[0], found["scores"][known[0]]
    return None


def said(value: object) -> str:
    """A value as people read it; of a number four places at the most."""
    if value is None:
        return "none"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if _is_number(value) else str(value)


def _checks(stage: str, plan: Plan, root: Path) -> list[dict[str, Any]]:
    """What a gate wrote of its checks; empty where it did not run."""
    files = plan[stage].metrics if stage in plan else ()
    decided = report.read_json_object(root / files[0]) if files else None
    return list((decided or {}).get("checks", []))


def _own(rows: Sequence[run_params.Row], entry: str) -> list[run_params.Row]:
    """Those of the parameters of a gate, by their names there."""
    section = f"downstream.{entry}.gate."
    return [(name.removeprefix(section), *both) for name, *both in rows if name.startswith(section)]


def _gate(checks: list[dict[str, Any]], told: list[run_params.Row], unusual: list[run_params.Row]) -> Gate:
    lowered: dict[str, float] = {}
    """Name of the check -> the floor that it had, of each whose floor is lower now, or gone."""
    for name, before, floor in (*told, *unusual):
        if name.startswith(FLOOR) and _is_number(before) and (floor is None or floor < before):
            check = name.removeprefix(FLOOR)
            lowered[check] = max(before, lowered.get(check, before))
    differ = tuple((name, said(default), said(value)) for name, default, value in unusual)
    return Gate(tuple(_row(check, lowered) for check in checks), differ)


def _row(check: Mapping[str, Any], lowered: Mapping[str, float]) -> GateRow:
    name, found, required = str(check["name"]), check["found"], check["required"]
    figures = _is_number(found) and _is_number(required)
    margin = f"{'+' if found >= required else '-'}{said(abs(found - required))}" if figures else ""
    was = lowered.get(name)
    return GateRow(name, said(found), said(required), margin, bool(check["ok"]), None if was is None else said(was))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
