"""Damaged files: in a checkpoint, in what stages hand to each other, in an executable."""

from pathlib import Path

import pytest

from tests.faults import processes, small_run
from tests.faults.damage import CUT, FLIPPED, FLIPPED_UNSEEN, damage
from tests.faults.small_run import PUBLISH

pytestmark = pytest.mark.faults
HANDED_ON = (
    ("tokenizer", "data/corpus/part-00000.parquet"),
    ("rows@squad", "data/examples/squad/train.parquet"),
    ("pretrain_rows@phase1", "data/tokenizer/tokenizer.json"),
    ("validate@phase1", "data/rows/phase1/rows-00000.arrow"),
    ("pretrain@phase1", "data/rows/phase1/rows-00000.arrow"),
    ("pretrain@phase1", "data/rows/phase1/manifest.json"),
    ("pretrain@phase2", "models/phase1/model.safetensors"),
    ("finetune@squad", "models/phase2/config.json"),
    ("predict@squad", "models/squad/model.safetensors"),
    ("evaluate@squad", "predictions/squad/dev.arrow"),
    ("gate@squad", "evaluation/squad/predictions.json"),
    (PUBLISH, "models/squad/model.safetensors"),
    (PUBLISH, "models/squad/config.json"),
    (PUBLISH, "data/tokenizer/vocab.txt"),
    (PUBLISH, "evaluation/squad/predictions.json"),
)
"""The stage that reads, and the file of an earlier one."""
SEEN = [
    entry for entry in HANDED_ON if entry[0] in ("pretrain_rows@phase1", "pretrain@phase1", "evaluate@squad", PUBLISH)
]
CHECKPOINT_FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "sha256.json")


@pytest.fixture
def damaged(tmp_path, pictures, new_case, new_flow):
    """Makes a project before `stage` in which `name` was damaged; with a flow where DVC itself reads the file."""

    def make(stage, name, kind):
        new = new_flow if name.endswith("manifest.json") else new_case
        case = new(pictures.project_before(stage, tmp_path / "project"))
        case.succeed("-m", "dvc", "status")  # DVC now knows size and time of every file
        damage(case.project / name, kind)
        return case

    return make


def run_stage(case, stage):
    """The stage alone, without the flow, which adds nothing here; publish after what DVC has to repair."""
    if case.api_url is not None:
        return case.run(*case.flow(stage, publish=False))
    if stage == PUBLISH and (done := case.run(*case.stage("gate@squad"))).returncode:
        return done
    return case.run(*case.stage(stage))


@pytest.mark.parametrize(("stage", "name"), HANDED_ON)
def test_a_byte_the_disk_changed_is_refused_by_name_then_repaired(stage, name, damaged, pictures):
    case = damaged(stage, name, FLIPPED_UNSEEN)
    done = run_stage(case, stage)
    assert done.returncode != 0, f"{stage} ended well with a damaged {name}"
    outs = (name, str(Path(name).parent))
    assert any(f"{out} is not " in done.stdout for out in outs), done.stdout
    assert stage != PUBLISH or not (case.project / "published").exists()
    require_repaired(case, stage, pictures)


@pytest.mark.parametrize("kind", [FLIPPED, CUT])
@pytest.mark.parametrize(("stage", "name"), SEEN)
def test_a_changed_file_is_restored_before_it_is_read(stage, name, kind, damaged, pictures):
    require_repaired(damaged(stage, name, kind), stage, pictures)


def require_repaired(case, stage, pictures):
    done = run_stage(case, stage)
    assert done.returncode == 0, done.stdout
    small_run.require_same(case.project, pictures.digests_after(stage))
    small_run.require_whole(case.project)
    if stage == PUBLISH:
        small_run.require_published_once(case.project)


@pytest.mark.parametrize(
    ("which", "name", "kind"),
    [
        *(("newest", name, kind) for name in CHECKPOINT_FILES for kind in (FLIPPED_UNSEEN, CUT)),
        *(("all", "model.safetensors", kind) for kind in (FLIPPED_UNSEEN, CUT)),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(which, name, kind, tmp_path, pictures, new_case):
    case = new_case(pictures.project_before("pretrain@phase1", tmp_path / "project"))
    found = killed_in_training(case)
    for checkpoint in found if which == "all" else found[-1:]:
        damage(checkpoint / name, kind)
    printed = case.succeed("-m", "dvc", "repro", "pretrain@phase1")
    assert any(found[-1].name in line and "skipping it" in line for line in printed.splitlines()), printed
    assert ("continuing after update" in printed) == (which == "newest"), printed
    small_run.require_same(case.project, pictures.digests_after("pretrain@phase1"))


def killed_in_training(case):
    """Kill phase 1 when it has two checkpoints; those that are whole, the newest last."""
    flow = case.start("-m", "dvc", "repro", "pretrain@phase1")

    def checkpoints():
        return sorted(case.project.glob("runs/pretrain-phase1/*/step-????????"))

    processes.wait_for(lambda: flow.poll() is not None or len(checkpoints()) >= 2, 60.0, "there are no two checkpoints")
    assert flow.poll() is None, "it ended before it was killed"
    processes.kill_all(case.mark)
    flow.wait()
    return [path for path in checkpoints() if all((path / name).exists() for name in CHECKPOINT_FILES)]
