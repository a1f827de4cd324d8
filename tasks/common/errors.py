"""Everything `tasks` raises on purpose, and the exit codes of the command lines.

    PodiumError                1  failed
    |-- ParamsError            2  params.yaml, a preset, --set or the command line is wrong
    |-- InputError             1  a file, folder or data set of the user cannot be used as it is
    |-- DataInvalid            1  the data were read and are not fit to train on (validation verdict)
    |-- DeviceJobFailed        1  the device process ended without a result
    |-- ParityLost             1  two places compute logits that lie further apart than the parameters allow
    |-- PublishError           1  nothing, or nothing new, was published
    |-- WrongWorker            1  the stage is of a kind that this worker does not offer, or not one it was sent
    |-- GateRejected           3  the metrics do not pass; nothing was published
    `-- StagePaused            4  a device job stopped on purpose before its end; run again, it continues

Messages say what was found, what is required, and which knob to turn.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tasks.common import streams
from tasks.common.process import die_with_parent

DONE, FAILED, WRONG_USAGE, REJECTED, PAUSED = 0, 1, 2, 3, 4


class PodiumError(Exception):
    """Base of the errors a person can act on."""

    exit_code = FAILED


class ParamsError(PodiumError):
    """params.yaml, a preset, an override or the command line is wrong."""

    exit_code = WRONG_USAGE


class InputError(PodiumError):
    """A file, folder or data set given by the user cannot be used as it is."""


class DataInvalid(PodiumError):
    """The data were read but are not fit to train on."""


class DeviceJobFailed(PodiumError):
    """The device process ended without a result."""


class ParityLost(PodiumError):
    """Two places compute logits that lie further apart than parity.max_logit_difference allows."""


class PublishError(PodiumError):
    """Publishing did not happen; the message says what the target looks like now."""


class WrongWorker(PodiumError):
    """The stage is of a kind that this worker does not offer, or not one it was sent."""


class GateRejected(PodiumError):
    """The gate said no."""

    exit_code = REJECTED


class StagePaused(PodiumError):
    """A device job stopped on purpose before its end, its checkpoint written; run again, it continues."""

    exit_code = PAUSED

    def __init__(self, text: str, in_a_hurry: bool = False) -> None:
        """`in_a_hurry`: by SIGTERM, so that this process has some seconds left and no more."""
        super().__init__(text)
        self.in_a_hurry = in_a_hurry


def run_main(main: Callable[[], None]) -> None:
    """Run a stage's `main`; turn an error a person can act on into one message and an exit code.

    A full disk, a folder that cannot be written and the like (OSError) count as such; anything else
    is our defect and keeps its traceback. Whoever stops reading ends the process without a word, as SIGPIPE would.
    Under DVC the process ends with the `dvc` that started it, and first looks for plans among the project's inputs
    (tasks/common/plans.py) and at the bytes of its own (tasks/common/intact.py).
    """
    stage = os.environ.get("DVC_STAGE")
    streams.settle()
    try:
        if stage is not None:
            die_with_parent()
            _enter_stage()
            _check_inputs(stage)
        main()
        sys.stdout.flush()
    except PodiumError as error:
        word = "paused" if isinstance(error, StagePaused) else "error"  # flows/dvc.py knows the line by it
        print(f"{word}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted: nothing half-written was kept; run it again to continue", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) and streams.nobody_reads():
            raise SystemExit(128 + signal.SIGPIPE) from None
        # pyarrow names no file: then at least whose outputs were being written.
        place = f" ({error.filename})" if error.filename else f" (stage {stage})" if stage is not None else ""
        print(
            f"error: {error.strerror or error}{place}: check that the path is there, writable, "
            "and that the disk has room; nothing half-written was kept",
            file=sys.stderr,
        )
        raise SystemExit(FAILED) from None
    finally:
        streams.finish()


def _enter_stage() -> None:
    from tasks.common.stage_kinds import enter_stage  # it raises what this module defines

    enter_stage()


def _check_inputs(stage: str) -> None:
    from tasks.common.intact import require_inputs  # they raise what this module defines
    from tasks.common.plans import require_one_plan

    require_one_plan()
    require_inputs(stage)
