"""Whether a gate's verdict may be published: it agrees with itself, with the files, and with a decision made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.downstream.judging.gate import GateDecision, decision_values
from tasks.downstream.judging.recipe_words import RECIPE, WITHOUT_FLOOR
from tasks.project.composing import compose
from tasks.project.errors import GateRejected, PublishError
from tasks.project.params import Params, parameter_values
from tasks.project.plan_file import (
    COMPOSED_FILE,
    PARAMS_FILE,
    differences,
    stages_of,
    value_at,
)
from tasks.release.release_subject import Subject, plan_of
from tasks.release.seal import Hashes, difference

SHOWN = 5
"""Differences that an error names."""
ABSENT = "(not stated)"
"""In place of a value of which there is none."""


def require_accepted(gate: Mapping[str, Any]) -> None:
    """The verdict must be positive.

    Raises:
        GateRejected: it is not; the message holds its reasons.
    """
    if gate.get("accepted") is not True:
        said = "".join(f"\n  {reason}" for reason in gate.get("reasons") or []) or " (it gave no reason)"
        raise GateRejected(f"the gate rejected this model, nothing was published:{said}")


def require_consistent(gate: Mapping[str, Any], subject: Subject) -> None:
    """All that a positive verdict states must say so.

    Raises:
        PublishError: it contradicts itself.
    """
    reasons, checks = gate.get("reasons"), gate.get("checks")
    if not (isinstance(checks, list) and checks and all(isinstance(check, dict) for check in checks)):
        checks = [{"name": "there is none"}]
    failed = [str(check.get("name")) for check in checks if check.get("ok") is not True]
    if reasons != [] or failed:
        raise PublishError(
            f"{subject.gate} contradicts itself: it says accepted, with the reasons {reasons} against it and "
            f"checks that failed ({', '.join(failed) or 'none'}). Somebody changed it: {_anew(subject)}"
        )


def require_same_parameters(params: Params, subject: Subject, lock: Path) -> None:
    """All stages behind the gate must have run with the parameters of now, as dvc.lock has them.

    Args:
        params: of now.
        subject: what is to be published.
        lock: dvc.lock.

    Raises:
        PublishError: one did not.
    """
    differing = changed_parameters(params, subject.stages["gate"], stages_of(lock))
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise PublishError(
            f"{subject.model} was made with other parameters than params.yaml states now: "
            f"{'; '.join(differing[:SHOWN])}{more}. Run `dvc repro {subject.stages['gate']}`, then publish again; "
            "nothing was published"
        )


def changed_parameters(params: Params, gate: str, lock: Mapping[str, Any]) -> list[str]:
    """How the parameters that decide a release differ from those that its stages ran with, in words.

    Args:
        params: of now.
        gate: the stage that judged it.
        lock: the stages of dvc.lock.
    """
    composed, found = compose(params), []
    values = {PARAMS_FILE: parameter_values(params), COMPOSED_FILE: composed}
    plan = plan_of(params)
    for name in plan.behind([gate]):
        if name not in lock:
            found.append(f"stage {name} has not run")
            continue
        ran_with = lock[name].get("params", {})
        found += [
            f"{place} is {here!r}, stage {name} ran with {stated!r}"
            for file, now in values.items()
            for key in plan[name].params.get(file, ())
            for place, stated, here in differences(key, ran_with.get(file, {}).get(key), value_at(now, key), ABSENT)
        ]
    return found


def require_same_bytes(gate: Mapping[str, Any], hashes: Hashes, subject: Subject) -> None:
    """What is to be published must be what was judged, byte for byte.

    Raises:
        PublishError: it is not.
    """
    differing = difference(gate.get("judged"), hashes)
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise PublishError(
            f"{subject.gate} is about other files: {'; '.join(differing[:SHOWN])}{more}. Run "
            f"`dvc repro {subject.stages['gate']}`, then publish again; nothing was published"
        )


def require_same_decision(gate: Mapping[str, Any], decision: GateDecision, subject: Subject) -> None:
    """The verdict must be what the gate decides now, from the evidence.

    Raises:
        GateRejected: it decides against this model now.
        PublishError: it accepts for other reasons than the verdict states, or with other scores of the recipe.
    """
    now = decision_values(decision)
    if not decision.accepted:
        said = "".join(f"\n  {reason}" for reason in decision.reasons)
        raise GateRejected(f"{subject.gate} says accepted, the evidence does not. {_anew(subject)}:{said}")
    other = [check["name"] for check in now["checks"] if check not in gate["checks"]]
    other += [str(check.get("name")) for check in gate["checks"] if check not in now["checks"]]
    other += [what for what in (*RECIPE, WITHOUT_FLOOR) if gate.get(what) != now.get(what)]
    if other:
        raise PublishError(
            f"{subject.gate} states other checks than the evidence gives: {', '.join(dict.fromkeys(other))}. "
            f"Somebody changed one of them: {_anew(subject)}"
        )


def _anew(subject: Subject) -> str:
    command = f"dvc repro --force --single-item {subject.stages['gate']}"
    return f"make the verdict anew with `{command}`, then publish again; nothing was published"
