"""Folders that parameters name for what is written: none in what a stage replaces, in the code or in git's folder."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.params.schema import validate_params
from tasks.plan.named_files import check_output_folders
from tasks.plan.plan_file import make_plan
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tests.places import ROOT
from tests.tasks.downstream.entries import changed_params


def written_problems(values: dict[str, Any], project: Path) -> list[str]:
    """What is wrong with the folders of these parameters."""
    return check_output_folders(values, project, make_plan(define(validate_params(values))))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project, and the checkout of a run called mine that fine-tunes for the entry other."""
    values = changed_params()
    for folder, entry in ((tmp_path, "squad"), (tmp_path / "runs/checkouts/mine", "other")):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "dvc.yaml", folder)
        write_plan(folder, define(validate_params({**values, "downstream": {entry: values["downstream"]["squad"]}})))
    return tmp_path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("models/squad", "is in models/squad, which the stage finetune@squad replaces when it runs"),
        ("evaluation/squad/a/b", "is in evaluation/squad, which the stage evaluate@squad replaces when it runs"),
        ("published/../models/squad", "is in models/squad, which the stage finetune@squad replaces when it runs"),
        ("models", "contains models/phase1 of the stage pretrain@phase1, and a release replaces its folder"),
        ("runs/checkouts/new/models/squad", "is in models/squad, which the stage finetune@squad replaces when it runs"),
        ("runs/checkouts/mine/models/other", "is in models/other, which the stage finetune@other replaces"),
        ("runs/checkouts/mine", "contains a whole checkout, and a release replaces its folder"),
        (".", "contains a whole checkout, and a release replaces its folder"),
        ("tasks/mine", "is in tasks, which Podium uses"),
        (".git", "is in .git, which Podium uses"),
        (".dvc/cache", "is in .dvc, which Podium uses"),
        ("released/squad", "is in released, which Podium uses"),
    ],
)
def test_a_release_in_a_folder_that_would_vanish_is_refused(project: Path, path: str, reason: str):
    for given in (path, str(project / path)):
        (problem,) = written_problems(changed_params(downstream__squad__publish__folder=given), project)
        assert problem.startswith(f"downstream.squad.publish.folder='{given}' {reason}")


def test_a_folder_that_a_link_leads_to_is_refused_too(project: Path):
    (project / "models").mkdir()
    (project / "link").symlink_to("models")
    (problem,) = written_problems(changed_params(downstream__squad__publish__folder="link/squad"), project)
    assert "is in models/squad" in problem


@pytest.mark.parametrize("path", ["published/./podium-demo", "published/x/../podium-demo", "link"])
def test_two_entries_do_not_share_a_target_however_it_is_written(project: Path, path: str):
    (project / "published/podium-demo").mkdir(parents=True)
    (project / "link").symlink_to("published/podium-demo")
    values = changed_params()
    values["downstream"]["other"] = copy.deepcopy(values["downstream"]["squad"])
    values["downstream"]["other"]["publish"]["folder"] = path
    (problem,) = written_problems(values, project)
    assert problem.startswith(f"downstream.other.publish.folder='{path}' is the folder of downstream.squad.publish")


@pytest.mark.parametrize(
    "path", ["published/x", "out", "models/mine", "inputs/released/x", "runs/mine", "/elsewhere", ".."]
)
def test_other_folders_take_a_release(project: Path, path: str):
    assert written_problems(changed_params(downstream__squad__publish__folder=path), project) == []


def test_checkpoints_and_curves_are_kept_out_of_outs_as_well(project: Path):
    values = changed_params(checkpoint__remote="models/phase1", tracking__folder="metrics/squad.json")
    assert [text.split(" is in ")[0] for text in written_problems(values, project)] == [
        "checkpoint.remote='models/phase1'",
        "tracking.folder='metrics/squad.json'",
    ]
    free = changed_params(checkpoint__remote="s3://bucket/models/phase1", tracking__folder="runs")
    assert written_problems(free, project) == []
