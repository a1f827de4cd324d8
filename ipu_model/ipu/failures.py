"""Failures of PopTorch as messages to act on: what happened, the setting to change, and the log with the full text.

PopTorch raises poptorch.Error with `message`, `type` and `location`, RecoverableError with `recovery_action`, and
plain Python errors from its Python layer (user guide, "Error handling"). This module does not import it: it classifies
an error by its attributes, then by the patterns of KINDS and OTHERS in its text. Sources of the patterns:

| pattern                                                     | seen in                                            |
|-------------------------------------------------------------|----------------------------------------------------|
| types poplar_recoverable_runtime_error, poplar_link_error   | popart_compiler/source/Compiler.cpp, PopTorch 3.4  |
| Failed to acquire N IPU(s), Too many IPUs requested         | the same folder, CompilerImpl.cpp; issue 3         |
| Unsupported ops found in compiled model                     | poptorch/source/ErrorOnUnsupportedAten.cpp;        |
|                                                             | graphcore/poptorch issues 7 and 19                 |
| type poptorch_py_error                                      | python/_impl.py                                    |
| Out of memory on tile T: X bytes used but tiles only have Y | Graphcore, "Memory and performance optimisation",  |
| Cannot fit all variable data; Tile T receives more data     | section 6.1                                        |
| than ...; tile T _poplar_start must be 0 not ...            |                                                    |
| Single stream of length N in bufferIndex                    | graphcore/poptorch issue 9                         |
| Fabric error: ...; IPUoF Server unreachable                 | graphcore/poptorch issue 14                        |
| basic_string::replace, std::out_of_range                    | graphcore/poptorch issue 12                        |
| package hash (X) differs from poplar hash (Y)               | graphcore/examples, nlp/bert/pytorch/README.md     |
"""

from __future__ import annotations

import contextlib
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Match, Optional, Tuple, Union

from ipu_model.core.errors import DeviceJobError, IpuFailure, LoadFailure
from ipu_model.core.files import write_text

LOG = "ipu_error.log"
POPTORCH_LOG = "poptorch_error.log"
"""File in the working directory; PopTorch writes messages of more than 80 lines there and refers to it."""
MESSAGE_LENGTH = 300
"""Characters of PopTorch's own text that the message repeats; the log has all of it."""

TILES_PER_IPU = 1472
"""Tiles of Mk2 and Bow. Poplar numbers the tiles of all IPUs of a graph, assumed to be one replica (not confirmed)."""

RECOVERIES = {
    "IPU_RESET": "run the job again: attaching resets the IPUs, and it continues from the last checkpoint",
    "LINK_RESET": "have the IPU-Links of this (non-Pod) system reset, then run the job again",
    "PARTITION_RESET": "reset the V-IPU partition (IPUOF_VIPU_API_PARTITION_ID) to retrain its links, then run the job "
    "again",
    "FULL_RESET": "the system must be power-cycled, then run the job again",
}
"""Recovery that PopTorch's user guide describes for each recovery_action."""

OUR_FAULT = "this is a bug in Podium or an untested PopTorch version, not an error in the job: report it with the log"
SEE_WHICH = '. To see which IPU: POPLAR_ENGINE_OPTIONS=\'{"autoReport.all":"true"}\' and PopVision'
Settings = Mapping[str, Any]
"""Keys of the ipu_config in use, and WHOLE_TABLE."""
WHOLE_TABLE = "whole_table"
"""True where embedding_serialization_factor has no effect in this job (planning.can_cut_table)."""


@dataclass(frozen=True)
class FailureKind:
    """Kind of failure, and how to report it."""

    pattern: str
    happened: Union[str, Callable[[Match[str]], str]]
    """Message, or a function that makes it. {0}, {1}, ... are groups of the pattern, {ipu} the IPU of group `tile`."""
    do: Optional[str] = None
    """Remedy. None: free memory on the IPU of the `tile` that the pattern names, or on any IPU."""


def suggest_memory_settings(ipu: Optional[int], settings: Settings) -> str:
    """Return unused settings that free memory on an IPU: first those that only cost speed, last the batch size."""
    fullest = "the fullest IPU" if ipu is None else f"IPU {ipu}"
    knobs: List[str] = [
        f"lower matmul_proportion{'' if ipu is None else f' of IPU {ipu}'}{_proportion(ipu, settings)}",
        f"move an encoder layer off {fullest} (layers_per_ipu{_now(settings, 'layers_per_ipu')})",
    ]
    if ipu in (None, 0) and not settings.get(WHOLE_TABLE):
        now = _now(settings, "embedding_serialization_factor")
        knobs.append(
            f"raise embedding_serialization_factor{now and f' ({now[2:]})'} (it must divide the vocabulary size)"
        )
    for name in ("optimizer_state_offchip", "recompute_checkpoint_every_layer"):
        if settings.get(name) is not True:
            knobs.append(f"set {name}: true")
    if settings.get("replicated_tensor_sharding") is not True and settings.get("replication_factor") != 1:
        knobs.append("set replicated_tensor_sharding: true (shares the optimizer state among replicas)")
    in_order = "try, in this order: " + "; ".join([*knobs, "lower micro_batch_size"])
    return in_order + SEE_WHICH if ipu is None else in_order


