"""The door with torchrun as its launcher: two real processes on the CPU."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.device_job import run_device_job
from tasks.errors import DeviceJobFailed
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows

TORCHRUN = f"{Path(sys.executable).parent / 'torchrun'} --standalone --nproc-per-node 2 --no-python"


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("PODIUM_DEVICE_LAUNCHER", TORCHRUN)
    monkeypatch.setenv("PODIUM_THREADS", "1")
    monkeypatch.delenv("PODIUM_DEVICE_PYTHON", raising=False)
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 30))
    return make_job(tmp_path, "pretrain", tmp_path / "rows")


def test_a_launcher_of_two_processes_gives_one_model_and_one_story(job):
    said = []
    result = run_device_job(job, say=said.append)
    assert (result.steps, result.plan["replication_factor"]) == (6, 2)
    assert Path(job.output, "model.safetensors").is_file()
    assert len([text for text in said if text.startswith("plan: ")]) == 1
    assert said[-1].startswith("[100%] update 6/6")


def test_what_went_wrong_reaches_people_through_the_launcher(job):
    with pytest.raises(DeviceJobFailed, match="pretrain job: .*manifest.json is missing"):
        run_device_job(replace(job, rows="nowhere"), say=lambda text: None)
    log = Path(job.run_folder, "job.log").read_text()
    assert "RowsError" in log
