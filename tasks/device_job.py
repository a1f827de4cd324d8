"""The door to the device: writes job.json, runs `python -m ipu_model`, reads result.json.

The only module of `tasks` that names `ipu_model.job`; the others import Job and its parts from here. The
device's interpreter (PODIUM_DEVICE_PYTHON, default: this one) may be another Python than ours, and may be started
by a launcher (PODIUM_DEVICE_LAUNCHER, for example poprun, which starts several instances of the job). Prediction is
one process and has no launcher.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ipu_model.job import (
    BatchGeometry,
    Job,
    JobResult,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from tasks import artifacts
from tasks.errors import DeviceJobFailed
from tasks.process import describe_exit

__all__ = [
    "BatchGeometry",
    "Job",
    "JobResult",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "run_device_job",
]

DEVICE_PYTHON = "PODIUM_DEVICE_PYTHON"
DEVICE_LAUNCHER = "PODIUM_DEVICE_LAUNCHER"
SECONDS_BETWEEN_LINES = 5.0
"""People read progress in lines; more often than this nobody reads them."""
KEPT_LINES = 20
"""Lines of the log that an error message repeats."""

Event = dict[str, Any]
Say = Callable[[str], None]


def run_device_job(job: Job, *, python: str | None = None, say: Say | None = None) -> JobResult:
    """Run `job` in the interpreter that owns the device and wait for it.

    Its job.json, job.log and result.json lie in `job.run_folder`. Progress is said in lines that begin
    with the share that is done, `[ 42%]`, every few seconds.

    Args:
        job: what to run; relative paths count from the current directory.
        python: the device's interpreter; default PODIUM_DEVICE_PYTHON, then this interpreter.
        say: takes each line for people; default: standard output.

    Raises:
        DeviceJobFailed: the process could not start, failed, or left no result; the message carries its
            own error or the last lines of its log.
    """
    folder = Path(job.run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    result_path = folder / "result.json"
    result_path.unlink(missing_ok=True)
    artifacts.write_text(folder / "job.json", job.to_json())
    interpreter = python or os.environ.get(DEVICE_PYTHON) or sys.executable
    launcher = "" if job.kind == "predict" else os.environ.get(DEVICE_LAUNCHER, "")
    with (folder / "job.log").open("a", encoding="utf-8") as log:
        error = _run(launcher, interpreter, folder / "job.json", log, say or _print_line)
    if error is not None:
        raise DeviceJobFailed(f"{job.kind} job: {error} (log: {folder / 'job.log'})")
    if not result_path.is_file():
        raise DeviceJobFailed(f"{job.kind} job ended without {result_path} (log: {folder / 'job.log'})")
    return JobResult.from_json(result_path.read_text(encoding="utf-8"))


def _run(launcher: str, interpreter: str, job_file: Path, log: IO[str], say: Say) -> str | None:
    """Run the device process to its end; None when it succeeded, else what went wrong."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": _python_path(os.environ.get("PYTHONPATH"))}
    try:
        # Split as a shell would, but given to no shell: it comes from the host's environment, not from params.yaml.
        before = shlex.split(launcher)
    except ValueError as error:
        return f"{DEVICE_LAUNCHER}={launcher!r} cannot be split into words ({error}): quote it as for a shell"
    try:
        process = subprocess.Popen(
            [*before, interpreter, "-m", "ipu_model", str(job_file)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
    except OSError as error:
        if before:
            return f"{before[0]} cannot be started ({error.strerror}); {DEVICE_LAUNCHER} names it"
        return f"{interpreter} cannot be started ({error.strerror}); set {DEVICE_PYTHON} to the device's Python"
    assert process.stdout is not None
    try:
        failure, tail = _follow(process.stdout, log, say)
    finally:
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.terminate()
        code = process.wait()
    if code == 0:
        return None
    return failure or f"{describe_exit(code)} of {interpreter}\n" + "".join(tail).rstrip()


def _python_path(own: str | None) -> str:
    """This project first, then what the host's PYTHONPATH names: a Poplar SDK puts its packages there."""
    project = str(Path(__file__).resolve().parent.parent)
    return f"{project}{os.pathsep}{own}" if own else project


def _follow(lines: Iterable[str], log: IO[str], say: Say) -> tuple[str | None, deque[str]]:
    """Copy the process's output to the log and say its events; its own error text and the last lines."""
    failure: str | None = None
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    said_at = 0.0
    for line in lines:
        log.write(line)
        log.flush()
        event = _event(line)
        if event is None:
            tail.append(line)
            continue
        if event["event"] == "error":
            failure = str(event.get("text"))
            continue
        text = in_words(event)
        done, of = event.get("step", event.get("rows")), event.get("steps", event.get("of"))
        if text is None or (done is not None and done != of and time.monotonic() - said_at < SECONDS_BETWEEN_LINES):
            continue
        if done is not None:
            said_at = time.monotonic()
        say(text)
    return failure, tail


def _event(line: str) -> Event | None:
    """The event a line of the device process holds, or None for other output (warnings of libraries)."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def in_words(event: Event) -> str | None:
    """One line for people, or None for an event that is no news to them."""
    kind = event["event"]
    if kind == "step":
        share = event["step"] / event["steps"]
        return (
            f"[{share:4.0%}] update {event['step']}/{event['steps']}  loss {event['loss']:.4f}  "
            f"learning rate {event['learning_rate']:.2e}  {event['real_tokens_per_second']:,.0f} tokens/s  "
            f"{_duration(event['eta_seconds'])} left"
        )
    if kind == "predicted":
        share = event["rows"] / max(1, event["of"])
        return f"[{share:4.0%}] rows {event['rows']}/{event['of']}  {_duration(event['eta_seconds'])} left"
    if kind == "plan":
        plan = event.get("plan", {k: v for k, v in event.items() if k != "event"})
        return "plan: " + ", ".join(f"{name} {value}" for name, value in _spoken(plan))
    if kind == "message":
        return str(event["text"])
    return None


def _spoken(plan: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """What one line holds: single values, those of the device too; the rest (placement, config) is in result.json."""
    for name, value in plan.items():
        if not isinstance(value, dict):
            yield name, value
        elif name == "device":
            yield from ((inner, item) for inner, item in value.items() if not isinstance(item, dict))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
