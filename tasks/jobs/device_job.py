"""Device jobs: write job.json, run `python -m ipu_model`, read result.json.

Other modules of `tasks` import Job and its parts from here. The device's interpreter (PODIUM_DEVICE_PYTHON, default:
this one) may be another Python version, and a launcher (tasks/host/launcher.py) may start several processes of the job.

SIGTERM and Ctrl-C are forwarded: the device process writes a checkpoint and ends, then the stage ends as paused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ipu_model.core.files import write_text
from ipu_model.core.units import format_duration
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job, JobResult, OptimizerConfig, ScheduleConfig
from ipu_model.models.config import Distillation, ModelConfig
from ipu_model.models.families import configure_model
from tasks.host import ledger
from tasks.host.launcher import DEVICE_PYTHON, device_python
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.stage.events import report_progress
from tasks.stage.fork_server import ReserveProcess, take_reserve
from tasks.stage.process import Say, child_environment, describe_exit, die_with_parent, print_line
from tasks.stage.streams import note

__all__ = ["BatchGeometry", "Distillation", "EvaluationConfig", "ModelConfig", "OptimizerConfig", "ScheduleConfig"]
__all__ += ["configure_model", "read_ipu_config"]
PLACE = ("RANK", "WORLD_SIZE")
"""Variables that make a job one of several processes; a notebook or a batch system may have set them."""
SECONDS_BETWEEN_LINES = 5.0
KEPT_LINES = 20
"""Number of log lines in an error message."""

Event = dict[str, Any]


def run_device_job(
    job: Job,
    *,
    python: str | None = None,
    launcher: Sequence[str] = (),
    say: Say | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> JobResult:
    """Run `job` in the device's interpreter and wait for it.

    `job.run_folder` contains its job.json, job.log and result.json. Progress appears every few seconds.

    Args:
        python: the device's interpreter; default: PODIUM_DEVICE_PYTHON, otherwise this interpreter.
        launcher: command before the interpreter (launcher.launch_command).
        say: receives each line for users; default: standard output, and progress goes to the run of a stage.

    Raises:
        DeviceJobFailed: the process did not start, failed, or left no result; the message has its error or the last
            lines of its log.
        StagePaused: it stopped early on request; run it again to continue.
    """
    folder = Path(job.run_folder)
    folder.mkdir(parents=True, exist_ok=True)
    result_path = folder / "result.json"  # the job removes an old one after it locked the folder
    before = _version(result_path)
    write_text(folder / "job.json", job.to_json())
    command = [*launcher, python or device_python(), "-m", "ipu_model", str(folder / "job.json")]
    with (folder / "job.log").open("a", encoding="utf-8") as log:
        output = _JobOutput(log, say or print_line, on_event, reports=say is None)
        error = _run(command, output)
    if output.paused is not None:
        raise StagePaused(f"{job.kind} job: {output.paused}", in_a_hurry=output.stop_asked)
    if error is not None:
        raise DeviceJobFailed(f"{job.kind} job: {error} (log: {folder / 'job.log'})")
    if _version(result_path) in (None, before):
        raise DeviceJobFailed(f"{job.kind} job ended without {result_path} (log: {folder / 'job.log'})")
    result = JobResult.from_json(result_path.read_text(encoding="utf-8"))
    return result if result.foretold is None else _entered(job, result, result_path, say or print_line)


def _entered(job: Job, result: JobResult, path: Path, say: Say) -> JobResult:
    """Return the result with a record of its estimate, which is also added to the ledger of this host."""
    file = ledger.ledger_file()
    host = ledger.host_name(result.runtime)
    named = {"kind": result.kind, "head": job.head, "runtime": result.runtime, "precision": result.precision}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record = ledger.add_estimate({**(result.foretold or {}), **named, "host": host, "at": at}, ledger.read(file))
    result = dataclasses.replace(result, foretold=record)
    write_text(path, result.to_json())
    try:
        ledger.add_record(record, file)
    except OSError as error:  # the run folder has the record as well
        say(f"could not write the ledger of this host ({error})")
    return result


def _version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when a file is rewritten; None if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        state = path.stat()
        return state.st_ino, state.st_mtime_ns
    return None


def _run(command: list[str], output: _JobOutput) -> str | None:
    """Run the device process to its end; return None if it succeeded or paused, otherwise the error."""
    alone = command[1:3] == ["-m", "ipu_model"]  # without a launcher, which sets these variables
    environment = child_environment(PYTHONUNBUFFERED="1")
    try:
        process = _start(command, {name: x for name, x in environment.items() if not (alone and name in PLACE)})
    except OSError as error:
        named = f"set {DEVICE_PYTHON} to the device's Python"
        if command[1:2] != ["-m"]:
            named = "check the launcher (device.launcher, or PODIUM_DEVICE_LAUNCHER on this host)"
        return f"{command[0]} cannot be started ({error.strerror}); {named}"
    assert process.stdout is not None
    try:
        with _stop_passed_on(process, output):
            output.follow(process.stdout)
            code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if output.failure is None and output.paused is None and output.stop_asked and code not in (0, -signal.SIGKILL):
        # It stopped during compilation or start-up without a report; its last checkpoint is up to date.
        output.paused = f"stopped on request ({describe_exit(code)}); run it again to continue"
    if output.failure is not None or output.paused is not None or code == 0:
        return output.failure
    need = "; `podium plan` states the memory that it needs" if code == -signal.SIGKILL else ""
    return f"{describe_exit(code)} of {command[0]}{need}\n" + "".join(output.tail).rstrip()


def preload() -> None:
    """Import what a device job of this Python imports."""
    if device_python() == sys.executable:
        importlib.import_module("ipu_model.train.job_runner")


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str] | ReserveProcess:
    """Start the device process, in the reserve of this process if it runs the same Python."""
    if command[:3] == [sys.executable, "-m", "ipu_model"] and (reserve := take_reserve()):
        with contextlib.suppress(OSError):  # it has ended
            reserve.start("ipu_model", command[3:], environment)
            return reserve
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=die_with_parent,  # for a launcher, which does not do that; the job does it as well
    )


@contextlib.contextmanager
def _stop_passed_on(process: subprocess.Popen[str] | ReserveProcess, output: _JobOutput) -> Iterator[None]:
    """Forward SIGTERM and Ctrl-C to the device process; a second Ctrl-C interrupts."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if output.stop_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        output.stop_asked = True
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
class _JobOutput:
    """Output of the device process: copied to the log, and formatted for users."""

    log: IO[str]
    say: Say
    on_event: Callable[[Event], None] | None = None
    reports: bool = False
    """True if progress is that of a stage."""
    failure: str | None = None
    """Error that the process reported."""
    paused: str | None = None
    """Reason of an early stop on request."""
    stop_asked: bool = False
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    """Last lines that are not events."""
    _said_at: dict[str, float] = field(default_factory=dict)
    """Time of the last progress line of each kind of event."""

    def follow(self, lines: Iterable[str]) -> None:
        """Process all lines until the end."""
        for line in lines:
            self.log.write(line)
            self.log.flush()
            event = None
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event:  # such as a warning of a library
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
        if event["event"] == "note":
            note(str(event["text"]))
            return
        text = format_event(event)
        done = event.get("step", event.get("rows", event.get("update")))
        of, kind = event.get("steps", event.get("of")), event["event"]
        soon = time.monotonic() - self._said_at.get(kind, -SECONDS_BETWEEN_LINES) < SECONDS_BETWEEN_LINES
        if text is None or (done is not None and done != of and soon):
            return
        if done is not None:
            self._said_at[kind] = time.monotonic()
        share = done / max(1, of) if done is not None and of is not None else None
        if not (self.reports and share is not None and report_progress(share, text)):
            self.say(text if share is None else f"[{share:4.0%}] {text}")


