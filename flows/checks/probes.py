"""Results of checks, and probes: checks that may wait for a device, a network or a slow disk, each in its own process.

A probe has a time limit. It reads one JSON object from standard input and writes a line of JSON for each result:
{"name": ..., "level": "ok" | "warning" | "problem", "text": ..., "of_parameters": ...}. Results that it wrote before
its limit count.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tasks.stage.errors import InputError
from tasks.stage.process import describe_exit, die_with_parent, python_path

Level = Literal["ok", "warning", "problem"]
LOCAL_LIMIT_S = 4.5
"""Seconds for local probes: a run is refused within five seconds."""
REMOTE_LIMIT_S = 14.0
"""Seconds for a device's Python, CUDA and the network: a run is refused within fifteen."""
CHECK_SECONDS = "PODIUM_CHECK_SECONDS"
"""Environment variable that replaces both limits, for slow hosts."""
MAX_LINES = 3
"""Number of last lines of a failed probe in the message."""


@dataclass(frozen=True)
class CheckResult:
    """One line of `podium doctor`; a run is refused for problems, and reports warnings."""

    name: str
    """Subject of the check, in a word or two."""
    level: Level
    text: str
    """For a problem: the fact, the requirement, and the parameter or setting to change."""
    of_parameters: bool = False
    """The cause is in the parameters (exit code 2), not on the host."""


def ok(name: str, text: str) -> CheckResult:
    """Return the result of a passed check."""
    return CheckResult(name, "ok", text)


def warning(name: str, text: str) -> CheckResult:
    """Return a result that is reported but does not refuse the run."""
    return CheckResult(name, "warning", text)


def problem(name: str, text: str, *, of_parameters: bool = False) -> CheckResult:
    """Return a result that refuses the run."""
    return CheckResult(name, "problem", text, of_parameters)


@dataclass(frozen=True)
class Probe:
    """Program that makes a check."""

    name: str
    """Name of the result if the program fails."""
    module: str
    request: dict[str, Any]
    limit_s: float
    python: str = sys.executable
    failure: str = ""
    """Message of a problem if the program fails to start or to answer; empty: a failure is only a warning."""


@dataclass
class RunningProbe:
    """Running probe."""

    probe: Probe
    process: subprocess.Popen[bytes] | None
    output: IO[bytes]
    limit_s: float
    complaint: str = ""
    began: float = field(default_factory=time.monotonic)

    def results(self) -> list[CheckResult]:
        """Wait for the results within the time limit, and return them."""
        complaint = self.complaint or self._wait()
        found = list(_read_results(self.output))
        if not complaint:
            return found
        if self.probe.failure and not complaint.startswith("no answer"):
            return [*found, problem(self.probe.name, f"{self.probe.failure}: {complaint}")]
        return [*found, warning(self.probe.name, f"not checked: {complaint}")]

    def _wait(self) -> str:
        """Return the reason of a failure; empty on success."""
        assert self.process is not None
        try:
            code = self.process.wait(max(0.0, self.began + self.limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"no answer within {self.limit_s:g} s ({CHECK_SECONDS})"
        return f"it ended with {describe_exit(code)}{_tail(self.output)}" if code else ""


@contextlib.contextmanager
def start_probes(questions: Sequence[Probe], folder: Path) -> Iterator[list[RunningProbe]]:
    """Start all probes in parallel, in `folder`; they are killed at the end of the body.

    Raises:
        InputError: PODIUM_CHECK_SECONDS is not a number of seconds.
    """
    limit = _limit()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(_start_probe(one, folder, limit or one.limit_s)) for one in questions]


def _limit() -> float | None:
    text = os.environ.get(CHECK_SECONDS)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise InputError(f"{CHECK_SECONDS}={text!r} is not a number of seconds above 0. Correct it, or unset it")


@contextlib.contextmanager
def _start_probe(probe: Probe, folder: Path, limit_s: float) -> Iterator[RunningProbe]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
    env["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH"))
    command, end = [probe.python, "-m", probe.module], subprocess.STDOUT
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as output:
        request.write(json.dumps(probe.request).encode())
        request.seek(0)
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=request, stdout=output, stderr=end, preexec_fn=die_with_parent
            )
        except OSError as error:
            yield RunningProbe(probe, None, output, limit_s, f"{probe.python} cannot be started ({error.strerror})")
            return
        try:
            yield RunningProbe(probe, process, output, limit_s)
        finally:
            process.kill()
            process.wait()


def _lines(output: IO[bytes]) -> list[str]:
    output.seek(0)
    return output.read().decode("utf-8", "replace").splitlines()


def _read_results(output: IO[bytes]) -> Iterator[CheckResult]:
    """Yield results from the output; other lines are warnings of libraries."""
    for line in _lines(output):
        with contextlib.suppress(ValueError, TypeError):
            if line.startswith("{"):
                yield CheckResult(**json.loads(line))


def _tail(output: IO[bytes]) -> str:
    lines = [line.strip() for line in _lines(output) if line.strip() and not line.startswith("{")]
    return f" ({' '.join(lines[-MAX_LINES:])[-400:]})" if lines else ""
