"""The failures of PopTorch, Poplar and IPUs that are known, by what they say: what happened, and which knob.

Where the patterns come from:

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

import re
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Match, Optional, Tuple

TILES_PER_IPU = 1472
"""Mk2 and Bow. Poplar counts tiles through all IPUs of a graph, taken here to be one replica (not confirmed)."""

RECOVERIES = {
    "IPU_RESET": "run the job again: attaching resets the IPUs, and it continues from the last checkpoint",
    "LINK_RESET": "have the IPU-Links of this (non-Pod) system reset, then run the job again",
    "PARTITION_RESET": "reset the V-IPU partition (IPUOF_VIPU_API_PARTITION_ID) to retrain its links, then run the job "
    "again",
    "FULL_RESET": "the system must be power-cycled, then run the job again",
}
"""What PopTorch's user guide says of each recovery_action."""

SEE_WHICH = '. To see which IPU: POPLAR_ENGINE_OPTIONS=\'{"autoReport.all":"true"}\' and PopVision'
Settings = Mapping[str, Any]
"""The keys of the ipu_config in use, and WHOLE_TABLE."""
WHOLE_TABLE = "whole_table"
"""True where embedding_serialization_factor cuts nothing in this job (planning.cuts_table)."""


@dataclass(frozen=True)
class Kind:
    """One kind of failure."""

    pattern: str
    """Over the error's type and text."""
    happened: Callable[[Match[str]], str]
    do: Callable[[Match[str], Settings], str]


def find_kind(text: str) -> Optional[Tuple[Kind, Match[str]]]:
    """The first kind whose pattern the text holds."""
    for kind in KINDS:
        found = re.search(kind.pattern, text)
        if found is not None:
            return kind, found
    return None


def memory_knobs(ipu: Optional[int], settings: Settings) -> str:
    """What frees memory on an IPU and is not used yet: first what costs only speed, last what changes the batch."""
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
        knobs.append("set replicated_tensor_sharding: true (it shares the optimizer state among replicas)")
    return "try, in this order: " + "; ".join([*knobs, "lower micro_batch_size"])


def _proportion(ipu: Optional[int], settings: Settings) -> str:
    now = settings.get("matmul_proportion")
    if isinstance(now, (list, tuple)):
        now = now[ipu] if ipu is not None and ipu < len(now) else None
    if not isinstance(now, float):
        return " (by a quarter; a list has one entry per IPU)"
    return f" (now {now:g}, for example {0.75 * now:.2g}; a list has one entry per IPU)"


def _now(settings: Settings, name: str) -> str:
    return f", now {settings[name]}" if settings.get(name) is not None else ""


def _says(text: str) -> Callable[[Match[str]], str]:
    return lambda found: text


def _do(text: str) -> Callable[[Match[str], Settings], str]:
    joined = " ".join(text.split())
    return lambda found, settings: joined


def _ipu(found: Match[str]) -> int:
    return int(found[1]) // TILES_PER_IPU


def _free(found: Match[str], settings: Settings) -> str:
    return memory_knobs(_ipu(found), settings)


def _tile_is_full(found: Match[str]) -> str:
    tile, used, have = (int(number) for number in found.groups())
    over = used - have
    return (
        f"out of memory on IPU {_ipu(found)} of a replica (tile {tile}: {used:,} bytes needed, {have:,} there, "
        f"{over:,} or {over / have:.0%} too many)"
    )


def _stream_length(text: str) -> str:
    found = re.search(r"Single stream of length (\d+)", text)
    return f" ({int(found[1]):,} bytes in one)" if found is not None else ""


