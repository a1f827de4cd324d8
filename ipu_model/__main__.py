"""`python -m ipu_model job.json`: run one job; progress on stdout, one JSON object per line (progress.py).

Exit codes: 0 done; 1 diverged, or a file could not be written; 2 the job cannot be run as stated;
4 paused, by SIGTERM or at PODIUM_STOP_AT: started again it continues. Where torchrun may start all processes again,
0 also stands for what that cannot help (torchrun.exit_code); the events tell the two apart.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, List, Mapping, TextIO

from ipu_model.distributed.poprun import Importer, under_poprun
from ipu_model.distributed.process import (
    PAUSED,
    STOP_AT,
    StopRequest,
    Terminated,
    die_with_parent,
    limit_spinning,
    only_one,
    stop_time,
)
from ipu_model.distributed.ranks import Instances
from ipu_model.distributed.torchrun import exit_code, under_torchrun
from ipu_model.errors import CheckpointError, ConfigError, DeviceJobError, InstanceLost, RowsError
from ipu_model.jobs.job import Job
from ipu_model.progress import Emit, Progress

USAGE = 2
FAILED = 1


USAGE_TEXT = """usage: python -m ipu_model [--measure] job.json
Run one job; its progress goes to standard output, one JSON object a line. ipu_model/jobs/job.py describes the file.
--measure: time a few updates of it on CPU or CUDA on rows that are made up, and keep nothing.
"""
MEASURE = "--measure"


def main() -> int:
    """Run the job named on the command line, or say how one is named; returns the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE_TEXT)
        return 0
    return _run()


def _run() -> int:
    # Python would look for garbage among all that torch loads: while it loads, and for a third of a second at the end.
    gc.disable()
    atexit.register(gc.freeze)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    emit: Emit = Progress(_protocol_stream())
    try:
        stop = StopRequest(stop_time(os.environ.get(STOP_AT)))
        stop.listen()
        die_with_parent()
        words = sys.argv[1:]
        if MEASURE in words:
            _measure(read_job([word for word in words if word != MEASURE]), emit)
        else:
            job, instances = read_job(words), current(os.environ)
            if not instances.is_writer:
                # It trains along, in a folder of its own; what there is to say or to write is instance 0's.
                emit, job = _say_nothing, dataclasses.replace(job, run_folder=instances.own_folder(job.run_folder))
            _train_or_predict(job, emit, stop, instances)
    except Terminated as paused:
        emit("paused", text=f"{paused}; run it again to continue")
        return exit_code(PAUSED, os.environ)
    except DeviceJobError as error:
        emit("error", type=type(error).__name__, text=str(error))
        if isinstance(error, InstanceLost):
            return FAILED  # the one thing that starting all processes again helps
        return exit_code(USAGE if isinstance(error, (ConfigError, RowsError, CheckpointError)) else FAILED, os.environ)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        text = f"{error.strerror or error}{place}: check that the path can be written and that the disk has room"
        emit("error", type=type(error).__name__, text=text)
        return exit_code(FAILED, os.environ)
    return 0


def current(environ: Mapping[str, str], importer: Importer = importlib.import_module) -> Instances:
    """This process's place among those that a launcher started with it. Call it once: under PopRun they talk.

    Raises:
        ConfigError: a launcher started this process, but what it needs is missing.
    """
    return under_torchrun(environ) or under_poprun(environ, importer) or Instances()


def _train_or_predict(job: Job, emit: Emit, stop: StopRequest, instances: Instances) -> None:
    with only_one(Path(job.run_folder)), instances.leaving():
        limit_spinning()
        # torch is imported here, after the job was found readable and the folder free.
        from ipu_model.train.running import run_job

        _prepare_host()
        stop.check()  # it may have come while torch was imported
        run_job(job, emit, stop, instances)


def _prepare_host() -> None:
    """What the environment says of threads and memory; garbage is looked for among what comes from here on."""
    from ipu_model.runtimes.host import keep_freed_memory, set_threads

    gc.freeze()
    gc.enable()
    keep_freed_memory(os.environ.get("PODIUM_KEEP_MEMORY"))
    set_threads(os.environ.get("PODIUM_THREADS"))


def _measure(job: Job, emit: Emit) -> None:
    """Say what a few updates take; needs no run folder, and so no lock."""
    limit_spinning()
    from ipu_model.train.measuring import measure

    _prepare_host()
    emit("measured", **measure(job, emit))


def _say_nothing(event: str, **fields: Any) -> None:
    """Progress of an instance that does not write; errors reach its stderr."""
    if event == "error":
        sys.stderr.write(f"{fields['type']}: {fields['text']}\n")


def read_job(arguments: List[str]) -> Job:
    """Read the job file named by the only argument.

    Raises:
        ConfigError: no such file, not JSON, or not a job.
    """
    if len(arguments) != 1:
        raise ConfigError(f"usage: python -m ipu_model job.json (found {len(arguments)} arguments)")
    path = Path(arguments[0])
    try:
        return Job.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: give the path of a job file") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON ({error})") from None


def _protocol_stream() -> TextIO:
    """Keep stdout for the protocol: whatever a library prints goes to stderr instead."""
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return protocol


if __name__ == "__main__":
    sys.exit(main())
