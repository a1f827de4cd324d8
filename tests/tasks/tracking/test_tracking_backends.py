"""Trainings watched by the real packages of all trackers: what they recorded is read back with their own readers."""

import contextlib
import http.server
import json
import math
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tasks.jobs.device_job import ScheduleConfig
from tasks.jobs.training import train
from tasks.params.sections import TrackingParams
from tasks.stage import artifacts
from tasks.stage.errors import StagePaused
from tasks.tracking import trackers as tracking
from tasks.tracking.trackers import Trackers, record_verdict, run_id
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.optimizers import optimizer_config
from tests.tasks.trained_checkout import PROJECT

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
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


@dataclass
class Recorded:
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Metric -> (update, value), in the order they were recorded."""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """The end's figures; for backends that hold them as metrics, they are in `curves` as well."""
    status: str = ""
    group: str = ""

    def add(self, name: str, update: int, value: float) -> None:
        self.curves.setdefault(name, []).append((update, value))


def read_tensorboard(folder: Path) -> dict[str, Recorded]:
    """Run id -> what its event files hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = {}
    for files in {path.parent for path in (folder / "tensorboard").rglob("*tfevents*")}:
        events = EventAccumulator(str(files), size_guidance={"scalars": 0})
        events.Reload()
        run = found[files.name] = Recorded(group=files.parent.name)
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                run.add(tag, event.step, event.value)
        if metadata.SESSION_START_INFO_TAG in events.Tags()["tensors"]:
            content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
            for name, value in metadata.parse_session_start_info_plugin_data(content).hparams.items():
                run.config[name] = getattr(value, value.WhichOneof("kind"))
        run.summary = {name: points[-1][1] for name, points in run.curves.items()}
    return found


def read_mlflow(folder: Path) -> dict[str, Recorded]:
    """Run id (the tag podium.run) -> what the database holds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("podium")
    found = {}
    for kept in client.search_runs([experiment.experiment_id]):
        tags = kept.data.tags
        run = found[tags["podium.run"]] = Recorded(
            config=dict(kept.data.params), status=kept.info.status, group=tags["group"]
        )
        for name in kept.data.metrics:
            for point in client.get_metric_history(kept.info.run_id, name):
                run.add(name, point.step, point.value)
        run.summary = {**tags, **kept.data.metrics}
    return found


def read_trackio(folder: Path) -> dict[str, Recorded]:
    """Run id -> what the database of the project holds."""
    from trackio import sqlite_storage
    from trackio.api import Api

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_storage, "TRACKIO_DIR", folder / "trackio")
        for kept in Api().runs("podium"):
            config = kept.config or {}
            run = found[kept.id] = Recorded(config=config, group=config["_Group"])
            for row in sqlite_storage.SQLiteStorage.get_logs("podium", kept.name, run_id=kept.id):
                for name in row.keys() - {"step", "timestamp"}:
                    run.add(name, row["step"], row[name])
            run.summary = {**config, **{name: points[-1][1] for name, points in run.curves.items()}}
    return found


def read_wandb(folder: Path) -> dict[str, Recorded]:
    """Run id -> what the offline folders of that id hold, one after the other."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found: dict[str, Recorded] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            _enter(record, found.setdefault(path.stem.removeprefix("run-"), Recorded()))
    return found


def _enter(record: Any, run: Recorded) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run.group = record.run.run_group
    if kind in ("run", "config"):
        for item in (record.run.config if kind == "run" else record.config).update:
            run.config["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    if kind == "history":
        items = {("/".join(item.nested_key) or item.key): json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                run.add(name, int(items["_step"]), value)
    if kind == "summary":
        for item in record.summary.update:
            run.summary["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    if kind == "exit":
        run.status = f"exit {record.exit.exit_code}"


Answer = Callable[[str, bytes], tuple[int, bytes] | None]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Serve on a port; a request for whose path and body there is None gets no answer."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found = answer(self.path, self.rfile.read(int(self.headers.get("content-length") or 0)))
            if found is None:
                ended.wait()
            else:
                self.send_response(found[0])
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(found[1])))
                self.end_headers()
                self.wfile.write(found[1])

        do_GET = do_CONNECT = do_POST  # noqa: N815

        def log_message(self, *words: Any) -> None:
            """No one reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


class WandBServer:
    """Knows one run, whose newest step is `last`, and keeps what it is sent."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.bodies: list[bytes] = []
        self.history: list[dict[str, Any]] = []
        self.exit_code: int | None = None

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        self.bodies.append(body)
        sent = json.loads(body)
        if path != "/graphql":
            for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
                self.history.append(json.loads(line))
            self.exit_code = sent.get("exitcode", self.exit_code)
            return {}
        project = {"id": "p", "name": "podium", "entity": {"id": "e", "name": "me"}}
        run = {"id": "b", "name": sent.get("variables", {}).get("name"), "project": project, "historyLineCount": 3}
        resumed = {**run, "config": "{}", "summaryMetrics": "{}", "tags": [], "displayName": "a run"}
        resumed |= {"wandbConfig": json.dumps({"t": {"value": 1}}), "eventsTail": "[]"}
        resumed |= {"historyTail": json.dumps([json.dumps({"_step": self.last})])}
        resumed |= {"logLineCount": 0, "eventsLineCount": 0}
        known: dict[str, dict[str, Any]] = {
            "RunResumeStatus": {"model": {**project, "bucket": resumed}},
            "UpsertBucket": {"upsertBucket": {"bucket": {**run, "config": "{}"}, "inserted": False}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
        }
        return {"data": known.get(sent.get("operationName"), {"serverInfo": {"features": []}})}


@contextlib.contextmanager
def running_wandb(last: int, hangs_at: str | None = None) -> Iterator[tuple[WandBServer, int]]:
    """A server and its port; no request for a path that ends with `hangs_at` gets an answer."""
    known = WandBServer(last)

    def answer(path: str, body: bytes) -> tuple[int, bytes] | None:
        hangs = hangs_at is not None and path.endswith(hangs_at)
        return None if hangs else (200, json.dumps(known.answer(path, body)).encode())

    with serving(answer) as port:
        yield known, port


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
    assert sum("`wandb sync --append" in line for line in lines) == 2
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
    assert first.startswith("tracking: wandb: recording offline, ")
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