KINDS: Tuple[Kind, ...] = (
    Kind(
        r"package hash \((\S+)\) differs from poplar hash \((\S+)\)",
        lambda found: f"a stored executable is of another Poplar SDK (package {found[1]}, this SDK is {found[2]})",
        _do("remove it: python -m ipu_model.ipu.executables prune --older-than-days 0 --yes, then run again"),
    ),
    Kind(r"[Oo]ut of memory on tile (\d+): (\d+) bytes used but tiles only have (\d+)", _tile_is_full, _free),
    Kind(
        r"[Tt]ile (\d+) receives more data than it has total memory",
        lambda found: f"out of memory on IPU {_ipu(found)} of a replica (tile {found[1]}: one exchange is too large)",
        _free,
    ),
    Kind(
        r"stream_memory_allocation_error|Single stream of length",
        lambda found: f"out of memory for the streams between host and IPU{_stream_length(found.string)}",
        _do("lower device_iterations or micro_batch_size, and let output_mode be final"),
    ),
    Kind(
        r"tile (\d+) _poplar_start must be 0 not",
        lambda found: f"too much code for IPU {_ipu(found)} of a replica (tile {found[1]})",
        _free,
    ),
    Kind(
        r"memory_allocation_error|[Oo]ut of memory|Cannot fit all variable data",
        _says("out of memory on an IPU; the text does not say which"),
        lambda found, settings: memory_knobs(None, settings) + SEE_WHICH,
    ),
    Kind(
        r"poplar_link_error",
        _says("Poplar could not link the program of the tiles (too much code, or a library that is missing)"),
        _do("""read the output of the linker in the log; for too much code place fewer layers on each IPU
            (layers_per_ipu), for a missing library enable the SDK again"""),
    ),
    Kind(
        r"Failed to acquire (\d+ IPU\(s\)|device Id \d+)",
        lambda found: f"the host could not attach to the IPUs: failed to acquire {found[1]}",
        _do("""they are in use (gc-monitor shows by whom), or fewer than that are there (gc-info -l): wait with
            POPTORCH_WAIT_FOR_IPU=1, lower replication_factor, or use a larger V-IPU partition"""),
    ),
    Kind(
        r"Too many IPUs requested \((\d+)\)",
        lambda found: f"{found[1]} IPUs in one process, at most 64 can be",
        _do("start several instances: device.launcher: poprun, device.processes: 2 or more"),
    ),
    Kind(
        r"Fabric error|IPUoF Server unreachable|CONNECTION_KILL",
        _says("the host lost the connection to the IPU-Machines (IPU over fabric)"),
        _do("""run the job again, it continues from the last checkpoint; if it stays, the V-IPU server
            (IPUOF_VIPU_API_HOST) or the network needs attention"""),
    ),
    Kind(
        r"\w*unrecoverable_runtime_error",
        _says("the hardware reports an unrecoverable error"),
        _do("take these IPUs out of service and tell whoever runs the system; then run the job on others"),
    ),
    Kind(
        r"Unsupported ops found in compiled model: \[([^\]]*)\]",
        lambda found: f"the model uses operators that PopTorch lacks: {found[1]}",
        _do("this is a fault of the program or of an untried PopTorch version, not of the job: report it with the log"),
    ),
    Kind(
        r"popart_(internal_)?exception|poplibs_exception|'?poplar_\w+",
        _says("PopART or Poplar refused the program"),
        _do("""where the text names no setting, check layers_per_ipu and the serialization factors, and run again with
            POPTORCH_LOG_LEVEL=DEBUG"""),
    ),
    Kind(
        r"poptorch_py_error",
        _says("PopTorch's Python layer refused a call"),
        _do("this is a fault of the program or of an untried PopTorch version, not of the job: report it with the log"),
    ),
    Kind(
        r"std::out_of_range|std::exception|basic_string|poptorch_cpp_error': *(\n|$)",
        _says("PopTorch's compiler failed without saying why"),
        _do("""run again with POPTORCH_LOG_LEVEL=DEBUG and POPLAR_LOG_LEVEL=INFO, and read the last lines before
            the error; often it is an SDK whose parts are of different versions"""),
    ),
    Kind(
        r"poptorch_cpp_error",
        _says("PopTorch refused the program"),
        _do("""where the text names no setting, run again with POPTORCH_LOG_LEVEL=DEBUG and read the last lines before
            the error"""),
    ),
)
