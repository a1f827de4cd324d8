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
