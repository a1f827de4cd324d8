"""The code that a stage ran with: the revision, recorded as it runs, and what dvc.lock says of the files it read."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.plan.dvc_records import ignored_names, md5_of
from tasks.stage import artifacts

NOT_RECORDED: Mapping[str, Any] = {"revision": None, "dirty": None, "changed": []}
CodeHashes = Mapping[str, Mapping[str, str]]
"""Stage -> file or folder of code that it read -> MD5, as DVC counts it."""


def git_state(root: Path) -> dict[str, Any]:
    """Revision of the code, and whether the sources differ from it.

    Only `artifacts.SOURCES` count: parameters are recorded in full, and dvc.lock, metrics and reports are what a run
    writes. Outside a git checkout the revision is null and `dirty` is null too (not known).
    """
    revision = git(root, "rev-parse", "--verify", "HEAD")
    if revision is None:
        return dict(NOT_RECORDED)
    present = [name for name in artifacts.SOURCES if (root / name).exists()]
    status = ("status", "--porcelain", "--no-renames", "-z", "--", *present, ":(exclude,glob)**/__pycache__/**")
    listing = git(root, *_compared_with(root), *status) if present else ""
    changed = sorted(entry[3:] for entry in (listing or "").split("\0") if entry)
    return {"revision": revision.strip(), "dirty": bool(changed), "changed": changed}


def _compared_with(root: Path) -> list[str]:
    """Git options that compare the files of `root` with the revision.

    The checkout of a run with overrides lies in a folder that git ignores; without them its files would never
    count as changed.
    """
    top = (git(root, "rev-parse", "--show-toplevel") or "").strip()
    folder = (git(root, "rev-parse", "--absolute-git-dir") or "").strip()
    if Path(top, artifacts.RUNS) not in root.resolve().parents:
        return []
    return [f"--git-dir={folder}", f"--work-tree={root.resolve()}"]


def git(root: Path, *arguments: str, timeout: float = 60.0) -> str | None:
    """Return what git prints of a folder; None where it does not say, as on a host without git."""
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout if finished.returncode == 0 else None


def code_hashes(stages: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what dvc.lock says of the code that stages read as they ran, here or on another host.

    Args:
        stages: of dvc.lock; None: it has not run.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name, stage in stages.items():
        for dep in (stage or {}).get("deps", []):
            if "md5" in dep and Path(dep["path"]).parts[0] in artifacts.SOURCES:
                found[name][dep["path"]] = dep["md5"]
    return dict(found)


def changed_code(hashes: CodeHashes, root: Path) -> list[str]:
    """Return the files and folders of code that hold something else in a checkout than when the stages ran."""
    now, ignored = dict[str, str | None](), ignored_names(root)
    for path in {path for read in hashes.values() for path in read}:
        now[path] = md5_of(root / path, ignored) if (root / path).exists() else None
    return sorted({path for read in hashes.values() for path, md5 in read.items() if now[path] != md5})
