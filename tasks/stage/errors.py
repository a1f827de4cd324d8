"""Errors that `tasks` raises, and the exit codes of the commands.

Messages say what was found, what is required, and which parameter to change.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence

from ipu_model.core.errors import DeviceJobError

DONE, FAILED, WRONG_USAGE, REJECTED, PAUSED = 0, 1, 2, 3, 4


class PodiumError(Exception):
    """Base of errors that a user can fix."""

    exit_code = FAILED


class ParamsError(PodiumError):
    """params.yaml, a preset, an override or the command line is invalid."""

    exit_code = WRONG_USAGE


class InputError(PodiumError):
    """A file, folder or dataset of the user cannot be used."""


class DataInvalid(PodiumError):
    """Validation found that the data are not fit for training."""


class DeviceJobFailed(PodiumError):
    """The device process ended without a result."""


class ParityLost(PodiumError):
    """The logits of two runtimes differ more than parity.max_logit_difference allows."""


class PublishError(PodiumError):
    """Nothing, or nothing new, was published; the message describes the current state of the target."""


class WrongWorker(PodiumError):
    """This worker does not run stages of this kind, or was not sent this stage."""


class GateRejected(PodiumError):
    """The gate rejected the model."""

    exit_code = REJECTED


class StagePaused(PodiumError):
    """A device job stopped early on request, after writing a checkpoint; run it again to continue."""

    exit_code = PAUSED

    def __init__(self, text: str, in_a_hurry: bool = False) -> None:
        """Create the error; `in_a_hurry` means that SIGTERM caused it, so that this process has only seconds left."""
        super().__init__(text)
        self.in_a_hurry = in_a_hurry


def require_packages(extra: str, names: Sequence[str], key: str = "") -> None:
    """Require packages of an extra, which the setting `key` needs.

    Raises:
        InputError: one of them is not installed.
    """
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        what = f"{key}: {', '.join(missing)}" if key else ", ".join(missing)
        raise InputError(f"{what} not installed. Run pip install 'podium[{extra}]' with this Python")


@contextlib.contextmanager
def translate_device_errors(key: str = "") -> Iterator[None]:
    """Raise errors of ipu_model as InputError, whose message begins with `key`, the setting that named the file."""
    try:
        yield
    except DeviceJobError as error:
        raise InputError(f"{key}: {error}" if key else str(error)) from None
