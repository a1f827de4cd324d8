"""What went wrong on the IPU, in words a person can act on: what happened, the knob, where the full text is.

PopTorch raises poptorch.Error with `message`, `type` and `location`, RecoverableError with `recovery_action`, and
plain Python errors from its Python layer (user guide, "Error handling"). Nothing here imports it: attributes decide,
then the patterns of failure_kinds.py over the text.
"""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any, Iterator, Optional, Tuple

from ipu_model.errors import DeviceJobError, IpuFailure
from ipu_model.files import write_text
from ipu_model.ipu.failure_kinds import RECOVERIES, Settings, find_kind

LOG = "ipu_error.log"
POPTORCH_LOG = "poptorch_error.log"
"""In the working directory; PopTorch writes messages of more than 80 lines there and refers to it."""
SHOWN = 300
"""Characters of PopTorch's own text that the message repeats; the log has all of it."""


def classify(error: BaseException, log_folder: Path, settings: Optional[Settings] = None) -> DeviceJobError:
    """The error to raise instead of `error`; everything PopTorch said goes to a log in `log_folder`.

    Args:
        error: Of PopTorch, or a Python error that came out of it. A DeviceJobError comes back as it is.
        log_folder: The run folder.
        settings: The ipu_config in use: what it has already is not proposed.
    """
    if isinstance(error, DeviceJobError):
        return error
    text = _full_text(error)
    happened, do = _explain(error, text, settings or {})
    said = " ".join((str(getattr(error, "message", "")) or str(error)).split())
    shortened = said if len(said) <= SHOWN else said[:SHOWN] + " ..."
    return IpuFailure(
        f"{happened}. {do[0].upper()}{do[1:]}. PopTorch said: {shortened} ({_write_log(error, text, log_folder)})"
    )


@contextlib.contextmanager
def explained(poptorch: Any, log_folder: Path, settings: Optional[Settings] = None) -> Iterator[None]:
    """Turn what PopTorch raises inside the block into an IpuFailure; other errors pass.

    Args:
        poptorch: The module.
        log_folder, settings: As in classify.

    Raises:
        IpuFailure: PopTorch failed.
    """
    try:
        yield
    except DeviceJobError:
        raise
    except Exception as error:
        if not comes_from(poptorch, error):
            raise
        raise classify(error, log_folder, settings) from error


def comes_from(poptorch: Any, error: BaseException) -> bool:
    """Whether PopTorch raised it: one of its classes, or any error raised in one of its files.

    An error of our own code passes through PopTorch while it traces the model; its last frame is ours.
    """
    if isinstance(error, poptorch.Error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(poptorch.__file__).parent in Path(frames[-1].filename).parents


def _explain(error: BaseException, text: str, settings: Settings) -> Tuple[str, str]:
    action = getattr(error, "recovery_action", "")
    if action:
        do = RECOVERIES.get(str(action), f"the system asks for {action}, then run the job again")
        return f"the IPUs reported a recoverable error ({action})", do
    known = find_kind(text)
    if known is not None:
        kind, found = known
        return kind.happened(found), kind.do(found, settings)
    if type(error).__name__ == "UnrecoverableError":
        return "the hardware reports an unrecoverable error", "take these IPUs out of service"
    return (
        f"PopTorch refused a call ({type(error).__name__})",
        "this is a fault of the program or of an untried PopTorch version, not of the job: report it with the log",
    )


def _full_text(error: BaseException) -> str:
    """All that is known: attributes, the error's own text, and PopTorch's file when the text refers to it."""
    parts = [
        f"{name}: {getattr(error, name)}"
        for name in ("type", "recovery_action", "message", "location")
        if getattr(error, name, "")
    ]
    text = "\n".join([*parts, str(error)])
    long = Path(POPTORCH_LOG)
    if POPTORCH_LOG in text and long.is_file():
        text += f"\n\n{long.resolve()}:\n" + long.read_text(encoding="utf-8", errors="replace")
    return text


def _write_log(error: BaseException, text: str, folder: Path) -> str:
    """Write everything beside the run; a disk that is full must not hide the failure."""
    path = Path(folder) / LOG
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    also = f"; {POPTORCH_LOG}: {Path(POPTORCH_LOG).resolve()}" if POPTORCH_LOG in text else ""
    try:
        write_text(path, f"{text}\n\n{trace}")
    except OSError as failed:
        return f"the log {path} could not be written: {failed.strerror}{also}"
    return f"all of it: {path}{also}"
