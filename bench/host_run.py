"""`python -m bench.host_run job.json`: run one job with one thread, and say what it took.

Written to standard output as JSON: peak memory of the process, CPU seconds of each update, real tokens of all updates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.host import peak_memory_mb
from bench.protocol import take_stdout
from ipu_model.distributed.process import StopRequest, die_with_parent, limit_spinning
from ipu_model.jobs.job import Job


class Watch:
    """Takes the events of a job and notes the CPU time of each."""

    def __init__(self) -> None:
        self.updates: list[float] = []
        """CPU seconds of each update after the first, but for those in which something else was done, too."""
        self._last: float | None = None

    def __call__(self, event: str, **fields: Any) -> None:
        """An event of the job."""
        now = time.process_time()
        if event == "step" and self._last is not None:
            self.updates.append(now - self._last)
        self._last = now if event == "step" else None


def main() -> int:
    """Run the job of the command line."""
    parser = argparse.ArgumentParser(description="Run one job with one thread, and say what it took.")
    parser.add_argument("job", type=Path, metavar="job.json")
    path: Path = parser.parse_args().job
    stdout = take_stdout()
    die_with_parent()
    limit_spinning()
    # torch is imported here: how its threads wait was said above.
    from ipu_model.runtimes.host import keep_freed_memory, set_threads
    from ipu_model.train.running import run_job

    keep_freed_memory()
    set_threads("1")
    watch = Watch()
    result = run_job(Job.from_json(path.read_text(encoding="utf-8")), watch, StopRequest())
    found = {"peak_mb": round(peak_memory_mb(), 1), "cpu_seconds": watch.updates, "real_tokens": result.real_tokens}
    stdout.write(json.dumps(found) + "\n")
    stdout.flush()
    os._exit(0)  # nothing is left to save, and a library's clean-up takes seconds at times


if __name__ == "__main__":
    sys.exit(main())
