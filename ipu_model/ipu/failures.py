"""What went wrong on the IPU, in words a person can act on: what happened, the knob, where the full text is.

PopTorch raises poptorch.Error with `message`, `type` and `location`, RecoverableError with `recovery_action`, and
plain Python errors from its Python layer (user guide, "Error handling"). Nothing here imports it: attributes decide,
then patterns over the text. Where the patterns come from:

| pattern                                                     | seen in                                            |
|-------------------------------------------------------------|----------------------------------------------------|
| types poplar_recoverable_runtime_error, poplar_link_error   | popart_compiler/source/Compiler.cpp, PopTorch 3.4  |
| Failed to acquire N IPU(s), Too many IPUs requested         | the same folder, CompilerImpl.cpp; issue 3         |
| See poptorch_error.log for details                          | poptorch_err/source/ExceptionHandling.cpp          |
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
from typing import Any, Callable, Iterator, Match, Optional, Tuple

from ipu_model.errors import DeviceJobError, IpuFailure
from ipu_model.files import write_text

LOG = "ipu_error.log"
POPTORCH_LOG = "poptorch_error.log"
"""In the working directory; PopTorch writes messages of more than 80 lines there and refers to it."""
TILES_PER_IPU = 1472
"""Mk2 and Bow. Poplar counts tiles through all IPUs of a graph, taken here to be one replica (not confirmed)."""
SHOWN = 300
"""Characters of PopTorch's own text that the message repeats; the log has all of it."""

RECOVERIES = {
    "IPU_RESET": "run the job again: attaching resets the IPUs, and it continues from the last checkpoint",
    "LINK_RESET": "have the IPU-Links of this (non-Pod) system reset, then run the job again",
    "PARTITION_RESET": "reset the V-IPU partition (IPUOF_VIPU_API_PARTITION_ID) to retrain its links, then run the job "
    "again",
    "FULL_RESET": "the system must be power-cycled, then run the job again",
}


@dataclass(frozen=True)
class _Kind:
    """One kind of failure: what its type or text looks like, what happened, what to do."""

    pattern: str
    happened: Callable[[Match[str]], str]
    do: Callable[[Match[str]], str]


def _says(text: str) -> Callable[[Match[str]], str]:
    return lambda found: text


def _memory_knobs(ipu: Optional[int]) -> str:
    """What to try, in this order: first what costs only speed, last what changes the batch."""
    of_ipu = "" if ipu is None else f" of IPU {ipu}"
    knobs = [
        f"lower matmul_proportion{of_ipu} (by a quarter; a list has one entry per IPU)",
        f"move an encoder layer off {'the fullest IPU' if ipu is None else f'IPU {ipu}'} (layers_per_ipu)",
    ]
    if ipu in (None, 0):
        knobs.append("raise embedding_serialization_factor (it must divide the vocabulary size)")
    knobs += [
        "set optimizer_state_offchip: true",
        "set recompute_checkpoint_every_layer: true",
        "set replicated_tensor_sharding: true (with replicas)",
        "lower micro_batch_size",
    ]
    return "try, in this order: " + "; ".join(knobs)


def _tile_out_of_memory(found: Match[str]) -> str:
    tile, used, have = (int(number) for number in found.groups())
    over = used - have
    return (
        f"out of memory on IPU {tile // TILES_PER_IPU} of a replica (tile {tile}: {used:,} bytes needed, "
        f"{have:,} there, {over:,} or {over / have:.0%} too many)"
    )


def _exchange_out_of_memory(found: Match[str]) -> str:
    ipu = int(found[1]) // TILES_PER_IPU
    return f"out of memory on IPU {ipu} of a replica (tile {found[1]}: one exchange is too large)"


def _stream_length(text: str) -> str:
    found = re.search(r"Single stream of length (\d+)", text)
    return f" ({int(found[1]):,} bytes in one)" if found is not None else ""


