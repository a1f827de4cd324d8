"""Damaged files in what stages hand to each other."""

from pathlib import Path

import pytest

from tests.faults import small_run
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
