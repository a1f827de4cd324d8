"""Found, required, what to do: SDK, versions and IPUs, asked before anything is prepared."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.sdk import check_hardware, check_versions, count_ipus, detect_ipus, explain_import_error


class Host:
    """What the checks see of poptorch on a host with that many IPUs."""

    def __init__(self, ipus: int = 16, hardware: int = 2, version: str = "3.4.0-snapshot") -> None:
        self._ipus, self._hardware, self.__version__ = ipus, hardware, version

    def ipuHardwareIsAvailable(self, num_ipus: int = 1) -> bool:
        return num_ipus <= self._ipus

    def ipuHardwareVersion(self) -> int:
        assert self._ipus, "No IPU hardware available on this system"
        return self._hardware


def failed_import(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError("No module named 'poptorch'", name="poptorch"), r"part of the Poplar SDK.*PODIUM_DEV"),
        (
            # The texts of PopTorch 3.4's __init__.py.
            AssertionError("This version of PopTorch only works with torch==2.0.1 but the version installed is 2.13.0"),
            r"torch==2.0.1 but the version installed is 2.13.0. Install that torch",
        ),
        (
            failed_import(
                ImportError("Unable to import PopTorch, this can be caused by ... an active Poplar SDK."),
                ImportError("libpopart.so: cannot open shared object file"),
            ),
            r"SDK is not enabled \(libpopart.so: cannot open shared object file\).*enable",
        ),
        (ModuleNotFoundError("No module named 'pkg_resources'", name="pkg_resources"), "pkg_resources.*setuptools 81"),
        (ImportError("something else"), "failed with ImportError: something else"),
    ],
)
def test_a_failed_import_says_what_is_missing(error: BaseException, told: str) -> None:
    explained = explain_import_error(error)
    assert isinstance(explained, ConfigError)
    with pytest.raises(ConfigError, match=told):
        raise explained


def test_fitting_versions_are_returned_for_the_result() -> None:
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


def test_every_version_that_is_too_old_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        check_versions(Host(version="3.2.0"), "1.13.1", "3.7.9", {})
    for found in ("poptorch 3.2.0 (required: 3.3", "torch 1.13.1 (required: 2.0", "python 3.7.9 (required: 3.8"):
        assert found in str(error.value)


def test_a_newer_version_is_said_and_not_refused() -> None:
    said: List[str] = []
    check_versions(Host(version="3.10.0"), "2.1.0", "3.11.2", {}, said.append)
    assert said == [
        "poptorch 3.10.0 is newer than 3.4, the newest tested version",
        "torch 2.1.0 is newer than 2.0, the newest tested version",
    ]


@pytest.mark.parametrize(("ipus", "counted"), [(0, 0), (1, 1), (4, 4), (6, 4), (256, 64)])
def test_ipus_are_counted_as_one_device_of_a_process(ipus: int, counted: int) -> None:
    assert count_ipus(Host(ipus)) == counted


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (
            Host(0),
            r"no IPUs found.*gc-info -l.*IPUOF_VIPU_API_PARTITION_ID.*the stages compile_pretrain and compile",
        ),
        (Host(4), r"needs 8 IPUs as one device.*this host has 4.*replication_factor.*the stages compile_pretrain and"),
        (Host(16, hardware=1), r"hardware version 1, required 2 or 21"),
    ],
)
def test_a_host_without_fitting_ipus_is_refused(host: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        check_hardware(host, 8, compile_only=False, environ={})
    assert "compile_only" not in str(refused.value), "no parameter of Podium"


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


def never() -> Any:
    raise AssertionError("poptorch must not be imported where it is not installed")


def failing() -> Any:
    raise ConfigError("the Poplar SDK is not enabled")


@pytest.mark.parametrize(
    ("installed", "load", "taken", "reason"),
    [
        (True, lambda: Host(4), True, "PopTorch 3.4.0 and 4 IPUs"),
        (True, lambda: Host(0), False, "PopTorch 3.4.0, but no IPUs"),
        (True, failing, False, "poptorch cannot be imported: the Poplar SDK is not enabled"),
        (False, never, False, "no poptorch in this Python"),
    ],
)
def test_auto_takes_the_ipu_where_there_is_one_and_says_why(
    installed: bool, load: Callable[[], Any], taken: bool, reason: str
) -> None:
    found = detect_ipus({}, lambda name: "spec" if installed else None, load)
    assert found[0] == taken
    assert found[1].startswith(reason)
