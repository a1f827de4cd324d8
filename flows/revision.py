"""The commit of a project, where git keeps it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS_FOR_GIT = 5.0
MADE_BY_RUNS = ("dvc.lock", "plan.yaml")
"""Which git may keep, and which no change of theirs makes another revision of."""


@dataclass(frozen=True)
class Revision:
    """Where a project stands."""

    commit: str
    """Short."""
    changed: bool
    """Whether files that git keeps are not as that commit has them."""

    def __str__(self) -> str:
        return f"{self.commit}, with changes" if self.changed else self.commit


def revision_of(project: Path) -> Revision | None:
    """The commit that is checked out; None without git, or where git does not say."""
    commit = _git(project, "rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    others = [f":(exclude){name}" for name in MADE_BY_RUNS]
    changed = _git(project, "status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return Revision(commit, changed != "")


def _git(project: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(project), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS_FOR_GIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