KINDS: Tuple[_Kind, ...] = (
    _Kind(
        r"package hash \((\S+)\) differs from poplar hash \((\S+)\)",
        lambda found: f"a stored executable is of another Poplar SDK (package {found[1]}, this SDK is {found[2]})",
        _says("remove it: python -m ipu_model.ipu.executables prune --older-than-days 0 --yes, then run again"),
    ),
    _Kind(
        r"[Oo]ut of memory on tile (\d+): (\d+) bytes used but tiles only have (\d+)",
        _tile_out_of_memory,
        lambda found: _memory_knobs(int(found[1]) // TILES_PER_IPU),
    ),
    _Kind(
        r"[Tt]ile (\d+) receives more data than it has total memory",
        _exchange_out_of_memory,
        lambda found: _memory_knobs(int(found[1]) // TILES_PER_IPU),
    ),
    _Kind(
        r"stream_memory_allocation_error|Single stream of length",
        lambda found: f"out of memory for the streams between host and IPU{_stream_length(found.string)}",
        _says("lower device_iterations or micro_batch_size, and let output_mode be final"),
    ),
    _Kind(
        r"tile (\d+) _poplar_start must be 0 not",
        lambda found: f"too much code for IPU {int(found[1]) // TILES_PER_IPU} of a replica (tile {found[1]})",
        lambda found: _memory_knobs(int(found[1]) // TILES_PER_IPU),
    ),
    _Kind(
        r"memory_allocation_error|[Oo]ut of memory|Cannot fit all variable data",
        _says("out of memory on an IPU; the text does not say which"),
        lambda found: _memory_knobs(None)
        + "; to see which IPU: POPLAR_ENGINE_OPTIONS='{\"autoReport.all\":\"true\"}' and PopVision",
    ),
    _Kind(
        r"poplar_link_error",
        _says("Poplar could not link the program of the tiles (too much code, or a library that is missing)"),
        _says("read the output of the linker in the log; for too much code place fewer layers on each IPU "
              "(layers_per_ipu), for a missing library enable the SDK again"),
    ),
    _Kind(
        r"Failed to acquire (\d+ IPU\(s\)|device Id \d+)",
        lambda found: f"the host could not attach to the IPUs: {found[0][0].lower()}{found[0][1:]}",
        _says("they are in use (gc-monitor shows by whom), or fewer than that are there (gc-info -l): wait with "
              "POPTORCH_WAIT_FOR_IPU=1, lower replication_factor, or use a larger V-IPU partition"),
    ),
    _Kind(
        r"Too many IPUs requested \((\d+)\)",
        lambda found: f"{found[1]} IPUs in one process, at most 64 can be",
        _says("start several instances: PODIUM_DEVICE_LAUNCHER='poprun --num-instances ... --num-replicas ...'"),
    ),
    _Kind(
        r"Fabric error|IPUoF Server unreachable|CONNECTION_KILL",
        _says("the host lost the connection to the IPU-Machines (IPU over fabric)"),
        _says("run the job again, it continues from the last checkpoint; if it stays, the V-IPU server "
              "(IPUOF_VIPU_API_HOST) or the network needs attention"),
    ),
    _Kind(
        r"unrecoverable",
        _says("the hardware reports an unrecoverable error"),
        _says("take these IPUs out of service and tell whoever runs the system; then run the job on others"),
    ),
    _Kind(
        r"popart_(internal_)?exception|poplibs_exception",
        _says("PopART refused the graph"),
        _says("if an operator is named, it may be missing on the IPU; else check layers_per_ipu, "
              "gradient_accumulation_steps and the serialization factors"),
    ),
    _Kind(
        r"poptorch_py_error",
        _says("PopTorch's Python layer refused a call"),
        _says("this is a fault of the program or an untried PopTorch version, not of the job: report it with the log"),
    ),
    _Kind(
        r"poptorch_cpp_error|std::out_of_range|std::exception|basic_string",
        _says("PopTorch's compiler failed without saying why"),
        _says("run again with POPTORCH_LOG_LEVEL=DEBUG and POPLAR_LOG_LEVEL=INFO, and read the last lines before "
              "the error; often it is an SDK whose parts are of different versions"),
    ),
)  # fmt: skip


def classify(error: BaseException, log_folder: Path) -> DeviceJobError:
    """The error to raise instead of `error`; everything PopTorch said goes to a log in `log_folder`.

    Args:
        error: Of PopTorch, or a Python error that came out of it. A DeviceJobError comes back as it is.
        log_folder: The run folder.
    """
    if isinstance(error, DeviceJobError):
        return error
    text = _full_text(error)
    happened, do = _explain(error, text)
    said = " ".join((str(getattr(error, "message", "")) or str(error)).split())
    shortened = said if len(said) <= SHOWN else said[:SHOWN] + " ..."
    return IpuFailure(
        f"{happened}. {do[0].upper()}{do[1:]}. PopTorch said: {shortened} ({_write_log(error, text, log_folder)})"
    )


@contextlib.contextmanager
def explained(poptorch: Any, log_folder: Path) -> Iterator[None]:
    """Turn what PopTorch raises inside the block into an IpuFailure; other errors pass.

    Args:
        poptorch: The module.
        log_folder: As in classify.

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
        raise classify(error, log_folder) from error


def comes_from(poptorch: Any, error: BaseException) -> bool:
    """Whether PopTorch raised it: one of its classes, or any error raised in one of its files.

    An error of our own code passes through PopTorch while it traces the model; its last frame is ours.
    """
    if isinstance(error, poptorch.Error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(poptorch.__file__).parent in Path(frames[-1].filename).parents


def _explain(error: BaseException, text: str) -> Tuple[str, str]:
    action = getattr(error, "recovery_action", "")
    if action:
        do = RECOVERIES.get(str(action), f"the system asks for {action}, then run the job again")
        return f"the IPUs reported a recoverable error ({action})", do
    for kind in KINDS:
        found = re.search(kind.pattern, text)
        if found is not None:
            return kind.happened(found), kind.do(found)
    if type(error).__name__ == "UnrecoverableError":
        return "the hardware reports an unrecoverable error", "take these IPUs out of service"
    return (
        f"PopTorch refused a call ({type(error).__name__})",
        "this is a fault of the program or an untried PopTorch version, not of the job: report it with the log",
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
