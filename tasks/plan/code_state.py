"""Code that a stage ran with: its git revision, and the hashes of code files in dvc.lock."""

import os
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.plan.dvc_records import compute_md5, read_ignored_names
from tasks.stage import artifacts
from tasks.stage.process import GIT_LOCATIONS

NOT_RECORDED: Mapping[str, Any] = {"revision": None, "dirty": None, "changed": []}


def git_state(root: Path) -> dict[str, Any]:
    """Return the revision of the code, and whether the sources differ from it.

    Only `artifacts.SOURCES` count: parameters are recorded in full, and dvc.lock, metrics and reports are outputs of a
    run. Without a repository that tracks them, or if git cannot tell, `revision` and `dirty` are null (unknown).
    """
    revision = read_head(root)
    if revision is None:
        return dict(NOT_RECORDED)
    present = [name for name in artifacts.SOURCES if (root / name).exists()]
    options = ["status", "--porcelain", "--no-renames", "-z", "--", *present, ":(exclude,glob)**/__pycache__/**"]
    project, folder = project_of(root), root
    if project != root.resolve():
        # A named run: git ignores the folder of its checkout, so that its files would never count as changed.
        top, git = (run_git(project, "rev-parse", what) or "" for what in ("--show-toplevel", "--absolute-git-dir"))
        if Path(top.strip()) == project:
            options = [f"--git-dir={git.strip()}", f"--work-tree={root.resolve()}", *options]
        else:  # in a larger repository, whose files have other paths
            folder = project
    listing = run_git(folder, *options)
    if listing is None:  # such as of a git without these options
        return dict(NOT_RECORDED)
    changed = sorted(entry[3:] for entry in listing.split("\0") if entry)
    return {"revision": revision, "dirty": bool(changed), "changed": changed}


def read_head(root: Path) -> str | None:
    """Return the revision that is checked out; None without a repository that tracks the sources of the project."""
    project = project_of(root)
    if not run_git(project, "ls-files", "--", *artifacts.SOURCES):
        return None  # an archive below a repository of something else
    revision = run_git(project, "rev-parse", "--verify", "HEAD")
    return revision and revision.strip()


def project_of(root: Path) -> Path:
    """Return the project of a checkout, which is in its folder runs/checkouts."""
    root = root.resolve()
    return root.parents[2] if root.parent.parts[-2:] == artifacts.CHECKOUTS.parts else root


def run_git(root: Path, *arguments: str, timeout: float = 60.0) -> str | None:
    """Return the output of a git command in a folder; None if it fails, as on a host without git."""
    try:
        finished = call_git(root, *arguments, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout if finished.returncode == 0 else None


def call_git(root: Path, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a git command in the repository of a folder, whatever variables of the environment name another.

    The repository of the project may belong to another user, as in a container: its code is running anyway. git refuses
    others, because their settings contain commands.
    """
    trusted = ("-c", f"safe.directory={project_of(root)}")
    return subprocess.run(
        ["git", "--no-optional-locks", *trusted, "-C", str(root), *arguments],
        env={name: value for name, value in os.environ.items() if name not in GIT_LOCATIONS} | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=timeout,
    )


def code_hashes(stages: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return stage -> file or folder of code that it read -> MD5 in dvc.lock; a stage that has not run is None."""
    hashes: dict[str, dict[str, str]] = defaultdict(dict)
    for name, stage in stages.items():
        for dep in (stage or {}).get("deps", []):
            if "md5" in dep and Path(dep["path"]).parts[0] in artifacts.SOURCES:
                hashes[name][dep["path"]] = dep["md5"]
    return dict(hashes)


def changed_code(hashes: Mapping[str, Mapping[str, str]], root: Path) -> list[str]:
    """Return the files and folders of code that changed in a checkout since the stages ran (`code_hashes`)."""
    now, ignored = dict[str, str | None](), read_ignored_names(root)
    for path in {path for read in hashes.values() for path in read}:
        now[path] = compute_md5(root / path, ignored) if (root / path).exists() else None
    return sorted({path for read in hashes.values() for path, md5 in read.items() if now[path] != md5})