def format_event(event: Event) -> str | None:
    """Format an event as a line for users; return None for events that users do not need."""
    kind = event["event"]
    if kind == "step":
        return (
            f"update {event['step']}/{event['steps']}  loss {event['loss']:.4f}  "
            f"learning rate {event['learning_rate']:.2e}  {event['real_tokens_per_second']:,.0f} tokens/s  "
            f"{format_duration(round(event['eta_seconds']))} left"
        )
    if kind == "progress":
        left = format_duration(round(event["eta_seconds"]))
        return f"update {event['update']}/{event['of']}  loss {event['loss']:.4f}  {left} left"
    if kind == "evaluated":
        return f"held-out rows after update {event['after']}/{event['updates']}: {format_figures(event)}"
    if kind == "predicted":
        return f"rows {event['rows']}/{event['of']}  {format_duration(round(event['eta_seconds']))} left"
    if kind == "plan":
        plan = event.get("plan", {k: v for k, v in event.items() if k != "event"})
        parts = [value if name == "device" else {name: value} for name, value in plan.items()]
        shown = [(name, value) for part in parts for name, value in part.items() if not isinstance(value, dict)]
        return "plan: " + ", ".join(f"{name} {value}" for name, value in shown)  # the rest is in result.json
    if kind == "message":
        return str(event["text"])
    return None


def format_figures(figures: Mapping[str, Any]) -> str:
    """Format the main figures of an evaluation (ipu_model/train/evaluation.py), accuracies in percent."""
    names = [name for name in figures if name in ("loss", "perplexity") or name.endswith("_accuracy")]
    shown = (f"{figures[n]:.1%}" if n.endswith("_accuracy") else f"{figures[n]:.4f}" for n in names)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in zip(names, shown, strict=True))
