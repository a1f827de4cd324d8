"""Trainings watched by the real packages of all trackers: what they recorded is read back with their own readers."""

import contextlib
import http.server
import json
import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json
from tasks.jobs.device_job import ScheduleConfig
from tasks.jobs.training import train
from tasks.params.sections import TrackingParams
from tasks.stage import artifacts
from tasks.stage.errors import StagePaused
from tasks.tracking import trackers as tracking
from tasks.tracking.trackers import Trackers, record_verdict, run_id
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.optimizers import optimizer_config
from tests.places import ROOT

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
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Metric -> (update, value), in the order they were recorded."""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """The end's figures; for backends that hold them as metrics, they are in `curves` as well."""
    status: str = ""
    group: str = ""


def read_tensorboard(folder: Path) -> dict[str, Recorded]:
    """Run id -> what its event files hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    runs = {}
    for files in {path.parent for path in (folder / "tensorboard").rglob("*tfevents*")}:
        events = EventAccumulator(str(files), size_guidance={"scalars": 0})
        events.Reload()
        run = runs[files.name] = Recorded(group=files.parent.name)
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                run.curves[tag].append((event.step, event.value))
        if metadata.SESSION_START_INFO_TAG in events.Tags()["tensors"]:
            content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
            for name, value in metadata.parse_session_start_info_plugin_data(content).hparams.items():
                run.config[name] = getattr(value, value.WhichOneof("kind"))
        run.summary = {name: points[-1][1] for name, points in run.curves.items()}
    return runs


def read_mlflow(folder: Path) -> dict[str, Recorded]:
    """Run id (the tag podium.run) -> what the database holds."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("podium")
    runs = {}
    for kept in client.search_runs([experiment.experiment_id]):
        tags = kept.data.tags
        run = runs[tags["podium.run"]] = Recorded(
            config=dict(kept.data.params), status=kept.info.status, group=tags["group"]
        )
        for name in kept.data.metrics:
            for point in client.get_metric_history(kept.info.run_id, name):
                run.curves[name].append((point.step, point.value))
        run.summary = {**tags, **kept.data.metrics}
    return runs


def read_trackio(folder: Path) -> dict[str, Recorded]:
    """Run id -> what the database of the project holds."""
    from trackio import sqlite_storage
    from trackio.api import Api

    runs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_storage, "TRACKIO_DIR", folder / "trackio")
        for kept in Api().runs("podium"):
            config = kept.config or {}
            run = runs[kept.id] = Recorded(config=config, group=config["_Group"])
            for row in sqlite_storage.SQLiteStorage.get_logs("podium", kept.name, run_id=kept.id):
                for name in row.keys() - {"step", "timestamp"}:
                    run.curves[name].append((row["step"], row[name]))
            run.summary = {**config, **{name: points[-1][1] for name, points in run.curves.items()}}
    return runs


def read_wandb(folder: Path) -> dict[str, Recorded]:
    """Run id -> what the offline folders of that id hold, one after the other."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    runs: dict[str, Recorded] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            _enter(record, runs.setdefault(path.stem.removeprefix("run-"), Recorded()))
    return runs


def _enter(record: Any, run: Recorded) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run.group = record.run.run_group
        run.config |= values_of(record.run.config.update)
    elif kind == "config":
        run.config |= values_of(record.config.update)
    elif kind == "history":
        values = values_of(record.history.item)
        for name in values:
            if not name.startswith("_"):
                run.curves[name].append((int(values["_step"]), values[name]))
    elif kind == "summary":
        run.summary |= values_of(record.summary.update)
    elif kind == "exit":
        run.status = f"exit {record.exit.exit_code}"


def values_of(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@contextlib.contextmanager
def serving(answer: Callable[[str, bytes], tuple[int, bytes] | None]) -> Iterator[int]:
    """Serve on a port; a request for whose path and body there is None gets no answer."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            response = answer(self.path, self.rfile.read(int(self.headers.get("content-length") or 0)))
            if response is None:
                ended.wait()
                return
            self.send_response(response[0])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(response[1])))
            self.end_headers()
            self.wfile.write(response[1])

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


