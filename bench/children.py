"""The parent's end of a measuring child: start it, ask for rounds, end it."""

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
"""Everything is on this disk. Set for children alone: whoever imports the benchmark may want the Hub."""
TUNED_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""What keep_freed_memory (ipu_model/runtimes/host.py) sets from inside, for other programs: glibc reads it at start."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "PODIUM_WORKERS")
TAIL_LINES = 12
PATIENCE_SECONDS = 900.0
"""A round, or a start with compiling, takes less even on a host that does other work too."""


class ChildFailed(Exception):
    """A child ended, or fell silent, before it had measured; the message ends with the last lines of its stderr."""


class Child:
    """One configuration in a process of its own.

    Args:
        spec: For bench.child.
        environment: Variables on top of this process's own.

    Raises:
        ChildFailed: it ended before it was warm.
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
        """One round.

        Raises:
            ChildFailed: it ended instead.
        """
        self._write({"round": number})
        return [Sample(**sample) for sample in self._read("samples")]

    def stop(self) -> dict[str, Any]:
        """Ask for the last word and wait for the end; facts such as peak_memory_mb.

        Raises:
            ChildFailed: it ended without.
        """
        self._write({"stop": True})
        self.finished = self._read("finished")
        self._process.wait()
        self.kill()
        return self.finished

    def kill(self) -> None:
        """End it now; may be called again."""
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
