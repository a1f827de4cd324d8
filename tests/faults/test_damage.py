"""Damaged files in what stages hand to each other."""

import os
from pathlib import Path

import pytest

from tests.faults import small_run
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


def flip_byte(path):
    """As a disk does, which changes no time."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[before.st_size * 2 // 3] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def run_stage(case, stage):
    """The stage alone, without the flow, which adds nothing here; publish after what DVC has to repair."""
    if case.api_url is not None:
        return case.run(*case.flow(stage, publish=False))
    if stage == PUBLISH and (done := case.run(*case.stage("gate@squad"))).returncode:
        return done
    return case.run(*case.stage(stage))


@pytest.mark.parametrize(("stage", "name"), HANDED_ON)
def test_a_byte_the_disk_changed_is_refused_by_name_then_repaired(stage, name, tmp_path, pictures, new_case, new_flow):
    make_case = new_flow if name.endswith("manifest.json") else new_case  # DVC itself reads that file
    case = make_case(pictures.project_before(stage, tmp_path / "project"))
    case.succeed("-m", "dvc", "status")  # DVC now knows size and time of every file
    flip_byte(case.project / name)
    done = run_stage(case, stage)
    assert done.returncode != 0, f"{stage} ended well with a damaged {name}"
    outs = (name, str(Path(name).parent))
    assert any(f"{out} is not " in done.stdout for out in outs), done.stdout
    assert stage != PUBLISH or not (case.project / "published").exists()
    done = run_stage(case, stage)
    assert done.returncode == 0, done.stdout
    small_run.require_whole(case.project, pictures.digests_after(stage), published=stage == PUBLISH)