@contextlib.contextmanager
def running_wandb(hangs_at: str = "never") -> Iterator[tuple[list[dict[str, Any]], int]]:
    """A server that knows one run, whose newest step is 30: what it is sent, and its port; a path may get no answer."""
    sent: list[dict[str, Any]] = []
    project = {"id": "p", "name": "podium", "entity": {"id": "e", "name": "me"}}

    def answer(path: str, body: bytes) -> tuple[int, bytes] | None:
        if path.endswith(hangs_at):
            return None
        asked = json.loads(body)
        sent.append(asked)
        run = {"id": "b", "name": asked.get("variables", {}).get("name"), "project": project, "historyLineCount": 3}
        resumed = {**run, "config": "{}", "summaryMetrics": "{}", "tags": [], "displayName": "a run"}
        resumed |= {"wandbConfig": json.dumps({"t": {"value": 1}}), "eventsTail": "[]"}
        resumed |= {"historyTail": json.dumps([json.dumps({"_step": 30})]), "logLineCount": 0, "eventsLineCount": 0}
        known: dict[str | None, dict[str, Any]] = {
            "RunResumeStatus": {"model": {**project, "bucket": resumed}},
            "UpsertBucket": {"upsertBucket": {"bucket": {**run, "config": "{}"}, "inserted": False}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
        }
        data = known.get(asked.get("operationName"), {"serverInfo": {"features": []}})
        return 200, json.dumps({"data": data} if path == "/graphql" else {}).encode()

    with serving(answer) as port:
        yield sent, port


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
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), f"http://127.0.0.1:{port}")
        home = {"NO_PROXY": "127.0.0.1", "HOME": str(tmp_path_factory.mktemp("home"))}
        for name, value in {**SECRETS, **proxies, **home}.items():
            patch.setenv(name, value)
        patch.setattr(tracking, "CLOSE_SECONDS", 300.0)  # a busy host takes its time; test_tracker.py looks at limits
        yield
    assert asked == [], "no one calls home"


class Run:
    """A run that one backend records in a folder, and what it says to people."""

    def __init__(self, folder: Path, backend: Any) -> None:
        self.lines: list[str] = []
        about = {"id": "finetune-0123", "project": "podium", "name": "finetune", "group": "g", "stage": "finetune"}
        about |= {"folder": str(folder), "config": {"seed": 1}}
        self.trackers = Trackers([backend], about, self.lines.append)

    def step(self, *updates: int) -> None:
        for update in updates:
            self.trackers.on_event({"event": "step", "step": update, "steps": 100, "loss": 1 / update})

    def step_until_said(self) -> None:
        until = time.monotonic() + 300
        while not self.lines and time.monotonic() < until:
            self.step(10)
            time.sleep(0.05)

    def finish(self, updates: int, **figures: Any) -> None:
        self.trackers.close("finished", {"finetune": {"steps": updates, **figures}}, updates)


