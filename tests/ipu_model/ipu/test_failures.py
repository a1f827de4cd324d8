"""What PopTorch raises, as it was seen in its sources, its manual and its issues, becomes words and a knob."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ipu_model.core.errors import ConfigError, DeviceJobError, IpuFailure
from ipu_model.ipu.failures import WHOLE_TABLE, classify_error, translate_errors


class Error(Exception):
    """poptorch.Error as PopTorch 3.4 makes it: `In file:line: 'type': message`, and the parts as attributes."""

    def __init__(self, type_: str, message: str, **attributes: str) -> None:
        super().__init__(f"In unknown:0: '{type_}': {message}\nError raised in:\n  [0] Compiler::initSession")
        self.type, self.message, self.location = type_, message, "[0] Compiler::initSession"
        for name, value in attributes.items():
            setattr(self, name, value)


ON_TILE = "Out of memory on tile 2950: 876476 bytes used but tiles only have 638976 bytes of memory"


@pytest.mark.parametrize(
    ("error", "happened", "knob"),
    [
        (
            Error("poplar_graph_memory_allocation_error", "Memory allocation error : " + ON_TILE),
            "IPU 2 of a replica (tile 2950: 876,476 bytes needed, 638,976 available, 237,500 or 37% too many)",
            "lower matmul_proportion of IPU 2",
        ),
        (
            Error("popart_exception", "Out of memory: Cannot fit all variable data onto one or more tiles."),
            "out of memory on an IPU; PopTorch does not report which",
            "lower matmul_proportion (by a quarter",
        ),
        (
            Error("poplar_poplar_error", "Tile 0 receives more data than it has total memory in exchange 'cs19_98/x'"),
            "out of memory on IPU 0 of a replica (tile 0: one exchange is too large)",
            "embedding_serialization_factor",
        ),
        (
            Error("poplar_link_error", "tile 1472 _poplar_start must be 0 not 638976 bytes from the start of memory."),
            "too much code for IPU 1 of a replica",
            "layers_per_ipu",
        ),
        (
            Error(
                "poplar_stream_memory_allocation_error",
                "irlowering.cpp:3516 Out of memory. Single stream of length 149766584 in bufferIndex 1",
            ),
            "out of memory for the streams between host and IPU (149,766,584 bytes in one)",
            "device_iterations or micro_batch_size",
        ),
        (Error("poplar_link_error", "ld failed. Output: -lfoo not found"), "could not link", "enable the SDK again"),
        (
            Error("poptorch_cpp_error", "Failed to acquire 4 IPU(s)"),
            "could not attach to the IPUs: failed to acquire 4 IPU(s)",
            "POPTORCH_WAIT_FOR_IPU=1",
        ),
        (
            Error("poptorch_cpp_error", "Too many IPUs requested (128). Experiments that need more than 64 IPUs"),
            "128 IPUs requested in one process",
            "device.launcher: poprun",
        ),
        (
            Error(
                "poplar_unrecoverable_runtime_error",
                "fabric_atomic_increment_hsp_register: Could not complete operation. Fabric error: connection not "
                "established: CONNECTION_KILL, device 3. IPUoF Server unreachable at 2023-02-03T15:32:48Z",
            ),
            "lost the connection to the IPU-Machines",
            "IPUOF_VIPU_API_HOST",
        ),
        (
            Error("poplar_unrecoverable_runtime_error", "parity error"),
            "unrecoverable error",
            "out of service",
        ),
        (
            Error("popart_exception", "Error reading executable - package hash (b67b) differs from poplar hash (9d9e)"),
            "built with another Poplar SDK (package b67b, this SDK is 9d9e)",
            "ipu_model.ipu.executables prune",
        ),
        (
            Error("std::out_of_range", "basic_string::replace: __pos (which is 5) > this->size() (which is 0)"),
            "failed without a reason",
            "POPTORCH_LOG_LEVEL=DEBUG",
        ),
        (
            Error("poptorch_cpp_error", "Unsupported ops found in compiled model: [aten::nan_to_num]. Not all"),
            "operators that PopTorch does not support: aten::nan_to_num",
            "report it",
        ),
        (
            Error("poptorch_cpp_error", "poptorch.Options().deviceIterations must be greater than or equal to"),
            "PopTorch rejected the program",
            "POPTORCH_LOG_LEVEL=DEBUG",
        ),
        (Error("poptorch_cpp_error", ""), "failed without a reason", "POPTORCH_LOG_LEVEL=DEBUG"),
        (Error("poptorch_py_error", "Parameter x is reassigned"), "Python layer rejected a call", "report it"),
        (AssertionError("All tensors must have a batch dimension"), "rejected a call (AssertionError)", "report it"),
    ],
)
def test_every_known_failure_names_its_knob_and_its_log(
    tmp_path: Path, error: Exception, happened: str, knob: str
) -> None:
    failure = classify_error(error, tmp_path)
    assert isinstance(failure, IpuFailure)
    assert happened in str(failure)
    assert knob in str(failure)
    assert str(tmp_path / "ipu_error.log") in str(failure)
    assert str(error) in (tmp_path / "ipu_error.log").read_text(encoding="utf-8")


TOLD = {"IPU_RESET": "Run the job again", "LINK_RESET": "IPU-Links", "PARTITION_RESET": "V-IPU partition"}
TOLD.update(FULL_RESET="power-cycled", NEW_RESET="requires NEW_RESET")


@pytest.mark.parametrize(("action", "told"), TOLD.items())
def test_a_recoverable_error_says_how_to_recover(tmp_path: Path, action: str, told: str) -> None:
    failure = classify_error(Error("poplar_recoverable_runtime_error", "test", recovery_action=action), tmp_path)
    assert f"recoverable error ({action})" in str(failure)
    assert told in str(failure)


def test_the_knobs_of_an_ipu_that_is_full_come_from_cheap_to_costly(tmp_path: Path) -> None:
    text = str(classify_error(Error("popart_exception", ON_TILE.replace("2950", "3")), tmp_path))
    knobs = [
        "matmul_proportion of IPU 0",
        "layers_per_ipu",
        "embedding_serialization_factor",
        "optimizer_state_offchip",
        "recompute_checkpoint_every_layer",
        "replicated_tensor_sharding",
        "micro_batch_size",
    ]
    places = [text.index(knob) for knob in knobs]
    assert places == sorted(places)


def test_an_ipu_without_embeddings_is_not_told_to_serialize_them(tmp_path: Path) -> None:
    assert "embedding_serialization" not in str(classify_error(Error("popart_exception", ON_TILE), tmp_path))


def test_a_table_that_no_factor_cuts_is_not_proposed_to_be_cut(tmp_path: Path) -> None:
    on_first = ON_TILE.replace("tile 2950", "tile 29")
    assert "embedding_serialization" in str(classify_error(Error("popart_exception", on_first), tmp_path))
    settings = {"embedding_serialization_factor": 2, WHOLE_TABLE: True}
    assert "embedding_serialization" not in str(classify_error(Error("popart_exception", on_first), tmp_path, settings))


def test_what_the_config_has_already_is_not_proposed(tmp_path: Path) -> None:
    settings = {
        "matmul_proportion": [0.15, 0.18, 0.2, 0.25],
        "layers_per_ipu": [3, 7, 7, 7],
        "optimizer_state_offchip": True,
        "recompute_checkpoint_every_layer": True,
        "replication_factor": 1,
    }
    text = str(classify_error(Error("popart_exception", ON_TILE), tmp_path, settings))
    assert "lower matmul_proportion of IPU 2 (now 0.2, for example 0.15;" in text
    assert "(layers_per_ipu, now [3, 7, 7, 7])" in text
    assert "lower micro_batch_size" in text
    for name in ("optimizer_state_offchip", "recompute_checkpoint", "replicated_tensor_sharding", "serialization"):
        assert name not in text


def test_a_long_message_is_read_from_poptorchs_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("poptorch_error.log").write_text("a line\n" * 90 + ON_TILE, encoding="utf-8")
    text = str(classify_error(Error("popart_exception", "See poptorch_error.log for details"), tmp_path / "run"))
    assert "out of memory on IPU 2" in text
    assert str(tmp_path / "poptorch_error.log") in text
    assert ON_TILE in (tmp_path / "run" / "ipu_error.log").read_text(encoding="utf-8")


def test_the_message_stays_short_and_the_log_has_all(tmp_path: Path) -> None:
    long = "x" * 5000
    assert len(str(classify_error(Error("popart_exception", long), tmp_path))) < 1500
    assert long in (tmp_path / "ipu_error.log").read_text(encoding="utf-8")


def test_a_log_that_cannot_be_written_does_not_hide_the_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    text = str(classify_error(Error("popart_exception", ON_TILE), tmp_path / "file"))
    assert "out of memory on IPU 2" in text
    assert "could not be written" in text


def test_our_own_errors_stay_what_they_are(tmp_path: Path) -> None:
    own = ConfigError("layers_per_ipu")
    assert classify_error(own, tmp_path) is own
    with pytest.raises(ConfigError), translate_errors(importlib.import_module("poptorch"), tmp_path):
        raise own


def test_what_poptorch_raises_is_explained_with_its_cause(tmp_path: Path) -> None:
    poptorch = importlib.import_module("poptorch")
    error = poptorch.Error("Failed to acquire 2 IPU(s)")
    error.type, error.message, error.location = "poptorch_cpp_error", "Failed to acquire 2 IPU(s)", ""
    with pytest.raises(IpuFailure, match="could not attach") as failure, translate_errors(poptorch, tmp_path):
        raise error
    assert failure.value.__cause__ is error


def test_misuse_that_poptorch_refuses_is_explained(tmp_path: Path) -> None:
    poptorch = importlib.import_module("poptorch")
    options = poptorch.Options()
    with pytest.raises(DeviceJobError, match="rejected a call"), translate_errors(poptorch, tmp_path):
        options.deviceIterations("many")


def test_a_fault_of_our_own_keeps_its_traceback(tmp_path: Path) -> None:
    found: Dict[str, List[Any]] = {}
    with pytest.raises(KeyError), translate_errors(importlib.import_module("poptorch"), tmp_path):
        found["missing"].append(1)
    assert not (tmp_path / "ipu_error.log").exists()
