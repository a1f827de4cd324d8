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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tasks.stage.errors import InputError
from tasks.stage.process import child_environment, describe_exit, die_with_parent, parse_no_arguments

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
    level: Literal["ok", "warning", "problem"]
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


@contextlib.contextmanager
def start_probes(probes: Sequence[Probe], folder: Path) -> Iterator[Callable[[], list[CheckResult]]]:
    """Start all probes in parallel, in `folder`; they are killed at the end of the body.

    Yields:
        A function that waits for the results within the time limits, and returns them.

    Raises:
        InputError: PODIUM_CHECK_SECONDS is not a number of seconds.
    """
    limit, env = read_limit(), child_environment(PYTHONDONTWRITEBYTECODE="1", PYTHONIOENCODING="utf-8")
    began, started = time.monotonic(), list[tuple[Probe, IO[bytes], subprocess.Popen[bytes] | OSError]]()
    with contextlib.ExitStack() as stack:
        for probe in probes:
            request, output = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            request.write(json.dumps(probe.request).encode())
            request.seek(0)
            streams: dict[str, Any] = {"stdin": request, "stdout": output, "stderr": subprocess.STDOUT}
            command = [probe.python, "-m", probe.module]
            try:
                process = subprocess.Popen(command, cwd=folder, env=env, preexec_fn=die_with_parent, **streams)
            except OSError as error:
                started.append((probe, output, error))
                continue
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((probe, output, process))
        yield lambda: [
            result
            for probe, output, process in started
            for result in _wait(probe, output, process, began, limit or probe.limit_s)
        ]


def _wait(
    probe: Probe, output: IO[bytes], process: subprocess.Popen[bytes] | OSError, began: float, limit_s: float
) -> Iterator[CheckResult]:
    """Wait for a probe, and yield the results that it wrote and, if it failed, the reason."""
    complaint, late = "", False
    if isinstance(process, OSError):
        complaint = f"{probe.python} cannot be started ({process.strerror})"
    else:
        try:
            if code := process.wait(max(0.0, began + limit_s - time.monotonic())):
                complaint = f"it ended with {describe_exit(code)}"
        except subprocess.TimeoutExpired:
            complaint, late = f"no answer within {limit_s:g} s ({CHECK_SECONDS})", True
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # other lines are warnings of libraries
            if line.startswith("{"):
                yield CheckResult(**json.loads(line))
    if not complaint:
        return
    last = [line.strip() for line in lines if line.strip() and not line.startswith("{")][-MAX_LINES:]
    if last and not late:
        complaint += f" ({' '.join(last)[-400:]})"
    if probe.failure and not late:
        yield problem(probe.name, f"{probe.failure}: {complaint}")
    else:
        yield warning(probe.name, f"not checked: {complaint}")


def answer_request(what: str, check: Callable[[dict[str, Any]], Iterable[CheckResult]]) -> None:
    """Run as the program of a probe: read its request, and write the results; --help prints `what`."""
    parse_no_arguments(what)
    for result in check(json.load(sys.stdin)):
        print(json.dumps(asdict(result)), flush=True)


def read_limit() -> float | None:
    """Return the seconds of PODIUM_CHECK_SECONDS; None if it is not set.

    Raises:
        InputError: it is not a number of seconds.
    """
    text = os.environ.get(CHECK_SECONDS)
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise InputError(f"{CHECK_SECONDS}={text!r} is not a number of seconds above 0. Correct it, or unset it")