def _proportion(ipu: Optional[int], settings: Settings) -> str:
    now = settings.get("matmul_proportion")
    if isinstance(now, (list, tuple)):
        now = now[ipu] if ipu is not None and ipu < len(now) else None
    if not isinstance(now, float):
        return " (by a quarter; a list has one entry per IPU)"
    return f" (now {now:g}, for example {0.75 * now:.2g}; a list has one entry per IPU)"


def _now(settings: Settings, name: str) -> str:
    return f", now {settings[name]}" if settings.get(name) is not None else ""


def _tile_is_full(match: Match[str]) -> str:
    tile, used, have = (int(number) for number in match.groups())
    over = used - have
    return (
        f"out of memory on IPU {tile // TILES_PER_IPU} of a replica (tile {tile}: {used:,} bytes needed, {have:,} "
        f"available, {over:,} or {over / have:.0%} too many)"
    )


def _streams_are_full(match: Match[str]) -> str:
    length = re.search(r"Single stream of length (\d+)", match.string)
    detail = "" if length is None else f" ({int(length[1]):,} bytes in one)"
    return f"out of memory for the streams between host and IPU{detail}"


KINDS = (
    FailureKind(
        r"package hash \((\S+)\) differs from poplar hash \((\S+)\)",
        "a cached executable was built with another Poplar SDK (package {0}, this SDK is {1})",
        "remove it: python -m ipu_model.ipu.executables prune --older-than-days 0 --yes, then run again",
    ),
    FailureKind(r"[Oo]ut of memory on tile (?P<tile>\d+): (\d+) bytes used but tiles only have (\d+)", _tile_is_full),
    FailureKind(
        r"[Tt]ile (?P<tile>\d+) receives more data than it has total memory",
        "out of memory on IPU {ipu} of a replica (tile {0}: one exchange is too large)",
    ),
    FailureKind(
        r"stream_memory_allocation_error|Single stream of length",
        _streams_are_full,
        "lower device_iterations or micro_batch_size, and set output_mode to final",
    ),
    FailureKind(
        r"tile (?P<tile>\d+) _poplar_start must be 0 not",
        "too much code for IPU {ipu} of a replica (tile {0})",
    ),
    FailureKind(
        r"memory_allocation_error|[Oo]ut of memory|Cannot fit all variable data",
        "out of memory on an IPU; PopTorch does not report which",
    ),
    FailureKind(
        r"poplar_link_error",
        "Poplar could not link the program of the tiles (too much code, or a missing library)",
        "read the output of the linker in the log; for too much code place fewer layers on each IPU (layers_per_ipu), "
        "for a missing library enable the SDK again",
    ),
    FailureKind(
        r"Failed to acquire (\d+ IPU\(s\)|device Id \d+)",
        "the host could not attach to the IPUs: failed to acquire {0}",
        "they are in use (gc-monitor shows by whom), or the host has fewer (gc-info -l): wait with "
        "POPTORCH_WAIT_FOR_IPU=1, lower replication_factor, or use a larger V-IPU partition",
    ),
    FailureKind(
        r"Too many IPUs requested \((\d+)\)",
        "{0} IPUs requested in one process, which can use at most 64",
        "start several instances: device.launcher: poprun, device.processes: 2 or more",
    ),
    FailureKind(
        r"Fabric error|IPUoF Server unreachable|CONNECTION_KILL",
        "the host lost the connection to the IPU-Machines (IPU over fabric)",
        "run the job again, it continues from the last checkpoint; if it fails again, check the V-IPU server "
        "(IPUOF_VIPU_API_HOST) and the network",
    ),
    FailureKind(
        r"\w*unrecoverable_runtime_error|UnrecoverableError",
        "the hardware reports an unrecoverable error",
        "take these IPUs out of service and inform the administrator; then run the job on other IPUs",
    ),
    FailureKind(
        r"Unsupported ops found in compiled model: \[([^\]]*)\]",
        "the model uses operators that PopTorch does not support: {0}",
        OUR_FAULT,
    ),
)
"""Failures with a pattern of their own, before those of OTHERS."""

LOAD = FailureKind(
    "",
    "the program was compiled, but the attached IPUs do not load it",
    "no setting of the job is the cause: check the partition of the IPUs, and that their driver and firmware fit the "
    "Poplar SDK (gc-info -l, gc-info -a)",
)

