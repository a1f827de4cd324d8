"""The results of a run, one view per entry, which its page and the tables on a Prefect server show.

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
from tasks.downstream.judging.recipe_words import WITHOUT_FLOOR
from tasks.project import artifacts
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
class ResultView:
    """What a run found and decided of one entry."""

    name: str
    scores: list[tuple[str, str, str | None]]
    """Name, percent and 95% interval of each; None of a score that has no interval."""
    verdict: str | None
    """accepted or rejected; None where no gate decided."""
    reasons: list[str]
    recipe: list[str]
    """What a verdict on several seeds says of all of them."""
    without_floor: str | None
    """That no score was required of the model, in words."""
    checks: list[GateRow]
    """None of a gate that did not run."""
    unusual: list[tuple[str, str, str]]
    """Name, default and own value of each parameter of its gate that is not as the kind of the entry has it."""
    published: dict[str, Any] | None
    """How and where the model was published: its address as a link where it is one, and the file of its card."""

    @property
    def floors(self) -> dict[str, str]:
        """Score -> what its gate requires of it."""
        return {check.check: check.required for check in self.checks if check.margin}

    @property
    def lowered(self) -> bool:
        """Whether a floor of its gate was lowered."""
        return any(check.lowered_from is not None for check in self.checks)


def results_of(run: report.RunReport, root: Path, project: Path) -> list[ResultView]:
    """Return the results of a run.

    Args:
        run: the record.
        root: its checkout.
        project: where the checkout belongs.
    """
    plan, found = read_plan(root), []
    checks = {stage: _checks(stage, plan, root) for stage in run.results}
    settings = run_params.settings_of(run, root, project) if any(checks.values()) else run_params.Settings()
    for stage, result in run.results.items():
        decision, receipt = result["decision"], result["published"]
        entry = plan[stage].item if checks[stage] else None
        told, unusual = (_of_gate(rows, entry) for rows in (settings.told, settings.unusual))
        floors = _lowered([*told, *unusual])
        figures = report.read_json_object(root / artifacts.metrics_file(result["name"])) or {}
        found.append(
            ResultView(
                name=result["name"],
                scores=[
                    (name, f"{value:.2f}", report.interval(figures, name)) for name, value in result["scores"].items()
                ],
                verdict=None if decision is None else "accepted" if decision["accepted"] else "rejected",
                reasons=decision["reasons"] if decision else [],
                recipe=report.recipe_words(decision, receipt) if decision else [],
                without_floor=(decision or {}).get(WITHOUT_FLOOR),
                checks=[_row(check, floors) for check in checks[stage]],
                unusual=[(name, said(default), said(value)) for name, default, value in unusual],
                published=None if receipt is None else _published(receipt, project),
            )
        )
    return found


def _published(receipt: dict[str, Any], project: Path) -> dict[str, Any]:
    card = project / str(receipt.get("folder") or ".") / "README.md"
    return {
        "how": report.how_published(receipt),
        "where": report.where_published(receipt),
        "url": url if (url := str(receipt.get("url") or "")).startswith(("https://", "http://")) else "",
        "card": card if "folder" in receipt and card.is_file() else None,
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
    return list(report.metrics_of(plan[stage], root).get("checks", [])) if stage in plan else []


def _of_gate(rows: Sequence[run_params.Row], entry: str | None) -> list[run_params.Row]:
    """Those of the parameters of the gate of an entry, by their names there; none without an entry."""
    section = f"downstream.{entry}.gate."
    return [(name.removeprefix(section), *both) for name, *both in rows if name.startswith(section)]


def _lowered(rows: Sequence[run_params.Row]) -> dict[str, float]:
    """Name of the check -> the highest floor that it had, of each whose floor is lower now, or gone."""
    found: dict[str, float] = {}
    for name, before, floor in rows:
        if name.startswith(FLOOR) and _is_number(before) and (floor is None or floor < before):
            check = name.removeprefix(FLOOR)
            found[check] = max(before, found.get(check, before))
    return found


def _row(check: Mapping[str, Any], lowered: Mapping[str, float]) -> GateRow:
    name, found, required = str(check["name"]), check["found"], check["required"]
    figures = _is_number(found) and _is_number(required)
    margin = f"{'+' if found >= required else '-'}{said(abs(found - required))}" if figures else ""
    was = lowered.get(name)
    return GateRow(name, said(found), said(required), margin, bool(check["ok"]), None if was is None else said(was))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
