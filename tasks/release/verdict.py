"""Whether a recorded verdict may be published: it is compared with the parameters, the files and the gate of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.downstream.entries import Entry
from tasks.downstream.judging.gate import CODE, JUDGED, judge
from tasks.downstream.task import part_of
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
from tasks.release.release_subject import RELEASED, SEEDS, Hashes, Subject, plan_of

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
        raise PublishError(
            f"{subject.model} was made with other parameters than params.yaml states now: "
            f"{_some(differing)}. Run `dvc repro {subject.stages['gate']}`, then publish again; nothing was published"
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


def decide_again(
    recorded: Mapping[str, Any], entry: Entry, subject: Subject, hashes: Hashes, copies: Path
) -> dict[str, Any]:
    """Return the gate's verdict on copies of the evidence; the recorded one is compared with it, and never trusted.

    Args:
        recorded: the verdict that the gate's stage wrote.
        entry: whose model it is.
        subject: what is to be published.
        hashes: of the copies, without the verdict itself.
        copies: of all that is judged.

    Raises:
        GateRejected: the evidence speaks against this model.
        PublishError: the recorded verdict is about other files, or says something else.
        InputError: the evidence is damaged.
    """
    stage = subject.stages["gate"]
    if differing := _other_files(recorded.get(JUDGED), hashes):
        raise PublishError(
            f"{subject.gate} is about other files: {_some(differing)}. Run `dvc repro {stage}`, then publish again; "
            "nothing was published"
        )
    decision, verdict = judge(part_of(entry, "scores"), subject, hashes, copies, RELEASED, entry.seeds and SEEDS)
    anew = f"make the verdict anew with `dvc repro --force --single-item {stage}`, then publish again; nothing was "
    if not decision.accepted:
        said = "".join(f"\n  {reason}" for reason in decision.reasons)
        raise GateRejected(f"{subject.gate} says accepted, the evidence does not. {anew}published:{said}")
    if other := _other_statements(recorded, verdict):
        raise PublishError(
            f"{subject.gate} states other checks than the evidence gives: {', '.join(other)}. Somebody changed one of "
            f"them: {anew}published"
        )
    return verdict


def _other_files(judged: Any, hashes: Hashes) -> list[str]:
    """How the files differ from those that a verdict was about, in words."""
    if not isinstance(judged, Mapping):
        return ["it does not say what it judged"]
    return [
        f"{name} has SHA-256 {hashes.get(name) or 'none, it is not there'}, judged was {judged.get(name) or 'none'}"
        for name in sorted({*judged, *hashes})
        if judged.get(name) != hashes.get(name)
    ]


def _other_statements(recorded: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[str]:
    """Names of the checks, and of all else, of which a recorded verdict does not say what the gate says now."""
    names = [name for name in {**verdict, **recorded} if name != CODE and recorded.get(name) != verdict.get(name)]
    checks = recorded.get("checks")
    known = checks if isinstance(checks, list) else []
    return [*(check["name"] for check in verdict["checks"] if check not in known), *names]


def _some(differing: Sequence[str]) -> str:
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return "; ".join(differing[:SHOWN]) + more