def asked_for(*backends: Any) -> TrackingParams:
    return TrackingParams(backends=list(backends), project="podium", name=None, group="a try", folder="tracked")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """A training that paused after 60 updates, with a checkpoint of 40, continued, and was judged.

    Its folder, the id of its run, and what people heard.
    """
    root = tmp_path_factory.mktemp("watched")
    (root / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    write_rows(root / "rows", "pretrain", make_columns("pretrain", 8))
    device = root / "device-python"
    device.write_text(DEVICE.format(python=sys.executable))
    device.chmod(0o755)
    optimizer, schedule = optimizer_config(learning_rate=2e-3), ScheduleConfig(steps=100)
    how = {"runtime": "auto", "optimizer": optimizer, "schedule": schedule, "run_folder": ""}
    job = make_job(root, "pretrain", root / "rows", **how)
    judged = (artifacts.metrics_file("squad"), artifacts.metrics_file("squad", "gate"))
    write_json(root / judged[0], {"f1": 81.5, "slices": [{"f1": 1.0}], "title": "none"})
    write_json(root / judged[1], {"accepted": True, "reasons": []})
    asked, heard = asked_for("wandb", "tensorboard", "mlflow", "trackio"), root / "heard.txt"
    with pytest.MonkeyPatch.context() as patch, heard.open("w", encoding="utf-8") as stdout:
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
    yield root, run_id("squad-finetune", folder.name, "a try"), heard.read_text(encoding="utf-8")
    require_no_secret(root)


def require_no_secret(folder: Path) -> None:
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert [name for name, secret in SECRETS.items() if secret.encode() in content] == [], path


@pytest.mark.soak
@pytest.mark.parametrize("read", [read_tensorboard, read_mlflow, read_wandb, read_trackio])
def test_a_training_that_paused_is_one_run_with_every_update_once(watched: Any, read: Any) -> None:
    root, name, heard = watched
    runs: dict[str, Recorded] = read(root / "tracked")
    assert list(runs) == [name], heard
    run = runs[name]
    held_out = [(update, 3 / update) for update in range(20, 101, 20)]
    for curve, expected in {"loss": LOSSES, "held_out/loss": held_out}.items():
        assert run.curves[curve] == [(update, pytest.approx(value)) for update, value in expected]
    assert {"mlm_loss", "learning_rate", "real_tokens_per_second", "held_out/mlm_accuracy"} <= set(run.curves)
    assert not {"steps", "eta_seconds", "updates"} & set(run.curves)
    assert float(run.config["optimizer/learning_rate"]) == 2e-3
    assert (run.config["runtime"], float(run.config["plan/device/ipus"])) == ("auto", 0.0)
    assert run.group.replace(" ", "_") == "a_try"
    assert run.status in ("FINISHED", "exit 0", "")
    assert run.summary["squad-finetune/final_loss"] == pytest.approx(0.01)
    assert run.summary["squad-finetune/sequences"] == 9
    if read is read_tensorboard:
        verdict = run.curves["squad/f1"], run.curves["squad-gate/accepted"]
        assert verdict == ([(100, 81.5)], [(100, 1.0)]), "the verdict joins the run of the training"
        assert "squad/slices" not in run.curves
    else:
        assert run.summary["squad-finetune/fingerprint"] in name


@pytest.mark.soak
def test_people_hear_where_it_is_recorded_and_nothing_else_is_written(watched: Any) -> None:
    root, _, heard = watched
    lines = [line for line in heard.splitlines() if line.startswith("tracking: ")]
    assert ["`wandb sync --append" in line for line in lines] == [True, True]
    assert not (root / "mlruns").exists()
    assert {path.name for path in (root / "tracked/trackio").iterdir()} == {"podium.db", "podium.lock"}
    databases = [path for path in root.parent.rglob("*.db") if "podium" in path.name]
    assert [path for path in databases if "trackio" not in path.parts] == []


def test_trackio_gets_everything_once_the_disk_takes_it(tmp_path: Path) -> None:
    blocked, run = tmp_path / "trackio", Run(tmp_path, "trackio")
    blocked.write_text("a file where its folder belongs")
    run.step_until_said()
    blocked.unlink()
    run.finish(10, precision="fp32")
    [line] = run.lines
    assert line.startswith("tracking: trackio: cannot record now, retrying (FileExistsError: ")
    recorded = read_trackio(tmp_path)["finetune-0123"]
    assert recorded.curves == {"loss": [(10, 0.1)], "finetune/steps": [(10, 10)]}
    assert recorded.summary["finetune/precision"] == "fp32"


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
        run.finish(10)
        assert len(asked) > 2
    first, last = run.lines
    assert "mlflow: cannot record now, retrying (MlflowException: API request to http://***@" in first
    assert "stopped recording" in last
    assert password not in first + last


def test_a_wandb_server_that_refuses_the_key_leaves_an_offline_run(tmp_path: Path, monkeypatch: Any) -> None:
    with serving(lambda path, body: (401, b"")) as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(10)
        run.finish(10)
    assert run.lines[0].startswith("tracking: wandb: recording offline, ")
    recorded = read_wandb(tmp_path)["finetune-0123"]
    assert (recorded.curves["loss"], recorded.status) == ([(10, 0.1)], "exit 0")
    assert recorded.summary["finetune/steps"] == 10
    require_no_secret(tmp_path)
    assert SECRETS["WANDB_API_KEY"] not in "".join(run.lines)


def test_a_wandb_run_continues_and_tells_nothing_of_the_host(tmp_path: Path, monkeypatch: Any) -> None:
    with running_wandb() as (sent, port):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(20, 30, 40, 50)
        run.finish(50)
    files = [body.get("files", {}).get("wandb-history.jsonl", {}).get("content", []) for body in sent]
    history = [json.loads(line) for lines in files for line in lines]
    assert [(line["_step"], line["loss"]) for line in history] == [(40, 1 / 40), (50, 1 / 50)]
    assert (run.lines, [body["exitcode"] for body in sent if "exitcode" in body][-1]) == ([], 0)
    text = json.dumps(sent)
    assert "finetune/steps" in text
    for private in (socket.gethostname(), str(tmp_path), str(ROOT), *SECRETS.values()):
        assert private not in text, private


def test_a_wandb_server_that_stops_answering_is_left_at_the_end(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tasks.tracking.track_wandb.FINISH_SECONDS", 1.0)
    hooks = sys.exit, sys.excepthook
    with running_wandb(hangs_at="/file_stream") as (_, port):
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = Run(tmp_path, "wandb")
        run.step(40)
        run.finish(40)
    [folder] = (tmp_path / "wandb").glob("run-*")
    [last] = run.lines
    assert last.startswith("tracking: wandb: the server did not accept all data in 1 s")
    assert last.endswith(f"upload it with `wandb sync {folder}`")
    assert (sys.exit, sys.excepthook) == hooks, "they are the stage's own"
