"""Checkpoints travel to a folder and come back: whole or not at all, and never at the cost of the training."""

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tasks.host import checkpoint_sync
from tasks.host.checkpoint_sync import Remote, is_whole, sync_checkpoints
from tasks.stage.errors import DeviceJobFailed, ParamsError, StagePaused
from tests.places import ROOT
from tests.tasks.host.made_checkpoints import write_checkpoint

KEY = "pretrain-phase1/0123456789ab"
HANGS = threading.Event()


class HangingFileSystem(MemoryFileSystem):
    protocol = "hangs"

    def exists(self, path: str, **kwargs: object) -> bool:
        return not HANGS.wait()

    def put(self, *args: object, **kwargs: object) -> None:
        HANGS.wait()


def saved(path: Path) -> dict[str, str]:
    return {"event": "saved", "path": str(path)}


def pause(run: Path, remote: Path | str, *updates: int, in_a_hurry: bool = False) -> None:
    with contextlib.suppress(StagePaused), sync_checkpoints(run, str(remote), KEY) as copy_saved:
        for step in updates:
            copy_saved(saved(write_checkpoint(run, step)))
        copy_saved(saved(run / "model"))
        raise StagePaused("stopped on request", in_a_hurry)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def place(remote: Path) -> Remote:
    return Remote(str(remote / KEY))


@pytest.fixture
def pushed(place: Remote, remote: Path, tmp_path: Path) -> Path:
    """The folder of the run in the remote, with checkpoints of the updates 10 and 20, that are also in `there`."""
    for step in (10, 20):
        place.push(write_checkpoint(tmp_path / "there", step))
    return remote / KEY


def test_the_newest_two_stay_by_number(place: Remote, remote: Path, tmp_path: Path) -> None:
    for step in (90, 100, 110):
        place.push(write_checkpoint(tmp_path / "run", step))
    assert steps(remote / KEY) == [100, 110]
    memory = Remote("memory://bucket/run")
    for step in (100, 110):
        memory.push(tmp_path / f"run/step-{step:08d}")
    assert memory.names() == place.names() == ["step-00000110", "step-00000100"], "other file systems serve too"
    memory.fetch(tmp_path / "here")
    assert (tmp_path / "here/step-00000110/model.safetensors").read_text() == "weights 110"
    memory.remove()
    assert memory.names() == []
    with sync_checkpoints(tmp_path / "other", None, KEY) as copy_saved:
        copy_saved(saved(tmp_path / "other/step-00000010"))
    assert not (tmp_path / "other").exists(), "without a remote nothing travels"


@pytest.mark.parametrize("lost", ["sha256.json", "state.json", "optimizer.safetensors"])
def test_a_cut_copy_is_not_used_and_made_again(place: Remote, pushed: Path, tmp_path: Path, lost: str) -> None:
    (pushed / "step-00000020" / lost).unlink()
    place.fetch(tmp_path / "here")
    assert steps(tmp_path / "here") == [10]
    place.push(tmp_path / "there" / "step-00000020")
    place.fetch(tmp_path / "here")
    assert steps(tmp_path / "here") == [10, 20]


@pytest.mark.usefixtures("pushed")
def test_only_what_is_newer_than_the_newest_whole_one_is_fetched(place: Remote, tmp_path: Path) -> None:
    here = tmp_path / "here"
    weights = write_checkpoint(here, 20, "others") / "model.safetensors"
    place.fetch(here)
    assert weights.read_text() == "others 20"
    weights.write_text("damaged")
    place.fetch(here)
    assert is_whole(here / "step-00000020")
    assert steps(here) == [20]


def test_a_damaged_one_is_named_and_the_one_before_is_fetched(
    place: Remote, pushed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pushed / "step-00000020" / "optimizer.safetensors").write_text("momentz")
    place.fetch(tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["step-00000010"]
    assert capsys.readouterr().out == f"{pushed}/step-00000020: fetched, damaged\n{pushed}/step-00000010: fetched\n"


@pytest.mark.parametrize("name", ["../../evil.json", "/etc/passwd", "a/b.json", "x.py"])
def test_a_manifest_leads_nowhere_else(place: Remote, pushed: Path, tmp_path: Path, name: str) -> None:
    for step in (10, 20):
        (pushed / f"step-{step:08d}" / "sha256.json").write_text(json.dumps({name: "0" * 64}))
    place.fetch(tmp_path / "here")
    assert steps(tmp_path / "here") == []


def test_a_paused_job_continues_on_another(remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pause(tmp_path / "first", remote, 10, 20)
    assert 20 in steps(remote / KEY)
    assert not (tmp_path / "first" / "travelling").exists()
    with sync_checkpoints(tmp_path / "second", str(remote), KEY):
        assert steps(tmp_path / "second") == [20]
    assert capsys.readouterr().out == f"{remote / KEY}/step-00000020: fetched\n"
    assert not (remote / KEY).exists()  # the job ended well


def test_a_checkpoint_that_the_job_removes_meanwhile_arrives(remote: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with contextlib.suppress(DeviceJobFailed), sync_checkpoints(run, str(remote), KEY) as copy_saved:
        path = write_checkpoint(run, 10)
        copy_saved(saved(path))
        shutil.rmtree(path)
        raise DeviceJobFailed("diverged")
    assert steps(remote / KEY) == [10]


def test_a_remote_that_is_gone_is_named_once_and_costs_nothing(
    remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_PASSWORD", remote.name)
    remote.write_text("no folder")
    pause(tmp_path / "run", remote, 10, 20, 30)
    failed, missing = capsys.readouterr().out.splitlines()
    assert failed.startswith(f"checkpoint.remote {remote / KEY}: step-00000010 was not copied")
    assert failed.endswith("/***/pretrain-phase1'"), "an error of a library may contain a secret"
    assert "step-00000030 is missing" in missing
    remote.unlink()
    pause(tmp_path / "run", remote, 40)
    assert steps(remote / KEY) == [40]


@pytest.fixture
def hanging() -> Iterator[str]:
    fsspec.register_implementation("hangs", HangingFileSystem)
    HANGS.clear()
    yield "hangs://bucket"
    HANGS.set()


def test_a_remote_that_hangs_ends_with_the_time_there_is(
    hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint_sync, "COPY_SECONDS", 0.1)
    monkeypatch.setattr(checkpoint_sync, "AFTER_SIGTERM_SECONDS", 0.1)
    pause(tmp_path / "run", hanging, 10, 20, in_a_hurry=True)
    fetched, missing = capsys.readouterr().out.splitlines()
    assert fetched.endswith(": nothing was fetched within 0 s")
    assert "step-00000020 is missing" in missing


def test_a_remote_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    code = (
        "from tests.tasks.host.test_checkpoint_sync import *\n"
        "fsspec.register_implementation('hangs', HangingFileSystem)\n"
        f"checkpoint_sync.COPY_SECONDS = 0.1\npause(Path({str(tmp_path / 'run')!r}), 'hangs://bucket', 10)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert "step-00000010 is missing" in done.stdout


def test_a_protocol_that_nothing_here_knows_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with (
        pytest.raises(ParamsError, match="checkpoint.remote='nope://x'"),
        sync_checkpoints(tmp_path, "nope://x", KEY),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
