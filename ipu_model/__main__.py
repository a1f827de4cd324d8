"""`python -m ipu_model job.json`: run one job; progress on stdout, one JSON object per line (progress.py).

Exit codes: 0 done; 1 diverged, or a file could not be written; 2 the job is invalid; 4 paused by SIGTERM or at
PODIUM_STOP_AT, and continues when you start it again. Under torchrun with restarts, 0 also covers failures that a
restart cannot fix (torchrun.choose_exit_code); the events tell the two apart.
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
from typing import Any, List, Mapping

from ipu_model.core.errors import CheckpointError, ConfigError, DeviceJobError, InstanceLost, RowsError
from ipu_model.core.progress import Emit, Progress
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.poprun import Importer, detect_poprun
from ipu_model.distributed.process import (
    PAUSED,
    STOP_AT,
    StopRequest,
    Terminated,
    die_with_parent,
    limit_spinning,
    lock_run_folder,
    parse_stop_time,
)
from ipu_model.distributed.torchrun import choose_exit_code, detect_torchrun
from ipu_model.jobs.job import Job

USAGE = 2
FAILED = 1


USAGE_TEXT = """usage: python -m ipu_model [--measure] job.json
Run one job and print its progress on standard output, one JSON object per line. ipu_model/jobs/job.py describes
the job file.
--measure: time a few updates of the job on CPU or CUDA with generated rows; nothing is saved.
"""
MEASURE = "--measure"


def main() -> int:
    """Run the job named on the command line, or print the usage; return the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE_TEXT)
        return 0
    # Otherwise the garbage collector scans everything that torch loads: during the import, and 0.3 s at exit.
    gc.disable()
    atexit.register(gc.freeze)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries is not part of the protocol
    emit: Emit = Progress(protocol)
    try:
        stop = StopRequest(parse_stop_time(os.environ.get(STOP_AT)))
        stop.listen()
        die_with_parent()
        arguments = sys.argv[1:]
        if MEASURE in arguments:
            job = read_job([argument for argument in arguments if argument != MEASURE])
            limit_spinning()
            from ipu_model.train.measurement import measure

            _prepare_host()
            emit("measured", **measure(job, emit))  # without a run folder, and therefore without a lock
        else:
            job, instances = read_job(arguments), detect_instances(os.environ)
            if not instances.is_writer:
                # This process trains too, in its own folder, but only instance 0 reports progress and saves.
                emit, job = _discard_events, dataclasses.replace(job, run_folder=instances.own_folder(job.run_folder))
            _train_or_predict(job, emit, stop, instances)
    except Terminated as paused:
        emit("paused", text=f"{paused}; run it again to continue")
        return choose_exit_code(PAUSED, os.environ)
    except DeviceJobError as error:
        emit("error", type=type(error).__name__, text=str(error))
        if isinstance(error, InstanceLost):
            return FAILED  # the only failure that restarting all processes can fix
        return choose_exit_code(
            USAGE if isinstance(error, (ConfigError, RowsError, CheckpointError)) else FAILED, os.environ
        )
    except OSError as error:
        path = f" ({error.filename})" if error.filename else ""
        text = f"{error.strerror or error}{path}: check that the path is writable and that the disk has free space"
        emit("error", type=type(error).__name__, text=text)
        return choose_exit_code(FAILED, os.environ)
    return 0


def detect_instances(environ: Mapping[str, str], importer: Importer = importlib.import_module) -> Instances:
    """Return the rank of this process in its group. Call it once: under PopRun the processes communicate.

    Raises:
        ConfigError: a launcher started this process, but variables or packages of the launcher are missing.
    """
    return detect_torchrun(environ) or detect_poprun(environ, importer) or Instances()


def _train_or_predict(job: Job, emit: Emit, stop: StopRequest, instances: Instances) -> None:
    with lock_run_folder(Path(job.run_folder)), instances.session():
        limit_spinning()
        # Import torch only now: the job is readable and no other process uses the folder.
        from ipu_model.train.job_runner import run_job

        _prepare_host()
        stop.check()  # SIGTERM may have come during the import of torch
        run_job(job, emit, stop, instances)


def _prepare_host() -> None:
    """Apply the variables for threads and memory; garbage collection covers only objects created from here on."""
    from ipu_model.runtimes.host import keep_freed_memory, set_threads

    gc.freeze()
    gc.enable()
    keep_freed_memory(os.environ.get("PODIUM_KEEP_MEMORY"))
    set_threads(os.environ.get("PODIUM_THREADS"))


def _discard_events(event: str, **fields: Any) -> None:
    """Discard the progress of an instance that is not the writer; errors go to stderr."""
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


if __name__ == "__main__":
    sys.exit(main())
