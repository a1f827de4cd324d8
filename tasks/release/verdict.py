"""Whether a gate's verdict may be published: it agrees with itself, with the files, and with a decision made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.downstream.judging.gate import GateDecision, decision_values
from tasks.project.errors import GateRejected, PublishError
from tasks.release.release_subject import Subject
from tasks.release.seal import Hashes, difference, parameters_sha256

SHOWN = 5
"""Differences that an error names."""


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


def require_same_bytes(
    gate: Mapping[str, Any], hashes: Hashes, parameters: Mapping[str, Any], subject: Subject
) -> None:
    """What is to be published must be what was judged, byte for byte, made with the same parameters.

    Raises:
        PublishError: it is not.
    """
    differing = difference(gate.get("judged"), hashes)
    if parameters_sha256(parameters, subject.parameters) != gate.get("parameters_sha256"):
        differing.append("it was made with other parameters than params.yaml states now")
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
        PublishError: it accepts for other reasons than the verdict states.
    """
    now = decision_values(decision)
    if not decision.accepted:
        said = "".join(f"\n  {reason}" for reason in decision.reasons)
        raise GateRejected(f"{subject.gate} says accepted, the evidence does not. {_anew(subject)}:{said}")
    other = [check["name"] for check in now["checks"] if check not in gate["checks"]]
    other += [str(check.get("name")) for check in gate["checks"] if check not in now["checks"]]
    if other:
        raise PublishError(
            f"{subject.gate} states other checks than the evidence gives: {', '.join(dict.fromkeys(other))}. "
            f"Somebody changed one of them: {_anew(subject)}"
        )


def _anew(subject: Subject) -> str:
    command = f"dvc repro --force --single-item {subject.stages['gate']}"
    return f"make the verdict anew with `{command}`, then publish again; nothing was published"
