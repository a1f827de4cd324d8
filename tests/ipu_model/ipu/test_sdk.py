"""Found, required, what to do: SDK, versions and IPUs, asked before anything is prepared."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.sdk import check_hardware, check_versions, count_ipus, detect_ipus, explain_import_error


class Host:
    def __init__(self, ipus: int = 16, hardware: int = 2, version: str = "3.4.0-snapshot") -> None:
        self._ipus, self._hardware, self.__version__ = ipus, hardware, version

    def ipuHardwareIsAvailable(self, num_ipus: int = 1) -> bool:
        return num_ipus <= self._ipus

    def ipuHardwareVersion(self) -> int:
        assert self._ipus, "No IPU hardware available on this system"
        return self._hardware


@pytest.mark.parametrize(
    ("error", "cause", "told"),
    [
        (ModuleNotFoundError("No module named 'poptorch'", name="poptorch"), None, "Poplar SDK.*PODIUM_DEV"),
        # The texts of PopTorch 3.4's __init__.py.
        (
            AssertionError("This version of PopTorch only works with torch==2.0.1 but the version installed is 2.13.0"),
            None,
            r"torch==2.0.1 but the version installed is 2.13.0. Install that torch",
        ),
        (
            ImportError("Unable to import PopTorch, this can be caused by ... an active Poplar SDK."),
            ImportError("libpopart.so: cannot open shared object file"),
            r"SDK is not enabled \(libpopart.so",
        ),
        (ModuleNotFoundError("No module named 'pkg_resources'", name="pkg_resources"), None, "setuptools 81"),
    ],
)
def test_a_failed_import_says_what_is_missing(error: BaseException, cause: Any, told: str) -> None:
    error.__cause__ = cause
    with pytest.raises(ConfigError, match=told):
        raise explain_import_error(error)


def test_versions_are_returned_for_the_result_too_old_ones_refused_and_newer_ones_said() -> None:
    said: List[str] = []
    sdk = "/opt/poplar_sdk-ubuntu_20_04-3.3.0+1403-208993bbb7/poplar-ubuntu_20_04-3.3.0+7857-b67b751185"
    found = check_versions(Host(version="3.3.0-7857"), "2.0.1+cpu", "3.8.10", {"POPLAR_SDK_ENABLED": sdk}, said.append)
    assert found == {
        "poptorch": "3.3.0-7857",
        "torch": "2.0.1+cpu",
        "python": "3.8.10",
        "poplar_sdk": "poplar_sdk-ubuntu_20_04-3.3.0+1403-208993bbb7",
    }
    assert said == []
    check_versions(Host(version="3.10.0"), "2.1.0", "3.11.2", {}, said.append)
    assert [line.split(" is newer")[0] for line in said] == ["poptorch 3.10.0", "torch 2.1.0"]
    with pytest.raises(ConfigError, match=r"poptorch 3\.2\.0.*torch 1\.13\.1.*python 3\.7\.9"):
        check_versions(Host(version="3.2.0"), "1.13.1", "3.7.9", {})


@pytest.mark.parametrize(("ipus", "counted"), [(0, 0), (6, 4), (256, 64)])
def test_ipus_are_counted_as_one_device_of_a_process(ipus: int, counted: int) -> None:
    assert count_ipus(Host(ipus)) == counted


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (Host(0), "no IPUs found.*gc-info -l.*the stages compile_pretrain and compile"),
        (Host(4), "needs 8 IPUs.*this host has 4.*replication_factor.*the stages compile_pretrain and"),
        (Host(16, hardware=1), "hardware version 1"),
    ],
)
def test_a_host_without_fitting_ipus_is_refused(host: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        check_hardware(host, 8, compile_only=False, environ={})
    assert "compile_only" not in str(refused.value), "no parameter of Podium"


def fail(message: str) -> Any:
    raise ConfigError(message)


@pytest.mark.parametrize(
    ("host", "compile_only", "environ", "said"),
    [
        (Host(8, hardware=21), False, {}, "8 IPUs, hardware version 21"),
        (Host(0), True, {}, "none attached"),
        (Host(0), False, {"POPTORCH_IPU_MODEL": "1"}, "simulator"),
    ],
)
def test_fitting_ipus_none_and_the_simulator_are_named(
    host: Any, compile_only: bool, environ: Dict[str, str], said: str
) -> None:
    assert said in check_hardware(host, 8, compile_only=compile_only, environ=environ)


@pytest.mark.parametrize(
    ("installed", "load", "taken", "reason"),
    [
        (True, lambda: Host(4), True, "PopTorch 3.4.0 and 4 IPUs"),
        (True, lambda: Host(0), False, "PopTorch 3.4.0, but no IPUs"),
        (True, lambda: fail("the Poplar SDK is not enabled"), False, "the Poplar SDK is not enabled"),
        (False, lambda: fail("poptorch must not be imported here"), False, "no poptorch in this Python"),
    ],
)
def test_auto_takes_the_ipu_where_there_is_one_and_says_why(
    installed: bool, load: Callable[[], Any], taken: bool, reason: str
) -> None:
    found = detect_ipus({}, lambda name: "spec" if installed else None, load)
    assert found[0] == taken
    assert reason in found[1]
