"""Launchers of device jobs: their words, and torchrun with real processes on the CPU."""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.host.launcher import launch_command, parse_poprun_options
from tasks.jobs.device_job import run_device_job
from tasks.jobs.training import geometry
from tasks.params.overlays import resolve
from tasks.params.schema import DeviceParams, validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.stage.errors import ParamsError
from tests.ipu_model.tiny_jobs import TORCHRUN, make_columns, make_job, write_rows
from tests.places import ROOT


def params(**values: Any) -> Any:
    content = read_yaml(ROOT / "params.yaml")
    content["device"].update(values)
    return validate_params(content)


def device(**values: Any) -> DeviceParams:
    return params(**values).device


LAYOUT = {"layers_per_ipu": [0, 4, 4, 4], "replication_factor": 16}
JOB = make_job(Path(), "pretrain", Path("rows"), ipu_config=LAYOUT)


def test_torchrun_is_that_of_the_devices_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODIUM_DEVICE_PYTHON", raising=False)
    words = launch_command(JOB, device(launcher="torchrun", processes=4, restarts=2), {})
    assert words[0] == sys.executable
    assert tuple(words[: len(TORCHRUN)]) == TORCHRUN, "the tests of ipu_model start it by these words"
    assert " ".join(words[1:]) == (
        "-m torch.distributed.run --rdzv-backend c10d --rdzv-endpoint localhost:0 "
        "--local-addr 127.0.0.1 --no-python --nproc-per-node 4 --max-restarts 2"
    )


def test_poprun_is_told_replicas_and_ipus_of_the_jobs_ipu_config() -> None:
    words = launch_command(JOB, device(runtime="ipu", launcher="poprun", processes=4), {})
    assert " ".join(words) == "poprun --num-instances 4 --num-replicas 16 --ipus-per-replica 4"
    with pytest.raises(ParamsError, match="processes=3 cannot share the 16 replicas"):
        launch_command(JOB, device(runtime="ipu", launcher="poprun", processes=3), {})
    wrong = replace(JOB, ipu_config={"replication_factr": 4})
    with pytest.raises(ParamsError, match="replication_factor"):
        launch_command(wrong, device(runtime="ipu", launcher="poprun", processes=2), {})
    torchrun, host = device(launcher="torchrun", processes=2), "PODIUM_DEVICE_LAUNCHER"
    words = launch_command(JOB, torchrun, {host: "poprun --mpi-local-args '-x PYTHONPATH' --num-instances 2"})
    assert words == ["poprun", "--mpi-local-args", "-x PYTHONPATH", "--num-instances", "2"], "the host's own"
    with pytest.raises(ParamsError, match="PODIUM_DEVICE_LAUNCHER=.*quot"):
        launch_command(JOB, device(), {host: "poprun 'open"})
    assert launch_command(replace(JOB, kind="predict"), torchrun, {host: "poprun"}) == []
    assert launch_command(JOB, device(), {}) == []


def test_the_options_of_poprun_are_read_in_both_spellings() -> None:
    assert parse_poprun_options([]) is None
    assert parse_poprun_options(["own-poprun.sh"]) == {}
    words = ["poprun", "--num-instances=2", "--num-replicas", "16", "python"]
    assert parse_poprun_options(words) == {"count": 2, "total_replicas": 16}
    for wrong in (["--num-instances", "0"], ["--num-instances=two"], ["--num-replicas"]):
        with pytest.raises(ParamsError, match="a positive integer is required"):
            parse_poprun_options(["poprun", *wrong])


def test_the_command_of_the_documents_is_read_and_fits_its_preset() -> None:
    page = (ROOT / "docs" / "ipu.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^PODIUM_DEVICE_LAUNCHER=('.*?')$", page, re.MULTILINE | re.DOTALL)
    words = launch_command(JOB, device(), {"PODIUM_DEVICE_LAUNCHER": shlex.split(command)[0]})
    assert words[0] == "poprun"
    assert words[-1] == "--mpi-local-args=-x PYTHONPATH -x PODIUM_EXECUTABLE_CACHE -x PODIUM_KEEP_MEMORY"
    assert parse_poprun_options(words) == {"count": 2, "total_replicas": 16, "ipus_per_replica": 4}
    preset = resolve(read_yaml(ROOT / "params.yaml"), "ipu-large-pod64-examples", [], ROOT / "presets")
    for phase in ("phase1", "phase2"):
        assert preset["ipu"][phase]["replication_factor"] == 16
        assert len(preset["ipu"][phase]["layers_per_ipu"]) == 4


def test_the_unit_of_a_worker_may_lock_memory_and_its_file_names_a_partition() -> None:
    unit = (ROOT / "deploy" / "podium-worker@.service").read_text(encoding="utf-8").splitlines()
    assert unit.index("[Service]") < unit.index("LimitMEMLOCK=infinity") < unit.index("[Install]")
    page = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    [files] = re.findall(r"```text\n(# /etc/podium/data.env.*?)```", page, re.DOTALL)
    settings = dict(re.findall(r"([A-Z_]+)=(\S+)$", files, re.MULTILINE))
    assert {"PODIUM_DEVICE_PYTHON", "IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PARTITION_ID"} <= set(settings)
    assert f"# {settings['PODIUM_DEVICE_PYTHON']}," in (ROOT / "docs" / "ipu.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "replicas"),
    [({"launcher": "torchrun"}, 2), ({"runtime": "ipu", "launcher": "poprun"}, 1)],  # the IPU config says it
)
def test_the_job_states_how_many_processes_share_it(values: dict[str, str], replicas: int) -> None:
    two = params(**values, processes=2)
    assert geometry(two.pretrain.phase1, two.device).replication_factor == replicas


@pytest.mark.parametrize(
    ("values", "launcher"),
    [
        ({}, None),
        ({"processes": 2}, "torchrun"),
        ({"processes": 2, "runtime": "auto"}, "torchrun"),
        ({"processes": 2, "runtime": "ipu"}, "poprun"),
        ({"restarts": 1}, "torchrun"),
    ],
)
def test_processes_are_started_by_the_launcher_of_the_runtime(values: dict[str, Any], launcher: str | None) -> None:
    assert params(**values).device.launched_by == launcher


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"launcher": "poprun"}, "launcher poprun supports ipu"),
        ({"launcher": "torchrun", "runtime": "ipu"}, "launcher torchrun supports auto"),
        ({"runtime": "ipu", "restarts": 1}, "restarts=1 applies to torchrun"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=f"device.*{message}"):
        params(**values)


def test_a_remote_with_a_password_is_refused_without_repeating_it() -> None:
    content = read_yaml(ROOT / "params.yaml")
    content["checkpoint"]["remote"] = "sftp://me:hunter2@host/path"
    with pytest.raises(ParamsError, match="in the environment") as caught:
        validate_params(content)
    assert "hunter2" not in str(caught.value)


@pytest.mark.soak
def test_a_launcher_of_two_processes_gives_one_model_and_one_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODIUM_THREADS", "1")
    monkeypatch.delenv("PODIUM_DEVICE_PYTHON", raising=False)
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 30))
    job, lines = make_job(tmp_path, "pretrain", tmp_path / "rows"), list[str]()
    job = replace(job, geometry=replace(job.geometry, replication_factor=2))
    words = launch_command(job, device(launcher="torchrun", processes=2), {})
    result = run_device_job(job, launcher=words, say=lines.append)
    assert (result.steps, result.plan["replication_factor"]) == (6, 2)
    assert Path(job.output, "model.safetensors").is_file()
    assert len([text for text in lines if text.startswith("plan: ")]) == 1
    assert lines[-1].startswith("[100%] update 6/6")
