"""Entry point of every stage and command: errors become one message and an exit code."""

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tasks.stage import streams
from tasks.stage.errors import FAILED, PodiumError, StagePaused
from tasks.stage.events import report
from tasks.stage.process import die_with_parent, write_stage_run, write_usage


def run_main(main: Callable[[], None]) -> None:
    """Run a stage's `main`; report an error that a user can fix as one message and an exit code.

    OSError (a full disk, a read-only folder) and exhausted memory count as such errors. Any other exception is a bug
    and keeps its traceback. A closed pipe ends the process silently, like SIGPIPE. Under DVC, the process ends with the
    `dvc` that started it, and first checks its inputs for DVC files (tasks/plan/named_files.py) and its inputs' bytes
    (tasks/plan/dvc_records.py).
    """
    stage, began = os.environ.get("DVC_STAGE"), time.time()
    atexit.register(gc.freeze)  # garbage collection at exit takes up to half a second
    streams.prepare_streams()
    try:
        if stage is not None:
            _enter(stage)
        main()
        if stage is not None:
            write_stage_run(stage, began)
        sys.stdout.flush()
    except PodiumError as error:
        word, event = ("paused", "paused") if isinstance(error, StagePaused) else ("error", "failed")
        _tell(stage, event, str(error), f"{word}: ")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        streams.note("nothing half-written was kept; run it again to continue", "interrupted: ")
        raise SystemExit(128 + signal.SIGINT) from None
    except (MemoryError, OSError) as error:
        if isinstance(error, BrokenPipeError) and streams.has_no_reader():
            raise SystemExit(128 + signal.SIGPIPE) from None
        _tell(stage, "failed", _failure_of_host(error, stage), "error: ")
        raise SystemExit(FAILED) from None
    finally:
        if stage is not None:
            with contextlib.suppress(OSError):  # a full disk has been reported already
                write_usage(stage, began)
        streams.flush_output()


def _tell(stage: str | None, event: str, text: str, prefix: str) -> None:
    """Tell users, and the run of a stage, why this process ends."""
    if stage is not None:
        report(event, text=text)
    streams.note(text, prefix)


def _failure_of_host(error: MemoryError | OSError, stage: str | None) -> str:
    """Return a one-line description of a failure of the host: memory, a path or disk space."""
    where = "" if stage is None else f" (stage {stage})"
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        from tasks.stage.memory import describe_shortage

        return (
            f"{describe_shortage(error)}{where}: split the input, use fewer processes (PODIUM_WORKERS), or "
            "use a host with more memory; nothing half-written was kept"
        )
    # pyarrow does not name the file; the stage is known at least.
    where = f" ({error.filename})" if error.filename else where
    return (
        f"{error.strerror or error}{where}: check that the path exists and is writable, and that the disk has space; "
        "nothing half-written was kept"
    )


def _enter(stage: str) -> None:
    """Check a stage's inputs before its work; imports are local because `podium --help` does not need them."""
    from tasks.plan.dvc_records import verify_files
    from tasks.plan.named_files import reject_dvc_files
    from tasks.plan.plan_file import read_plan
    from tasks.plan.stage_kinds import enter_stage
    from tasks.stage.memory import watch_memory

    die_with_parent()
    report("started", stage=stage, pid=os.getpid())
    watch_memory(f"stage {stage}")
    enter_stage()
    plan = read_plan(Path())
    inputs = plan[stage].deps if stage in plan else ()
    reject_dvc_files(Path(), inputs)
    verify_files(inputs)
