"""One set of parameters, data and code makes one release, whichever runs made its stages, and wherever."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.faults import small_run
from tests.faults.small_run import Case

pytestmark = pytest.mark.soak

FIRST = small_run.PLAN[::2]
"""Every second stage: the third run finds these in its cache, and the others in a remote."""


def run(case):
    done = case.run(*case.flow())
    assert done.returncode == 0, done.stdout
    small_run.require_published_once(case.project)
    return json.loads((case.project / "reports/publish-squad.json").read_text())


def locked(case):
    """What dvc.lock says of the stages, without the hashes of what they measured."""
    stages = yaml.safe_load((case.project / "dvc.lock").read_text())["stages"]
    for stage in stages.values():
        stage["outs"] = [out for out in stage["outs"] if not out["path"].startswith("measurements/")]
    return dict(stages)


def copy_cache(case, to, stages):
    """Copy the cache of a project, with these stages alone in its run-cache."""
    shutil.copytree(case.project / ".dvc/cache", to)
    for entry in (to / "runs").glob("*/*/*"):
        outs = (Path(out["path"]) for out in yaml.safe_load(entry.read_text())["outs"])
        (stage,) = (path.stem for path in outs if path.parent == Path("measurements/stages"))
        if stage not in stages:
            entry.unlink()


def test_equal_runs_and_a_mixture_of_them_make_one_release_that_names_the_run_of_each_stage(tmp_path):
    first, second, third = (Case(small_run.make_project(tmp_path / name / "p"), tmp_path / name) for name in "abc")
    one, other = run(first), run(second)
    assert locked(first) == locked(second)
    others = [stage for stage in small_run.PLAN if stage not in FIRST]
    copy_cache(first, third.project / ".dvc/cache", FIRST)
    copy_cache(second, tmp_path / "remote", others)
    assert third.run("-m", "dvc", "remote", "add", "-d", "second", str(tmp_path / "remote")).returncode == 0
    mixed = run(third)
    assert locked(third) == locked(first)
    assert mixed["stages"] == {stage: (one if stage in FIRST else other)["stages"][stage] for stage in small_run.PLAN}
    assert {stage: run["began"] for stage, run in one["stages"].items()} != {
        stage: run["began"] for stage, run in other["stages"].items()
    }
    for receipt in (other, mixed):
        assert {**receipt, "stages": one["stages"]} == one, "the tag and every file that it stands for"
    for case in (second, third):
        small_run.require_same(case.project, small_run.digests(first.project))
