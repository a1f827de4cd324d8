"""How the `main` of every command runs: its errors become one message and an exit code."""

from __future__ import annotations

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
from tasks.stage.process import die_with_parent, write_stage_run, write_usage


def run_main(main: Callable[[], None]) -> None:
    """Run a stage's `main`; turn an error a person can act on into one message and an exit code.

    A full disk, a folder that cannot be written and the like (OSError) and memory that is used up count as such;
    anything else is our defect and keeps its traceback. Whoever stops reading ends the process without a word, as
    SIGPIPE would.
    Under DVC the process ends with the `dvc` that started it, and first looks for plans among its inputs
    (tasks/plan/named_files.py) and at their bytes (tasks/plan/dvc_records.py).
    """
    stage, began = os.environ.get("DVC_STAGE"), time.time()
    atexit.register(gc.freeze)  # Python would look for garbage among all that was loaded, for up to half a second
    streams.settle()
    try:
        if stage is not None:
            _enter(stage)
        main()
        if stage is not None:
            write_stage_run(stage, began)
        sys.stdout.flush()
    except PodiumError as error:
        word = "paused" if isinstance(error, StagePaused) else "error"  # flows/dvc/session.py knows the line by it
        streams.note(str(error), f"{word}: ")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        streams.note("nothing half-written was kept; run it again to continue", "interrupted: ")
        raise SystemExit(128 + signal.SIGINT) from None
    except (MemoryError, OSError) as error:
        if isinstance(error, BrokenPipeError) and streams.nobody_reads():
            raise SystemExit(128 + signal.SIGPIPE) from None
        streams.note(_failure_of_host(error, stage), "error: ")
        raise SystemExit(FAILED) from None
    finally:
        if stage is not None:
            with contextlib.suppress(OSError):  # a disk that is full is named by what needs it
                write_usage(stage, began)
        streams.finish()


def _failure_of_host(error: MemoryError | OSError, stage: str | None) -> str:
    """Return one line on what the host does not give: memory, a path or room on a disk."""
    place = "" if stage is None else f" (stage {stage})"
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        from tasks.stage.memory import describe_shortage

        return (
            f"{describe_shortage(error)}{place}: split what is read, let fewer processes share the memory "
            "(PODIUM_WORKERS, PODIUM_STAGES_AT_ONCE), or run it where there is more; nothing half-written was kept"
        )
    # pyarrow names no file: then at least whose outputs were being written.
    place = f" ({error.filename})" if error.filename else place
    return (
        f"{error.strerror or error}{place}: check that the path is there, writable, and that the disk has room; "
        "nothing half-written was kept"
    )


def _enter(stage: str) -> None:
    """What every stage does before its own work; imported here, as `podium --help` needs none of it."""
    from tasks.plan.dvc_records import require
    from tasks.plan.named_files import require_one_plan
    from tasks.plan.plan_file import read_plan
    from tasks.plan.stage_kinds import enter_stage
    from tasks.stage.memory import watch_memory

    die_with_parent()
    watch_memory(f"stage {stage}")
    enter_stage()
    plan = read_plan(Path())
    inputs = plan[stage].deps if stage in plan else ()
    require_one_plan(Path(), inputs)
    require(inputs)
