"""Where these tests get `poptorch`: the installed one, or else our double (tests/doubles/poptorch_double).

The double is on the path only while this folder is collected and while its tests run: other tests of the same
process see a machine without PopTorch. PODIUM_TEST_POPTORCH=real refuses the double; PODIUM_TEST_PART=1/6 runs a sixth
of the tests.
"""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
DOUBLE = HERE.parents[1] / "doubles" / "poptorch_double"
SINCE_POPTORCH = (3, 9)
"""PopTorch is there for Python 3.8 alone: `make test-device-env` runs these tests; on later ones `make soak` does."""
_MODULES = {}
"""The double's modules between two tests, so that every test sees the same ones."""
_SPEC = importlib.util.find_spec("poptorch")
INSTALLED = _SPEC is not None and DOUBLE not in Path(_SPEC.origin or "").resolve().parents
"""A child of a test of this folder finds the double on its path, which is not installed."""
if os.environ.get("PODIUM_TEST_POPTORCH") == "real" and not INSTALLED:
    raise pytest.UsageError(
        f"PODIUM_TEST_POPTORCH=real, but {sys.executable} has no poptorch: enable the Poplar SDK and set "
        "PODIUM_DEVICE_PYTHON to its Python, or unset the variable to test with the double"
    )


def _put_double():
    sys.path.insert(0, str(DOUBLE))
    sys.modules.update(_MODULES)


def _take_double_away():
    loaded = [name for name in sys.modules if name.split(".")[0] == "poptorch"]
    _MODULES.update({name: sys.modules.pop(name) for name in loaded})
    sys.path.remove(str(DOUBLE))


if not INSTALLED:
    _put_double()


def pytest_collection_modifyitems(config, items):
    """A part, 1/6 for example, is dealt one by one, so that the cases of a slow test come to all parts."""
    part = os.environ.get("PODIUM_TEST_PART")
    if part:
        match = re.fullmatch(r"(\d+)/(\d+)", part)
        number, parts = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
        if not 1 <= number <= parts:
            raise pytest.UsageError(f"PART={part} is not a part of a whole: from 1/6 to 6/6, for example")
        kept = items[number - 1 :: parts]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    if not INSTALLED and sys.version_info >= SINCE_POPTORCH:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.soak)


def pytest_collection_finish(session):
    if not INSTALLED and str(DOUBLE) in sys.path:
        _take_double_away()


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """`import poptorch` works in the test and in the processes that it starts."""
    if INSTALLED:
        yield
        return
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOUBLE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    _put_double()
    yield
    _take_double_away()


@pytest.fixture(autouse=True)
def _one_thread():
    """The operations of toys are so small that threads only wait for each other: 10 times slower on two busy cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def poptorch(_importable):
    return importlib.import_module("poptorch")


def _on_hardware(module):
    """Only the double, and PopTorch over a core that emulates the device, keep a recording."""
    return not hasattr(module.poptorch_core, "getRecord")


@pytest.fixture(autouse=True)
def _mark(request, _importable):
    """`ipu`: also on hardware; what has no mark and needs poptorch stays off it."""
    uses_it = "poptorch" in request.fixturenames or hasattr(request.module, "poptorch")
    unmarked = uses_it and request.node.get_closest_marker("ipu") is None
    if unmarked and _on_hardware(importlib.import_module("poptorch")):
        pytest.skip("looks at what hardware does not show; the tests marked ipu run here")


@pytest.fixture
def is_double():
    return not INSTALLED


@pytest.fixture
def record(poptorch):
    if _on_hardware(poptorch):
        pytest.skip("hardware keeps no recording")
    before = len(poptorch.poptorch_core.getRecord()["executables"])
    return lambda: poptorch.poptorch_core.getRecord()["executables"][before:]


@pytest.fixture
def poprun(monkeypatch):
    """Makes this process instance `index` of `count`, with 2 replicas of 4 IPUs each."""
    monkeypatch.syspath_prepend(str(DOUBLE.with_name("popdist_double")))
    from ipu_model.__main__ import detect_instances

    before = set(sys.modules)

    def start(index, count):
        settings = {"NUM_TOTAL_REPLICAS": 2 * count, "NUM_LOCAL_REPLICAS": 2, "REPLICA_INDEX_OFFSET": 2 * index}
        for name, value in {**settings, "NUM_IPUS_PER_REPLICA": 4}.items():
            monkeypatch.setenv(f"POPDIST_{name}", str(value))
        return detect_instances(os.environ)

    yield start
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("popdist", "horovod"):
            del sys.modules[name]
