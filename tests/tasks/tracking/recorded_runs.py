"""What trackers recorded on this host, read back with their own readers."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


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