OTHERS = (
    FailureKind(
        r"popart_(internal_)?exception|poplibs_exception|'?poplar_\w+",
        "PopART or Poplar rejected the program",
        "if the text names no setting, check layers_per_ipu and the serialization factors, and run again with "
        "POPTORCH_LOG_LEVEL=DEBUG",
    ),
    FailureKind(r"poptorch_py_error", "PopTorch's Python layer rejected a call", OUR_FAULT),
    FailureKind(
        r"std::out_of_range|std::exception|basic_string|poptorch_cpp_error': *(\n|$)",
        "PopTorch's compiler failed without a reason",
        "run again with POPTORCH_LOG_LEVEL=DEBUG and POPLAR_LOG_LEVEL=INFO, and read the last lines before the error; "
        "often the parts of the SDK have different versions",
    ),
    FailureKind(
        r"poptorch_cpp_error",
        "PopTorch rejected the program",
        "if the text names no setting, run again with POPTORCH_LOG_LEVEL=DEBUG and read the last lines before the "
        "error",
    ),
)


def classify_error(
    error: BaseException, log_folder: Path, settings: Optional[Settings] = None, loading: bool = False
) -> DeviceJobError:
    """Return the error to raise instead of `error`, and write all of PopTorch's output to a log in `log_folder`.

    Args:
        error: Raised by PopTorch, or a Python error from inside it. A DeviceJobError is returned unchanged.
        settings: The ipu_config in use: settings that it already has are not proposed.
        loading: The program exists, and was being loaded onto the IPUs.
    """
    if isinstance(error, DeviceJobError):
        return error
    text = _full_text(error)
    kind, happened, do = _explain(error, text, settings or {}, loading)
    message = " ".join((str(getattr(error, "message", "")) or str(error)).split())
    shortened = message if len(message) <= MESSAGE_LENGTH else message[:MESSAGE_LENGTH] + " ..."
    explained = f"{happened}. {do[0].upper()}{do[1:]}. PopTorch: {shortened} ({_write_log(error, text, log_folder)})"
    return LoadFailure(explained, shortened) if kind is LOAD else IpuFailure(explained)


@contextlib.contextmanager
def translate_errors(
    poptorch: Any, log_folder: Path, settings: Optional[Settings] = None, loading: Callable[[], bool] = bool
) -> Iterator[None]:
    """Turn errors that PopTorch raises inside the block into an IpuFailure; other errors pass. See classify_error."""
    try:
        yield
    except DeviceJobError:
        raise
    except Exception as error:
        if not is_from_poptorch(poptorch, error):
            raise
        raise classify_error(error, log_folder, settings, loading()) from error


def is_from_poptorch(poptorch: Any, error: BaseException) -> bool:
    """Return whether PopTorch raised an error: one of its classes, or any error raised in one of its files.

    An error of our own code passes through PopTorch while it traces the model, but its last frame is ours.
    """
    if isinstance(error, poptorch.Error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(poptorch.__file__).parent in Path(frames[-1].filename).parents


def _explain(
    error: BaseException, text: str, settings: Settings, loading: bool
) -> Tuple[Optional[FailureKind], str, str]:
    """Return the kind of a failure, if it has one, what happened, and the remedy."""
    action = getattr(error, "recovery_action", "")
    if action:
        do = RECOVERIES.get(str(action), f"the system requires {action}; then run the job again")
        return None, f"the IPUs reported a recoverable error ({action})", do
    for kind in (*KINDS, LOAD) if loading else (*KINDS, *OTHERS):
        match = re.search(kind.pattern, f"{text}\n{type(error).__name__}")
        if match is not None:
            ipu = int(match["tile"]) // TILES_PER_IPU if "tile" in match.groupdict() else None
            happened = kind.happened
            message = happened.format(*match.groups(), ipu=ipu) if isinstance(happened, str) else happened(match)
            return kind, message, suggest_memory_settings(ipu, settings) if kind.do is None else kind.do
    return None, f"PopTorch rejected a call ({type(error).__name__})", OUR_FAULT


def _full_text(error: BaseException) -> str:
    """Return the error's attributes and text, and PopTorch's log file where the text refers to it."""
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
    """Write the full text into the run folder; a full disk must not hide the failure."""
    path = Path(folder) / LOG
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    also = f"; {POPTORCH_LOG}: {Path(POPTORCH_LOG).resolve()}" if POPTORCH_LOG in text else ""
    try:
        write_text(path, f"{text}\n\n{trace}")
    except OSError as failed:
        return f"the log {path} could not be written: {failed.strerror}{also}"
    return f"full log: {path}{also}"
