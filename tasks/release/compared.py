"""Whether a target still holds the release that the gate compared with: publish replaces no other one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.project import artifacts
from tasks.project.errors import PublishError
from tasks.release.provenance import read_json


@dataclass(frozen=True)
class ComparedRelease:
    """What a gate compared its model with; all None where nothing else was released then."""

    tag: str | None
    commit: str | None
    """Of the Hub; None: a local folder."""
    weights: str | None
    """SHA-256, which tells one model from another."""


def read_compared(folder: Path) -> ComparedRelease:
    """Return what the stage predict_released wrote into a folder.

    Raises:
        PublishError: its record is damaged.
    """
    path = folder / artifacts.RELEASED_RECORD
    values = read_json(path, "podium run") if path.is_file() else {}
    release = values.get("release") or {}
    return ComparedRelease(release.get("tag"), release.get("commit"), values.get("weights"))


def released_meanwhile(found: str, compared: ComparedRelease) -> PublishError:
    """Return the refusal to replace another release than the gate compared with.

    Args:
        found: the newest release of the target.
        compared: what the gate compared with.
    """
    return PublishError(
        f"{found} was released meanwhile; the gate compared this model with {compared.tag or 'none, as none was out'}. "
        "Run it again (`podium run` or `podium finetune` with the same words): the gate then compares with what is out "
        "now. Nothing was published"
    )


def not_tagged(found: str, commit: str) -> PublishError:
    """Return the refusal to replace what another publish has put on main, and not tagged yet.

    Args:
        found: the tag that it will have.
        commit: holds it.
    """
    return PublishError(
        f"main holds {found} (commit {commit}), which has no tag yet: another publish is in progress, was ended before "
        "its end, or its pull request was merged. Publish that run again, which tags it, then run this one again "
        "with the same words. Nothing was published"
    )
