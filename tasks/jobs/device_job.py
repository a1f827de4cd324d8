"""A device job: writes job.json, runs `python -m ipu_model`, reads result.json.

Other modules of `tasks` import Job and its parts from here. The device's interpreter (PODIUM_DEVICE_PYTHON, default:
this one) may be another Python than ours. A launcher (tasks/host/launcher.py) may start several processes of the job.

SIGTERM and Ctrl-C are passed on: the device process makes a checkpoint and ends, then the stage does, as paused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ipu_model.files import write_text
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job, JobResult, OptimizerConfig, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.units import format_duration
from tasks.host import ledger
from tasks.host.launcher import DEVICE_PYTHON, device_python
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.stage.process import Say, describe_exit, die_with_parent, print_line, python_path

__all__ = [
    "BatchGeometry",
    "EvaluationConfig",
    "Job",
    "JobResult",
    "ModelConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "read_ipu_config",
    "run_device_job",
]
PLACE = ("RANK", "WORLD_SIZE")
"""Variables that make a job one of several processes; a notebook or a batch system may have left them."""
SECONDS_BETWEEN_LINES = 5.0
"""People read progress in lines; more often than this nobody reads them."""
KEPT_LINES = 20
"""Lines of the log that an error message repeats."""

Event = dict[str, Any]


def run_device_job(
    job: Job,
    *,
    python: str | None = None,
    launcher: Sequence[str] = (),
    say: Say | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> JobResult:
    """Run `job` in the interpreter that owns the device and wait for it.

    Its job.json, job.log and result.json lie in `job.run_folder`. Progress is said in lines that begin
    with the share that is done, `[ 42%]`, every few seconds.

    Args:
        job: what to run; relative paths count from the current directory.
        python: the device's interpreter; default PODIUM_DEVICE_PYTHON, then this interpreter.
        launcher: words before it (launcher.launch_words).
        say: takes each line for people; default: standard output.
        on_event: takes every event, for who wants to know more than people do.

    Raises:
        DeviceJobFailed: the process could not start, failed, or left no result; the message carries its
            own error or the last lines of its log.
        StagePaused: it stopped on purpose before its end; run again, it continues.
    """
    folder = Path(job.run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    result_path = folder / "result.json"  # an old one is removed by the job, once the folder is its own
    before = _version(result_path)
    write_text(folder / "job.json", job.to_json())
    command = [*launcher, python or device_python(), "-m", "ipu_model", str(folder / "job.json")]
    with (folder / "job.log").open("a", encoding="utf-8") as log:
        told = _Told(log, say or print_line, on_event)
        error = _run(command, told)
    if told.paused is not None:
        raise StagePaused(f"{job.kind} job: {told.paused}", in_a_hurry=told.stop_asked)
    if error is not None:
        raise DeviceJobFailed(f"{job.kind} job: {error} (log: {folder / 'job.log'})")
    if _version(result_path) in (None, before):
        raise DeviceJobFailed(f"{job.kind} job ended without {result_path} (log: {folder / 'job.log'})")
    result = JobResult.from_json(result_path.read_text(encoding="utf-8"))
    return result if result.foretold is None else _entered(job, result, result_path, say or print_line)


def _entered(job: Job, result: JobResult, path: Path, say: Say) -> JobResult:
    """The result with a record of what was estimated, which goes into the ledger of this host, too."""
    file = ledger.ledger_file()
    host = ledger.host_name(result.runtime)
    named = {"kind": result.kind, "head": job.head, "runtime": result.runtime, "precision": result.precision}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record = ledger.with_expected({**(result.foretold or {}), **named, "host": host, "at": at}, ledger.read(file))
    result = dataclasses.replace(result, foretold=record)
    write_text(path, result.to_json())
    try:
        ledger.enter(record, file)
    except OSError as error:  # a host may have no place for it; the run folder has the record all the same
        say(f"the ledger of this host was not written ({error})")
    return result


def _version(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written anew; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        state = path.stat()
        return state.st_ino, state.st_mtime_ns
    return None


def _run(command: list[str], told: _Told) -> str | None:
    """Run the device process to its end; None when it succeeded or paused, else what went wrong."""
    alone = command[1:3] == ["-m", "ipu_model"]  # without a launcher, which states places of its own
    inherited = {name: value for name, value in os.environ.items() if not (alone and name in PLACE)}
    environment = {**inherited, "PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            preexec_fn=die_with_parent,  # a launcher knows nothing of that; the job itself asks again
        )
    except OSError as error:
        named = f"set {DEVICE_PYTHON} to the device's Python"
        if command[1:2] != ["-m"]:
            named = "it is the launcher (device.launcher, or PODIUM_DEVICE_LAUNCHER of this host)"
        return f"{command[0]} cannot be started ({error.strerror}); {named}"
    assert process.stdout is not None
    try:
        with _stop_passed_on(process, told):
            told.follow(process.stdout)
            code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if told.failure is None and told.paused is None and told.stop_asked and code != 0:
        # While it compiled, or so early that it could not say so: its last checkpoint is as new as it can be.
        told.paused = f"stopped on request ({describe_exit(code)}); run it again to continue"
    if told.failure is not None or told.paused is not None or code == 0:
        return told.failure
    return f"{describe_exit(code)} of {command[0]}\n" + "".join(told.tail).rstrip()


@contextlib.contextmanager
def _stop_passed_on(process: subprocess.Popen[str], told: _Told) -> Iterator[None]:
    """While the device process runs, SIGTERM and Ctrl-C ask it to stop; a second Ctrl-C interrupts."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if told.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        told.stop_asked = True
        process.terminate()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Told:
    """What the device process says: copied to the log, and to people in words."""

    log: IO[str]
    say: Say
    on_event: Callable[[Event], None] | None = None
    failure: str | None = None
    """Its own error."""
    paused: str | None = None
    """Why it stopped on purpose."""
    stop_asked: bool = False
    """Whether this process was asked to."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    """The last lines that were no events."""
    _said_at: float = 0.0

    def follow(self, lines: Iterable[str]) -> None:
        """Take all lines to the end."""
        for line in lines:
            self.log.write(line)
            self.log.flush()
            event = _event(line)
            if event is None:
                self.tail.append(line)
                continue
            self._take(event)
            if self.on_event is not None:
                self.on_event(event)

    def _take(self, event: Event) -> None:
        if event["event"] == "error":
            self.failure = str(event.get("text"))
            return
        if event["event"] == "paused":
            self.paused = str(event.get("text"))
            return
        if event["event"] == "plan":  # torchrun may have started the job again
            self.failure = self.paused = None
        text = in_words(event)
        done, of = event.get("step", event.get("rows")), event.get("steps", event.get("of"))
        soon = time.monotonic() - self._said_at < SECONDS_BETWEEN_LINES
        if text is None or (done is not None and done != of and soon):
            return
        if done is not None:
            self._said_at = time.monotonic()
        self.say(text)


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
            f"{format_duration(round(event['eta_seconds']))} left"
        )
    if kind == "evaluated":
        return f"held-out rows after update {event['after']}/{event['updates']}: {figures_in_words(event)}"
    if kind == "predicted":
        share = event["rows"] / max(1, event["of"])
        return f"[{share:4.0%}] rows {event['rows']}/{event['of']}  {format_duration(round(event['eta_seconds']))} left"
    if kind == "plan":
        plan = event.get("plan", {k: v for k, v in event.items() if k != "event"})
        return "plan: " + ", ".join(f"{name} {value}" for name, value in _spoken(plan))
    if kind == "message":
        return str(event["text"])
    return None


def figures_in_words(figures: Mapping[str, Any]) -> str:
    """Those of an evaluation (ipu_model/train/evaluation.py) that people compare, accuracies in percent."""
    names = [name for name in figures if name in ("loss", "perplexity") or name.endswith("_accuracy")]
    shown = (f"{figures[n]:.1%}" if n.endswith("_accuracy") else f"{figures[n]:.4f}" for n in names)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in zip(names, shown, strict=True))


def _spoken(plan: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """What one line holds: single values, those of the device too; the rest (placement, config) is in result.json."""
    for name, value in plan.items():
        if not isinstance(value, dict):
            yield name, value
        elif name == "device":
            yield from ((inner, item) for inner, item in value.items() if not isinstance(item, dict))
