"""How the parent and a measuring child talk: one JSON object a line, both ways.

    child  -> {"ready": {...}}            warmed up, with facts about itself
    parent -> {"round": 0}                measure one round now
    child  -> {"samples": [...]}          what it measured
    parent -> {"stop": true}
    child  -> {"finished": {...}}         peak memory and facts known only at the end

Children stay alive between rounds, so that rounds of several configurations follow each other closely and
are compared under the same load of the host.
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
    """One measured stretch of work."""

    cpu: float
    """Seconds of CPU time of the whole process, all threads."""
    wall: float
    """Seconds."""
    units: float
    """Work done in it: real tokens, features, steps, ... as the case says."""
    notes: dict[str, float] = field(default_factory=dict)
    """Figures beside it: loss, FLOPs, ..."""


class Stopwatch:
    """CPU and wall time since it was started; the CPU time of processes it waited for counts too."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin again."""
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()

    def sample(self, units: float, **notes: float) -> Sample:
        """What was used since the start; the watch begins again."""
        made = Sample(_cpu_seconds() - self._cpu, time.perf_counter() - self._wall, units, notes)
        self.start()
        return made


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Session:
    """The child's end."""

    def __init__(self, reads: IO[str], writes: IO[str]) -> None:
        self._reads, self._writes = reads, writes
        self._ready = False
        self.facts: dict[str, Any] = {}
        """Said at the end."""

    def next_round(self, **facts: Any) -> bool:
        """Wait for the parent; False when it wants no more. The first call says that the child is warm."""
        if not self._ready:
            self._ready = True
            self._write({"ready": facts})
        line = self._reads.readline()
        return bool(line) and "round" in json.loads(line)

    def report(self, samples: list[Sample]) -> None:
        """Hand over the samples of a round."""
        self._write({"samples": [asdict(sample) for sample in samples]})

    def finish(self, **facts: Any) -> None:
        """The last word."""
        self._write({"finished": {**self.facts, **facts}})

    def _write(self, message: dict[str, Any]) -> None:
        self._writes.write(json.dumps(message) + "\n")
        self._writes.flush()


def take_stdout() -> IO[str]:
    """Keep stdout for the protocol: whatever a library prints goes to stderr instead."""
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return protocol
