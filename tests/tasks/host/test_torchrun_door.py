"""The door with torchrun as its launcher: real processes on the CPU."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.host.launcher import launch_command
from tasks.jobs.device_job import run_device_job
from tasks.stage.errors import DeviceJobFailed
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.tasks.host.device_program import device
from tests.tasks.trained_checkout import PROJECT

DOOR = """
import sys
from pathlib import Path
from tasks.jobs.device_job import Job, run_device_job
run_device_job(Job.from_json(Path(sys.argv[1]).read_text()), launcher=sys.argv[2:])
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("PODIUM_THREADS", "1")
    monkeypatch.delenv("PODIUM_DEVICE_PYTHON", raising=False)
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 30))
    return make_job(tmp_path, "pretrain", tmp_path / "rows")


def words(job, restarts=0):
    return launch_command(job, device(launcher="torchrun", processes=2, restarts=restarts), {})


@pytest.mark.soak
def test_a_launcher_of_two_processes_gives_one_model_and_one_story(job):
    said = []
    job = dataclasses.replace(job, geometry=dataclasses.replace(job.geometry, replication_factor=2))
    result = run_device_job(job, launcher=words(job), say=said.append)
    assert (result.steps, result.plan["replication_factor"]) == (6, 2)
    assert Path(job.output, "model.safetensors").is_file()
    assert len([text for text in said if text.startswith("plan: ")]) == 1
    assert said[-1].startswith("[100%] update 6/6")


@pytest.mark.soak
def test_a_mistake_reaches_people_through_the_launcher_and_is_not_made_again(job):
    said = []
    job = dataclasses.replace(job, geometry=dataclasses.replace(job.geometry, replication_factor=3))
    with pytest.raises(
        DeviceJobFailed, match=r"pretrain job: .*replication_factor=3, but the number of processes is 2"
    ):
        run_device_job(job, launcher=words(job, restarts=3), say=said.append)
    log = Path(job.run_folder, "job.log").read_text()
    assert "ConfigError" in log  # of the other process
    assert log.count('"event": "error"') == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is of Linux")
@pytest.mark.soak
def test_when_the_door_is_killed_launcher_and_processes_save_and_end(job, tmp_path):
    job = dataclasses.replace(job, schedule=dataclasses.replace(job.schedule, steps=100000))
    (tmp_path / "job.json").write_text(job.to_json())
    door = subprocess.Popen(
        [sys.executable, "-c", DOOR, str(tmp_path / "job.json"), *words(job)],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait(lambda: list(Path(job.run_folder).glob("step-*[0-9]")), "a checkpoint")
    processes = started_for(tmp_path)
    assert len(processes - {door.pid}) == 3  # torchrun and its two
    os.kill(door.pid, signal.SIGKILL)
    door.wait()
    wait(lambda: not started_for(tmp_path), "the end of all")
    assert list(Path(job.run_folder).glob("step-*[0-9]"))


def started_for(folder):
    """Processes whose command names the folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.add(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
    return found


def wait(condition, what):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.05)
