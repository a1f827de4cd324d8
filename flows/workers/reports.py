"""Reports of stages from workers. Anyone who can reach the Prefect server can write them, so that only figures,
verdicts and hashes at the paths of the plan are accepted.
"""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.runs.report import StageRecord
from flows.runs.stage_plan import PUBLISH, publish_step
from flows.runs.stopping import RunFailed
from ipu_model.core.files import parse_json, write_text
from tasks.params.strict_yaml import parse_yaml, yaml_text
from tasks.plan.dvc_records import LOCK
from tasks.plan.plan_file import Plan, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

MAX_BYTES = 1_000_000
"""Maximum bytes of a metrics file, or of dvc.lock, that is sent through the server."""
STATUSES = ("ran", "skipped", "restored", "paused", "cancelled", "interrupted", "failed")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
OUT_KEYS = {"path", "hash", "md5", "size", "nfiles", "isexec"}
"""Keys of a cached output in dvc.lock."""
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
MAX_QUOTED = 80


def figure_files(stage: str, root: Path) -> list[Path]:
    """Return the metrics and plots of a stage, or the receipt of publish."""
    name, _, task = stage.partition("@")
    if name == PUBLISH:
        return [artifacts.receipt_file(task)]
    made = read_plan(root)[stage]
    return [Path(out) for out in (*made.figures, *made.plots)]


def parse_report(data: str, names: Sequence[str], root: Path) -> tuple[StageRecord | None, dict[Path, str]]:
    """Return the validated record and files in an artifact (JSON) of these stages; dvc.yaml in `root` lists their outs.

    Raises:
        RunFailed: it is not the record of one of these stages with its figures, dvc.lock, or plots of these stages.
    """
    try:
        sent = parse_json(data)
        if not isinstance(sent, dict) or not set(sent) <= {"record", "files"}:
            raise ValueError("not a record")
        plan = read_plan(root)
        record = _parse_record(sent["record"], names, plan) if "record" in sent else None
        plots = [Path(plot) for name in names if name in plan for plot in plan[name].plots]
        known = [LOCK, *plots] if record is None else figure_files(record.name, root)
        files = dict(sent["files"])
        if unexpected := [name for name in files if Path(name) not in known or Path(name).as_posix() != name]:
            raise ValueError(f"unexpected file {unexpected[0]!r}")
        return record, {Path(name): _check_text(Path(name), text, plan) for name, text in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError, csv.Error, ParamsError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunFailed(
            f"the report of {names[0]} is not from a Podium worker ({reason[:MAX_QUOTED]!r}): another client writes to "
            "this Prefect server, or a worker runs other code. docs/workers.md describes how to restrict access"
        ) from None


def write_files(files: Mapping[Path, str], root: Path) -> None:
    """Write the files into the checkout, but never through a symbolic link.

    Raises:
        RunFailed: the folder of a file is a link.
    """
    for path, text in files.items():
        if (root / path.parent).resolve() != root.resolve() / path.parent:
            raise RunFailed(f"{root / path.parent} is a link, and {path} is not written through it; remove the link")
        write_text(root / path, text)


def _parse_record(sent: dict[str, Any], names: Sequence[str], known: Plan) -> StageRecord:
    record = StageRecord(**sent)
    publishes = [publish_step(known[name]) for name in names if known[name].is_gate]
    if record.name not in (*names, *publishes) or record.status not in STATUSES:
        raise ValueError("unknown stage or status")
    optional = (record.began, record.cpu_seconds, record.peak_memory_mb)
    measured = [record.seconds, *(value for value in optional if value is not None)]
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in measured):
        raise ValueError("a measurement is not a number")
    if record.host is None or not HOST.fullmatch(record.host):
        raise ValueError("host is not a name")
    return record


def _check_text(path: Path, text: str, plan: Plan) -> str:
    """Return the text of a file if it is small and valid for the suffix of its name."""
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"a file of more than {MAX_BYTES} bytes")
    if path == LOCK:
        return _filter_lock(text, plan)
    if path.suffix == ".json":
        if not isinstance(parse_json(text, parse_constant=_reject_constant), dict):
            raise ValueError(f"{path} is not a JSON object")
    elif path.suffix == ".csv":
        widths = {len(row) for row in csv.reader(text.splitlines(), strict=True)}
        if len(widths) > 1 or "\0" in text:
            raise ValueError(f"{path} is not a table")
    else:
        raise ValueError(f"{path} is neither JSON nor CSV")
    return text


def _reject_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _filter_lock(text: str, plan: Plan) -> str:
    """Return dvc.lock reduced to stages whose outs match dvc.yaml; the others are from older code."""
    sent, matching = parse_yaml(text), {}
    for name in plan:
        if (stage := sent["stages"].get(name)) is None:
            continue
        if any(not set(entry) <= OUT_KEYS or not MD5.fullmatch(entry["md5"]) for entry in stage["outs"]):
            raise ValueError("dvc.lock has an output without a hash")
        if sorted(entry["path"] for entry in stage["outs"]) == sorted(plan[name].outs):
            matching[name] = stage
    return yaml_text({"schema": "2.0", "stages": json.loads(json.dumps(matching))})
