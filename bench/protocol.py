"""Protocol between the parent and a measuring child: one JSON object per line in both directions.

    child  -> {"ready": {...}}            warm-up complete, with facts about the child
    parent -> {"round": 0}                measure one round
    child  -> {"samples": [...]}          measurements
    parent -> {"stop": true}
    child  -> {"finished": {...}}         peak memory and other final facts

Children stay alive between rounds, so that rounds of several configurations follow each other closely and
run under the same load of the host.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import IO, Any


@dataclass(frozen=True)
class Sample:
    """A single measurement."""

    cpu: float
    """CPU seconds of the whole process, over all threads."""
    wall: float
    """Wall seconds."""
    units: float
    """Completed units: real tokens, features, steps, ..., as defined by the case."""
    notes: dict[str, float] = field(default_factory=dict)
    """Further figures: loss, FLOPs, ..."""


class Stopwatch:
    """Stopwatch for CPU and wall time; includes the CPU time of child processes that were waited for."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Reset the stopwatch."""
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()

    def sample(self, units: float, **notes: float) -> Sample:
        """Return the time since the start, and reset the stopwatch."""
        sample = Sample(_cpu_seconds() - self._cpu, time.perf_counter() - self._wall, units, notes)
        self.start()
        return sample


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Session:
    """Child side of the protocol."""

    def __init__(self, reads: IO[str], writes: IO[str]) -> None:
        self._reads, self._writes = reads, writes
        self._ready = False
        self.facts: dict[str, Any] = {}
        """Facts to send at the end."""

    def next_round(self, **facts: Any) -> bool:
        """Wait for the parent; return False after the last round. The first call reports that the child is ready."""
        if not self._ready:
            self._ready = True
            self._write({"ready": facts})
        line = self._reads.readline()
        return bool(line) and "round" in json.loads(line)

    def report(self, samples: list[Sample]) -> None:
        """Send the samples of a round."""
        self._write({"samples": [asdict(sample) for sample in samples]})

    def finish(self, **facts: Any) -> None:
        """Send the final facts."""
        self._write({"finished": {**self.facts, **facts}})

    def _write(self, message: dict[str, Any]) -> None:
        self._writes.write(json.dumps(message) + "\n")
        self._writes.flush()


def take_stdout() -> IO[str]:
    """Reserve stdout for the protocol; output of libraries goes to stderr instead."""
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return protocol
