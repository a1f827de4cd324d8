"""Parent side of a measuring child process: start it, request rounds, stop it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench.protocol import Sample
from tasks.stage.process import describe_exit

OF_PEERS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""Offline settings, because all files are local. Only children get them: code that imports bench may need the Hub."""
TUNED_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Settings of keep_freed_memory (ipu_model/runtimes/host.py) for other programs: glibc reads them at start."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "PODIUM_WORKERS")
TAIL_LINES = 12
PATIENCE_SECONDS = 900.0
"""Time limit of a round, or of a start with compilation, also on a busy host."""


class ChildFailed(Exception):
    """A child that ended or stopped responding early; the message ends with the last lines of its stderr."""


class Child:
    """A configuration in a separate process.

    Args:
        spec: For bench.child.
        environment: Variables added to the environment of this process.

    Raises:
        ChildFailed: it ended before its warm-up was complete.
    """

    def __init__(self, spec: dict[str, Any], environment: dict[str, str]) -> None:
        threads = dict.fromkeys(THREAD_VARIABLES, str(spec["threads"]))
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, kill() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **OF_PEERS, **threads, **environment},
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children itself
        )
        self.finished: dict[str, Any] = {}
        try:
            self.facts: dict[str, Any] = self._read("ready")
        except BaseException:
            self.kill()
            raise

    def measure(self, number: int) -> list[Sample]:
        """Measure one round.

        Raises:
            ChildFailed: the child ended.
        """
        self._write({"round": number})
        return [Sample(**sample) for sample in self._read("samples")]

    def stop(self) -> dict[str, Any]:
        """Stop the child; return its final facts, such as peak_memory_mb.

        Raises:
            ChildFailed: it ended without final facts.
        """
        self._write({"stop": True})
        self.finished = self._read("finished")
        self._process.wait()
        self.kill()
        return self.finished

    def kill(self) -> None:
        """Kill the child; further calls do nothing."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                stream.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _read(self, key: str) -> Any:
        assert self._process.stdout is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while not select.select([self._process.stdout], [], [], 1.0)[0]:
            if time.monotonic() > until:
                raise ChildFailed(f"no answer for {PATIENCE_SECONDS:.0f} s\n{self._tail()}")
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)[key]

    def _failure(self) -> ChildFailed:
        return ChildFailed(f"{describe_exit(self._process.wait())}\n{self._tail()}")

    def _tail(self) -> str:
        self._errors.flush()
        self._errors.seek(0)
        return "\n".join(self._errors.read().splitlines()[-TAIL_LINES:])
