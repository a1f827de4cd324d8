"""What a gate asked and found, check by check, and where it asked for less than it does by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.project.files import read_json
from tasks.project.param_downstream import defaults_of
from tasks.project.params_command import differing
from tasks.project.plan_file import Stage

FLOOR = "min_"
"""How the parameter of a floor begins; the name of its check follows."""


def checks_of(gate: Stage, root: Path, entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """The checks of a gate in words, and the parameters of it that are not as they are by default.

    Args:
        gate: the stage.
        root: the checkout.
        entry: the parameters of what it judges; None where these are not known.
    """
    path = root / gate.metrics[0] if gate.metrics else root
    found = read_json(path) if path.is_file() else {}
    usual = _usual(gate.item, entry)
    own = dict(entry["gate"]) if entry is not None and usual else {}
    return {
        "checks": [_check(check, usual) for check in found.get("checks", ())],
        "differ": [(name, *map(_said, values)) for name, values in differing([usual, own])] if usual else [],
    }


def _usual(name: str, entry: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return dict(defaults_of(entry["kind"], name)["gate"]) if entry is not None else {}
    except (ValueError, KeyError):  # of a revision that had other kinds
        return {}


def _check(check: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found, required, floor = check["found"], check["required"], usual.get(f"{FLOOR}{check['name']}")
    figures = _is_figure(found) and _is_figure(required)
    lowered = floor is not None and _is_figure(required) and required < floor
    return {
        "name": str(check["name"]).replace("_", " "),
        "found": _said(found),
        "required": _said(required),
        "lowered": f"lowered: by default {_said(floor)}" if lowered else "",
        "margin": f"{found - required:+,.4g}" if figures else "",
        "ok": check["ok"],
    }


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float)


def _said(value: Any) -> str:
    return "none" if value is None else f"{value:,.4f}".rstrip("0").rstrip(".") if _is_figure(value) else str(value)
