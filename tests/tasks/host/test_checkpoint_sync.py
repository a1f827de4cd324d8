"""Checkpoints travel to a folder and come back: whole or not at all, and never at the cost of the training."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.host import checkpoint_sync
from tasks.host.checkpoint_sync import Remote, newest_whole, sync_checkpoints
from tasks.stage.errors import DeviceJobFailed, ParamsError, StagePaused

KEY = "pretrain-phase1/0123456789ab"


def write_checkpoint(run: Path, step: int, text: str = "weights") -> Path:
    """A checkpoint as ipu_model.train.checkpoint writes it, with small files."""
    folder = run / f"step-{step:08d}"
    folder.mkdir(parents=True)
    contents = {"model.safetensors": f"{text} {step}", "optimizer.safetensors": "moments", "state.json": "{}"}
    for name, content in contents.items():
        (folder / name).write_text(content)
    hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in contents.items()}
    (folder / "sha256.json").write_text(json.dumps(hashes))
    return folder


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*")) if folder.is_dir() else []


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def place(remote: Path) -> Remote:
    return Remote(str(remote / KEY))


def nothing(text: str) -> None:
    """No one listens."""


def test_the_newest_two_stay_by_number(place: Remote, remote: Path, tmp_path: Path) -> None:
    for step in (90, 100, 110):
        place.push(write_checkpoint(tmp_path / "run", step))
    assert steps(remote / KEY) == [100, 110]
    assert place.steps() == [110, 100]


def test_what_has_no_manifest_is_no_checkpoint_and_goes(place: Remote, remote: Path, tmp_path: Path) -> None:
    place.push(write_checkpoint(tmp_path / "run", 10))
    place.push(write_checkpoint(tmp_path / "run", 20))
    (remote / KEY / "step-00000020" / "sha256.json").unlink()  # a copy that was cut short
    assert place.fetch(tmp_path / "other", nothing) == 10
    place.push(write_checkpoint(tmp_path / "run", 30))
    assert steps(remote / KEY) == [10, 30]


def test_a_copy_that_breaks_off_is_none_until_it_is_made_again(
    place: Remote, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    place.push(write_checkpoint(run, 10))
    path = write_checkpoint(run, 20)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(type(place._files), "put_file", full)
        with pytest.raises(OSError, match="No space"):
            place.push(path)
    assert place.steps() == [10]
    place.push(path)
    assert place.steps() == [20, 10]


def test_only_what_is_newer_than_the_newest_whole_one_is_fetched(place: Remote, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for step in (10, 20):
        place.push(write_checkpoint(there, step))
    shutil.copytree(write_checkpoint(here, 20), tmp_path / "good")
    assert place.fetch(here, nothing) is None
    (here / "step-00000020" / "model.safetensors").write_text("damaged")
    assert newest_whole(here) == 0
    assert place.fetch(here, nothing) == 20
    assert newest_whole(here) == 20
    assert not list(here.glob("*.partial"))


def test_a_damaged_one_is_named_and_the_one_before_is_fetched(place: Remote, remote: Path, tmp_path: Path) -> None:
    for step in (10, 20):
        place.push(write_checkpoint(tmp_path / "there", step))
    (remote / KEY / "step-00000020" / "optimizer.safetensors").write_text("momentz")
    said: list[str] = []
    assert place.fetch(tmp_path / "here", said.append) == 10
    assert steps(tmp_path / "here") == [10]
    assert len(said) == 1
    assert "step-00000020/optimizer.safetensors is damaged" in said[0]


@pytest.mark.parametrize("name", ["../../evil.json", "/etc/passwd", "a/b.json", "x.py"])
def test_a_manifest_leads_nowhere_else(place: Remote, remote: Path, tmp_path: Path, name: str) -> None:
    place.push(write_checkpoint(tmp_path / "there", 10))
    (remote / KEY / "step-00000010" / "sha256.json").write_text(json.dumps({name: "0" * 64}))
    assert place.fetch(tmp_path / "here", nothing) is None
    assert steps(tmp_path / "here") == []


def test_other_file_systems_serve_too(tmp_path: Path) -> None:
    place = Remote("memory://bucket/run")
    place.push(write_checkpoint(tmp_path / "there", 10))
    place.push(write_checkpoint(tmp_path / "there", 20))
    assert place.fetch(tmp_path / "here", nothing) == 20
    assert (tmp_path / "here" / "step-00000020" / "model.safetensors").read_text() == "weights 20"
    place.remove_all()
    assert place.steps() == []


def saved(path: Path) -> dict[str, str]:
    return {"event": "saved", "path": str(path)}


def pause(
    run: Path, remote: Path, *updates: int, say: Callable[[str], None] = nothing, in_a_hurry: bool = False
) -> None:
    """A job that makes these checkpoints and pauses."""
    with contextlib.suppress(StagePaused), sync_checkpoints(run, str(remote), KEY, say=say) as on_event:
        assert on_event is not None
        for step in updates:
            on_event(saved(write_checkpoint(run, step)))
        on_event(saved(run / "model"))
        raise StagePaused("stopped on request", in_a_hurry)


def test_a_job_that_pauses_leaves_its_newest_checkpoint_for_another_host(remote: Path, tmp_path: Path) -> None:
    pause(tmp_path / "first", remote, 10, 20)
    assert 20 in steps(remote / KEY)
    assert not (tmp_path / "first" / "travelling").exists()
    said: list[str] = []
    with sync_checkpoints(tmp_path / "second", str(remote), KEY, say=said.append):
        assert steps(tmp_path / "second") == [20]
    assert said == [f"{remote / KEY}: fetched the checkpoint after update 20"]
    assert not (remote / KEY).exists()  # the job ended well


def test_a_checkpoint_that_the_job_removes_meanwhile_arrives(remote: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with contextlib.suppress(DeviceJobFailed), sync_checkpoints(run, str(remote), KEY) as on_event:
        assert on_event is not None
        path = write_checkpoint(run, 10)
        on_event(saved(path))
        shutil.rmtree(path)
        raise DeviceJobFailed("diverged")
    assert steps(remote / KEY) == [10]


def test_a_remote_that_is_gone_is_named_once_and_costs_nothing(remote: Path, tmp_path: Path) -> None:
    remote.write_text("no folder")
    said: list[str] = []
    pause(tmp_path / "run", remote, 10, 20, 30, say=said.append)
    assert len(said) == 2, said
    assert f"checkpoint.remote {remote / KEY}: the checkpoint after update 10 was not uploaded; " in said[0]
    assert "lacks the checkpoint after update 30; this job uploaded none" in said[1]
    remote.unlink()
    pause(tmp_path / "run", remote, 40)
    assert steps(remote / KEY) == [40]


def test_a_remote_that_hangs_ends_with_the_time_there_is(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_sync, "AFTER_SIGTERM_SECONDS", 0.0)
    said: list[str] = []
    pause(tmp_path / "run", remote, 10, say=said.append, in_a_hurry=True)
    assert "lacks the checkpoint after update 10" in said[-1]


def test_a_protocol_that_nothing_here_knows_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with (
        pytest.raises(ParamsError, match="checkpoint.remote='nope://x' cannot be used"),
        sync_checkpoints(tmp_path, "nope://x", KEY),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_without_a_remote_nothing_travels(tmp_path: Path) -> None:
    with sync_checkpoints(tmp_path / "run", None, KEY) as on_event:
        assert on_event is None
    assert not (tmp_path / "run").exists()
