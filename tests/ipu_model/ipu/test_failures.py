"""What PopTorch raises, as it was seen in its sources, its manual and its issues, becomes words and a knob."""

import importlib
from pathlib import Path

import pytest

from ipu_model.core.errors import ConfigError, DeviceJobError, IpuFailure
from ipu_model.ipu.failures import WHOLE_TABLE, classify_error, translate_errors


class Error(Exception):
    """poptorch.Error as PopTorch 3.4 makes it: `In file:line: 'type': message`, and the parts as attributes."""

    def __init__(self, kind, message):
        super().__init__(f"In unknown:0: '{kind}': {message}\nError raised in:\n  [0] Compiler::initSession")
        self.type, self.message, self.location = kind, message, "[0] Compiler::initSession"
        if kind.endswith("_RESET"):
            self.type, self.recovery_action = "poplar_recoverable_runtime_error", kind


FABRIC = "Fabric error: connection not established: CONNECTION_KILL, device 3. IPUoF Server unreachable at 2023-02"
OTHER_SDK = "Error reading executable - package hash (b67b) differs from poplar hash (9d9e)"
STREAM = "irlowering.cpp:3516 Out of memory. Single stream of length 149766584 in bufferIndex 1"
UNSUPPORTED = "Unsupported ops found in compiled model: [aten::nan_to_num]. Not all"
ON_TILE = "Out of memory on tile 2950: 876476 bytes used but tiles only have 638976 bytes of memory"
DEBUG = "POPTORCH_LOG_LEVEL=DEBUG"


@pytest.mark.parametrize(
    ("kind", "message", "happened", "knob"),
    [
        ("poplar_graph_memory_allocation_error", ON_TILE, "237,500 or 37% too many", "matmul_proportion of IPU 2"),
        ("poplar_poplar_error", "Tile 0 receives more data than it has total memory", "IPU 0", "embedding_serial"),
        ("poplar_link_error", "tile 1472 _poplar_start must be 0 not 638976 bytes from", "IPU 1", "layers_per_ipu"),
        ("poplar_stream_memory_allocation_error", STREAM, "149,766,584 bytes", "device_iterations or micro_batch_size"),
        ("poplar_link_error", "ld failed. Output: -lfoo not found", "could not link", "enable the SDK again"),
        ("poptorch_cpp_error", "Failed to acquire 4 IPU(s)", "could not attach", "POPTORCH_WAIT_FOR_IPU=1"),
        ("poptorch_cpp_error", "Too many IPUs requested (128).", "128 IPUs requested", "device.launcher: poprun"),
        ("poplar_unrecoverable_runtime_error", FABRIC, "lost the connection", "IPUOF_VIPU_API_HOST"),
        ("poplar_unrecoverable_runtime_error", "parity error", "unrecoverable error", "out of service"),
        ("popart_exception", OTHER_SDK, "package b67b, this SDK is 9d9e", "executables prune"),
        ("std::out_of_range", "basic_string::replace: __pos", "without a reason", DEBUG),
        ("poptorch_cpp_error", UNSUPPORTED, "aten::nan_to_num", "report it"),
        ("poptorch_cpp_error", "poptorch.Options().deviceIterations must be greater", "rejected the program", DEBUG),
        ("poptorch_py_error", "Parameter x is reassigned", "rejected a call", "report it"),
        (None, "All tensors must have a batch dimension", "(AssertionError)", "report it"),
        ("IPU_RESET", "test", "recoverable error (IPU_RESET)", "Run the job again"),
        ("NEW_RESET", "test", "recoverable error (NEW_RESET)", "requires NEW_RESET"),
    ],
)
def test_every_known_failure_names_its_knob_and_its_log(tmp_path, kind, message, happened, knob):
    error = AssertionError(message) if kind is None else Error(kind, message)
    failure = classify_error(error, tmp_path)
    assert isinstance(failure, IpuFailure)
    for word in (happened, knob, str(tmp_path / "ipu_error.log")):
        assert word in str(failure)
    assert len(str(failure)) < 1500
    assert str(error) in (tmp_path / "ipu_error.log").read_text(encoding="utf-8")


def test_the_knobs_of_an_ipu_that_is_full_come_from_cheap_to_costly_without_those_that_cannot_help(tmp_path):
    def explain(message, settings=None):
        return str(classify_error(Error("popart_exception", message), tmp_path, settings))

    on_first = ON_TILE.replace("tile 2950", "tile 3")
    knobs = ["matmul_proportion of IPU 0", "layers_per_ipu", "embedding_serialization_factor"]
    knobs += ["optimizer_state_offchip", "recompute_checkpoint_every_layer", "replicated_tensor_sharding"]
    places = [explain(on_first).index(knob) for knob in [*knobs, "micro_batch_size"]]
    assert places == sorted(places)
    assert "embedding_serialization" not in explain(ON_TILE), "embeddings are on IPU 0"
    whole = {"embedding_serialization_factor": 2, WHOLE_TABLE: True}
    assert "embedding_serialization" not in explain(on_first, whole), "no factor cuts this table"
    settings = {"matmul_proportion": [0.15, 0.18, 0.2, 0.25], "layers_per_ipu": [3, 7, 7, 7], "replication_factor": 1}
    settings.update(optimizer_state_offchip=True, recompute_checkpoint_every_layer=True)
    text = explain(ON_TILE, settings)
    for word in ("matmul_proportion of IPU 2 (now 0.2", "layers_per_ipu, now [3, 7, 7, 7]", "micro_batch_size"):
        assert word in text
    for name in ("optimizer_state_offchip", "recompute_checkpoint", "replicated_tensor_sharding", "serialization"):
        assert name not in text


def test_a_long_message_is_read_from_poptorchs_own_log(tmp_path, monkeypatch):
    """A log that cannot be written does not hide the failure."""
    monkeypatch.chdir(tmp_path)
    Path("poptorch_error.log").write_text("a line\n" * 90 + ON_TILE, encoding="utf-8")
    error = Error("popart_exception", "See poptorch_error.log for details")
    text = str(classify_error(error, tmp_path / "run"))
    assert "on IPU 2" in text
    assert str(tmp_path / "poptorch_error.log") in text
    assert ON_TILE in (tmp_path / "run" / "ipu_error.log").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "on IPU 2" in str(classify_error(error, tmp_path / "file"))


def test_what_poptorch_raises_is_explained_with_its_cause_and_our_own_errors_stay(tmp_path):
    poptorch = importlib.import_module("poptorch")
    ours = ConfigError("layers_per_ipu")
    for error in (ours, KeyError("missing")):
        with pytest.raises(type(error)) as same, translate_errors(poptorch, tmp_path):
            raise error
        assert same.value is error
    assert classify_error(ours, tmp_path) is ours
    assert not (tmp_path / "ipu_error.log").exists()
    error = poptorch.Error("Failed to acquire 2 IPU(s)")
    error.type, error.message, error.location = "poptorch_cpp_error", "Failed to acquire 2 IPU(s)", ""
    with pytest.raises(IpuFailure, match="could not attach") as failure, translate_errors(poptorch, tmp_path):
        raise error
    assert failure.value.__cause__ is error
    options = poptorch.Options()
    with pytest.raises(DeviceJobError, match="rejected a call"), translate_errors(poptorch, tmp_path):
        options.deviceIterations("many")
