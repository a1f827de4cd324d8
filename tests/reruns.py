"""Which commits would have trained again: python -m tests.reruns [LAST] [COUNT]

Takes the COUNT commits up to LAST that touch flows, tasks or ipu_model, follows the files of each through all renames
to where they lie now, and counts the commits that change a dependency of a stage: of pre-training (both phases), and
of anything that pre-training needs. Once with the dependencies that dvc.yaml stated at LAST, once with those of now.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from tasks.plan.plan_file import Plan, expand, fill
from tests.places import ROOT
from tests.plans import whole_plan
from tests.source_files import lies_in

LAST, COUNT = "00ded13", 150
THEN = {"parity": {"against": ["cpu:bf16"]}, "glue": {"tasks": ["sst2"]}}
"""Parameters of that time, for which stages were made."""
CODE = ("flows", "tasks", "ipu_model")
PRETRAINING = ("pretrain@phase1", "pretrain@phase2")


@dataclass(frozen=True)
class Counted:
    """Commits that change a dependency, by what depends on it."""

    commits: int
    pretraining: int
    """of the stages that pre-train"""
    upstream: int
    """of these, or of a stage whose outs they need"""


def git(*words: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed_files(last: str, count: int) -> dict[str, list[str]]:
    """Commit -> the files of the product that it touches, as they were called then; newest first."""
    text = git("log", f"-{count}", "--format=%x00%H", "--name-only", "--no-renames", last, "--", *CODE)
    blocks = [block.split() for block in text.split("\0") if block.strip()]
    return {commit: files for commit, *files in blocks}


def renames(commit: str, until: str) -> list[tuple[str, str]]:
    """(old, new) paths of every rename after a commit, oldest first."""
    how = ("--reverse", "--format=", "--name-status", "--find-renames=40%", "--diff-filter=R")
    text = git("log", *how, f"{commit}..{until}")
    return [(fields[1], fields[2]) for line in text.splitlines() if len(fields := line.split("\t")) == 3]


def after(path: str, moves: Iterable[tuple[str, str]]) -> str:
    """Where a file lies after all of these moves that had this path before them."""
    for old, new in moves:
        path = new if path == old else path
    return path


def counted(plan: Plan, commits: dict[str, list[str]]) -> Counted:
    """How many of the commits change what pre-training depends on."""

    def touching(names: Iterable[str]) -> int:
        deps = {dep for name in names for dep in plan[name].deps if dep.startswith(CODE)}
        return sum(any(lies_in(file, deps) for file in files) for files in commits.values())

    return Counted(len(commits), touching(PRETRAINING), touching(plan.with_upstream(PRETRAINING)))


def then_and_now(last: str = LAST, count: int = COUNT) -> tuple[Counted, Counted, dict[str, list[str]]]:
    """The counts with the dependencies of `last` and of now, and the files of each commit as they are called now."""
    commits = changed_files(last, count)
    then = Plan(expand(fill(yaml.safe_load(git("show", f"{last}:dvc.yaml"))["stages"], THEN)))
    of_then, of_now = (_as_called_in(revision, commits) for revision in (last, "HEAD"))
    return counted(then, of_then), counted(whole_plan(), of_now), of_now


def _as_called_in(revision: str, commits: dict[str, list[str]]) -> dict[str, list[str]]:
    found = {}
    for commit, files in commits.items():
        moves = renames(commit, revision)
        found[commit] = [after(file, moves) for file in files]
    return found


def main() -> None:
    words = sys.argv[1:]
    then, now, _ = then_and_now(*words[:1], *(int(word) for word in words[1:2]))
    print(f"{then.commits} commits      pre-training itself   or anything it needs")
    for name, one in (("then", then), ("now", now)):
        print(f"{name:16} {one.pretraining:20} {one.upstream:22}")


if __name__ == "__main__":
    main()
