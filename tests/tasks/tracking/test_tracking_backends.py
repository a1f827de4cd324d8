"""Trainings watched by the real packages of all trackers: what they recorded is read back with their own readers."""

import json
import math
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tasks.jobs.device_job import ScheduleConfig
from tasks.jobs.training import train
from tasks.params.sections import TrackingParams
from tasks.stage import artifacts
from tasks.stage.errors import StagePaused
from tasks.tracking import trackers as tracking
from tasks.tracking.trackers import End, Point, Trackers, record_verdict, run_id
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.optimizers import optimizer_config
from tests.tasks.tracking.recorded_runs import Recorded, read_mlflow, read_tensorboard, read_trackio, read_wandb
from tests.tasks.tracking.wandb_server import running_wandb, serving
from tests.tasks.trained_checkout import PROJECT

SECRETS = {
    "WANDB_API_KEY": "8f3a5c0d8f3a5c0d8f3a5c0d8f3a5c0dplanted1",
    "MLFLOW_TRACKING_PASSWORD": "PlantedTrackingPassword7",
    "AWS_SECRET_ACCESS_KEY": "PlantedAwsKey4411aBcD",
}
DEVICE = """#!{python}
import json, os, pathlib, sys
job = json.loads(pathlib.Path(sys.argv[3]).read_text())
folder = pathlib.Path(job["run_folder"])
def emit(event, **fields): print(json.dumps({{"event": event, **fields}}), flush=True)
first, last = (10, 60) if not (folder / "history.csv").exists() else (50, 100)
emit("plan", updates=100, runtime="cpu", device={{"ipus": 0}})
for update in range(first, last + 1, 10):
    if update % 20 == 0:
        emit("evaluated", after=update, updates=100, loss=3 / update, mlm_accuracy=update / 200)
    emit("step", step=update, steps=100, loss=1 / update, mlm_loss=0.5 / update, learning_rate=1e-3,
         eta_seconds=1.0, real_tokens_per_second=100.0)
(folder / "history.csv").write_text("step,loss\\n")
if last < 100:
    emit("paused", text="stopped on request")
    sys.exit(4)
result = dict(kind="pretrain", runtime="cpu", runtime_reason="asked", precision="fp32", steps=100, resumed_from_step=40,
              final_loss=0.01, final_losses={{"mlm_loss": 0.005}}, sequences=9, real_tokens=90, train_seconds=2.0,
              compile_seconds=0.0, peak_memory_mb=9.0,
              plan={{"precision_reason": "as asked", "packing_factor": 1.5, "packing_efficiency": 0.75}})
(folder / "result.json").write_text(json.dumps(result))
"""
LOSSES = [(update, 1 / update) for update in range(10, 101, 10)]
BACKENDS = [read_tensorboard, read_mlflow, read_wandb, read_trackio]
HELD_OUT = [(update, 3 / update) for update in range(20, 101, 20)]


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Secrets are planted, nothing of the host's own settings counts, and calls home reach our proxy."""
    asked: list[str] = []

    def refuse(path: str, body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return 502, b""

    with pytest.MonkeyPatch.context() as patch, serving(refuse) as port:
        for name in ("WANDB_MODE", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        patch.setattr(tracking, "CLOSE_SECONDS", 300.0)  # a busy host takes its time; test_tracker.py looks at limits
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.setenv(name, f"http://127.0.0.1:{port}")
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield
    assert asked == [], "no one calls home"


class Run:
    """A run that one backend records in a folder, and what it says to people."""

    def __init__(self, folder: Path, backend: Any) -> None:
        self.said: list[str] = []
        self.trackers = Trackers([backend], description_of(folder), self.said.append)

    def step(self, *updates: int) -> None:
        for update in updates:
            self.trackers.on_event({"event": "step", "step": update, "steps": 100, "loss": 1 / update})

    def step_until_said(self) -> None:
        until = time.monotonic() + 300
        while not self.said and time.monotonic() < until:
            self.step(10)
            time.sleep(0.05)


def description_of(folder: Path, **changes: str) -> dict[str, Any]:
    own = {"id": "finetune-0123", "project": "podium", "name": "finetune", "group": "g", "stage": "finetune"}
    return {**own, "folder": str(folder), "config": {"seed": 1}, **changes}


def asked_for(*backends: Any) -> TrackingParams:
    return TrackingParams(backends=list(backends), project="podium", name=None, group="a try", folder="tracked")


@dataclass
class Watched:
    """A training that paused after 60 updates, with a checkpoint of 40, continued, and was judged."""

    root: Path
    run: str
    said: str

    @property
    def folder(self) -> Path:
        return self.root / "tracked"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("watched")
    (root / "params.yaml").write_bytes((PROJECT / "params.yaml").read_bytes())
    write_rows(root / "rows", "pretrain", make_columns("pretrain", 8))
    device = root / "device-python"
    device.write_text(DEVICE.format(python=sys.executable))
    device.chmod(device.stat().st_mode | stat.S_IXUSR)
    optimizer, schedule = optimizer_config(learning_rate=2e-3), ScheduleConfig(steps=100)
    own = {"runtime": "auto", "optimizer": optimizer, "schedule": schedule, "run_folder": ""}
    job = make_job(root, "pretrain", root / "rows", **own)
    (root / "metrics").mkdir()
    judged = (artifacts.metrics_file("squad"), artifacts.metrics_file("squad", "gate"))
    (root / judged[0]).write_text(json.dumps({"f1": 81.5, "slices": [{"f1": 1.0}], "title": "none"}))
    (root / judged[1]).write_text(json.dumps({"accepted": True, "reasons": []}))
    asked, said = asked_for("wandb", "tensorboard", "mlflow", "trackio"), root / "said.txt"
    with pytest.MonkeyPatch.context() as patch, said.open("w", encoding="utf-8") as stdout:
        patch.setenv("PODIUM_DEVICE_PYTHON", str(device))
        patch.setenv("WANDB_MODE", "offline")
        for name in ("SPACE_ID", "DIR", "BUCKET_ID", "DATASET_ID", "SERVER_URL"):  # none of them may lead it elsewhere
            patch.setenv(f"TRACKIO_{name}", str(tmp_path_factory.mktemp("elsewhere")))
        patch.setattr(sys, "stdout", stdout)
        with pytest.raises(StagePaused):
            train(job, "squad-finetune", root, tracking=asked)
        train(job, "squad-finetune", root, tracking=asked)
        record_verdict(asked_for("tensorboard"), "squad-finetune", judged, root)
    [folder] = (root / "runs" / "squad-finetune").iterdir()
    yield Watched(root, run_id("squad-finetune", folder.name, "a try"), said.read_text(encoding="utf-8"))
    assert leaks(root) == []


def leaks(folder: Path) -> list[str]:
    return [
        f"{name} in {path}"
        for path in folder.rglob("*")
        if path.is_file()
        for name, secret in SECRETS.items()
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.soak
@pytest.mark.parametrize("read", BACKENDS)
def test_a_training_that_paused_is_one_run_with_every_update_once(watched: Watched, read: Any) -> None:
    runs: dict[str, Recorded] = read(watched.folder)
    assert list(runs) == [watched.run], watched.said
    run = runs[watched.run]
    for name, expected in {"loss": LOSSES, "held_out/loss": HELD_OUT}.items():
        assert [update for update, _ in run.curves[name]] == [update for update, _ in expected]
        assert all(math.isclose(a[1], b[1], rel_tol=1e-6) for a, b in zip(run.curves[name], expected, strict=True))
    assert {"mlm_loss", "learning_rate", "real_tokens_per_second", "held_out/mlm_accuracy"} <= set(run.curves)
    assert not {"steps", "eta_seconds", "updates"} & set(run.curves)
    assert float(run.config["optimizer/learning_rate"]) == 2e-3
    assert (run.config["runtime"], float(run.config["plan/device/ipus"])) == ("auto", 0.0)
    assert run.group.replace(" ", "_") == "a_try"
    assert run.status in ("FINISHED", "exit 0", "")
    assert math.isclose(run.summary["squad-finetune/final_loss"], 0.01, rel_tol=1e-6)
    assert run.summary["squad-finetune/sequences"] == 9
    if read is read_tensorboard:
        verdict = run.curves["squad/f1"], run.curves["squad-gate/accepted"]
        assert verdict == ([(100, 81.5)], [(100, 1.0)]), "the verdict joins the run of the training"
        assert "squad/slices" not in run.curves
    else:
        assert run.summary["squad-finetune/fingerprint"] in watched.run


@pytest.mark.soak
def test_people_hear_where_it_is_recorded_and_nothing_else_is_written(watched: Watched) -> None:
    lines = [line for line in watched.said.splitlines() if line.startswith("tracking: ")]
    assert len(lines) == 2, lines
    assert sum("recording offline; upload it with `wandb sync --append" in line for line in lines) == 2
    assert not (watched.root / "mlruns").exists()
    assert {path.name for path in (watched.folder / "trackio").iterdir()} == {"podium.db", "podium.lock"}
    databases = [path for path in watched.root.parent.rglob("*.db") if "podium" in path.name]
    assert [path for path in databases if "trackio" not in path.parts] == []


def test_trackio_gets_everything_once_the_disk_takes_it(tmp_path: Path) -> None:
    blocked, run = tmp_path / "trackio", Run(tmp_path, "trackio")
    blocked.write_text("a file where its folder belongs")
    run.step_until_said()
    assert run.said[0].startswith("tracking: trackio: cannot record now, retrying (FileExistsError: ")
    blocked.unlink()
    run.trackers.close("finished", {"finetune": {"steps": 10, "precision": "fp32"}}, 10)
    assert run.said[1:] == []
    found = read_trackio(tmp_path)["finetune-0123"]
    assert found.curves == {"loss": [(10, 0.1)], "finetune/steps": [(10, 10)]}
    assert found.summary["finetune/precision"] == "fp32"


def test_an_mlflow_server_that_fails_and_then_hangs_is_said_once(tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[str] = []

    def fail_twice(path: str, body: bytes) -> tuple[int, bytes] | None:
        asked.append(path)
        return (500, b"") if len(asked) <= 2 else None  # the first try, and its repetition

    password = SECRETS["MLFLOW_TRACKING_PASSWORD"]
    with serving(fail_twice) as port:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{password}@127.0.0.1:{port}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        run = Run(tmp_path, "mlflow")
        run.step_until_said()
        assert len(asked) == 2
        run.trackers.close("finished", {}, 10)
        assert len(asked) > 2
    first, last = run.said
    assert "tracking: mlflow: cannot record now, retrying (MlflowException: API request to http://***@" in first
    assert "stopped recording; history.csv has all updates" in last
    assert password not in first + last


def test_a_wandb_server_that_refuses_the_key_leaves_an_offline_run(tmp_path: Path, monkeypatch: Any) -> None:
    with serving(lambda path, body: (401, b"")) as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(10)
        run.trackers.close("finished", {"finetune": {"steps": 10}}, 10)
    first, last = run.said
    assert first.startswith("tracking: wandb: recording offline, as the server is not available (CommError: ")
    found = read_wandb(tmp_path)["finetune-0123"]
    assert (found.curves["loss"], found.summary["finetune/steps"], found.status) == ([(10, 0.1)], 10, "exit 0")
    assert leaks(tmp_path) == []
    assert SECRETS["WANDB_API_KEY"] not in first + last


def test_a_wandb_run_continues_and_tells_nothing_of_the_host(tmp_path: Path, monkeypatch: Any) -> None:
    with running_wandb(last=30) as (server, port):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(20, 30, 40, 50)
        run.trackers.close("finished", {"finetune": {"steps": 50}}, 50)
    assert [(line["_step"], line["loss"]) for line in server.history] == [(40, 1 / 40), (50, 1 / 50)]
    assert (run.said, server.exit_code) == ([], 0)
    sent = b"".join(server.bodies)
    assert b"finetune/steps" in sent
    for private in (socket.gethostname(), str(tmp_path), str(PROJECT), *SECRETS.values()):
        assert private.encode() not in sent, private


def test_trainings_under_a_wandb_agent_are_runs_of_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    agent = {"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "fixed", "WANDB_PROJECT": "other", "WANDB_MODE": "offline"}
    for stage in ("pretrain-0123", "finetune-0123"):
        for name, value in agent.items():
            monkeypatch.setenv(name, value)
        trackers = Trackers(["wandb"], description_of(tmp_path, id=stage), print)
        trackers.on_event({"event": "step", "step": 10, "steps": 100, "loss": 0.5})
        trackers.close("finished", {}, 10)
    assert set(read_wandb(tmp_path)) == {"pretrain-0123", "finetune-0123"}


def test_a_wandb_server_that_stops_answering_is_left_at_the_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tasks.tracking.track_wandb.FINISH_SECONDS", 1.0)
    hooks = sys.exit, sys.excepthook
    with running_wandb(last=30, hangs_at="/file_stream") as (_, port):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(40)
        run.trackers.close("finished", {}, 40)
    [folder] = (tmp_path / "wandb").glob("run-*")
    [last] = run.said
    assert last.startswith("tracking: wandb: the server did not accept all data in 1 s")
    assert last.endswith(f"upload it with `wandb sync {folder}`")
    assert (sys.exit, sys.excepthook) == hooks, "they are the stage's own"


def open_board(folder: Path, **changes: str) -> Any:
    from tasks.tracking.track_tensorboard import TensorBoard

    board = TensorBoard(lambda text: None)
    board.open(description_of(folder, **changes))
    return board


def test_event_files_on_a_disk_that_was_full_go_on_in_another(tmp_path: Path) -> None:
    board = open_board(tmp_path)
    board.log([Point(1, 1.0, {"loss": 4.0})])
    kept: IO[bytes] | None = board._file
    with Path("/dev/full").open("wb", buffering=0) as full:
        board._file = full
        with pytest.raises(OSError, match="No space"):
            board.log([Point(2, 2.0, {"loss": 3.0})])
    kept.close()
    assert board.open(description_of(tmp_path)) == 1
    board.log([Point(2, 2.0, {"loss": 3.0})])
    board.close(End("finished", 2, 3.0, {"finetune/steps": 2}))
    curves = {"loss": [(1, 4.0), (2, 3.0)], "finetune/steps": [(2, 2.0)]}
    assert read_tensorboard(tmp_path)["finetune-0123"].curves == curves


def test_event_files_are_in_a_folder_with_the_name_of_the_run_that_its_verdict_finds(tmp_path: Path) -> None:
    for name, figures in (("w1 finetune", {"loss": 4.0}), ("w2 finetune", {"accuracy": 90.0})):
        board = open_board(tmp_path, name=name)
        board.log([Point(1, 1.0, figures)])
        board.close(End("finished"))
    assert set(read_tensorboard(tmp_path)["w1_finetune-0123"].curves) == {"loss", "accuracy"}
