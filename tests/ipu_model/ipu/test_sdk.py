"""Found, required, what to do: SDK, versions and IPUs, asked before anything is prepared."""

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.sdk import check_hardware, check_versions, count_ipus, detect_ipus, explain_import_error


class Host:
    def __init__(self, ipus=16, hardware=2, version="3.4.0-snapshot"):
        self._ipus, self._hardware, self.__version__ = ipus, hardware, version

    def ipuHardwareIsAvailable(self, num_ipus=1):
        return num_ipus <= self._ipus

    def ipuHardwareVersion(self):
        assert self._ipus, "No IPU hardware available on this system"
        return self._hardware


OTHER_TORCH = "This version of PopTorch only works with torch==2.0.1 but the version installed is 2.13.0"
NO_SDK = "Unable to import PopTorch, this can be caused by ... an active Poplar SDK."
"""The texts of PopTorch 3.4's __init__.py."""


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (ModuleNotFoundError("No module", name="poptorch"), None, "Poplar SDK.*PODIUM_DEV"),
        (AssertionError(OTHER_TORCH), None, r"torch==2.0.1 but the version installed is 2.13.0. Install that torch"),
        (ImportError(NO_SDK), ImportError("libpopart.so: cannot open"), r"SDK is not enabled \(libpopart.so"),
        (ModuleNotFoundError("No module", name="pkg_resources"), None, "setuptools 81"),
    ],
)
def test_a_failed_import_says_what_is_missing(error, cause, words):
    error.__cause__ = cause
    with pytest.raises(ConfigError, match=words):
        raise explain_import_error(error)


def test_versions_are_returned_for_the_result_too_old_ones_refused_and_newer_ones_mentioned():
    lines = []
    sdk = "/opt/poplar_sdk-ubuntu_20_04-3.3.0+1403-208993bbb7/poplar-ubuntu_20_04-3.3.0+7857-b67b751185"
    environ = {"POPLAR_SDK_ENABLED": sdk}
    assert check_versions(Host(version="3.3.0-7857"), "2.0.1+cpu", "3.8.10", environ, lines.append) == {
        "poptorch": "3.3.0-7857",
        "torch": "2.0.1+cpu",
        "python": "3.8.10",
        "poplar_sdk": "poplar_sdk-ubuntu_20_04-3.3.0+1403-208993bbb7",
    }
    assert lines == []
    check_versions(Host(version="3.10.0"), "2.1.0", "3.11.2", {}, lines.append)
    assert [line.split(" is newer")[0] for line in lines] == ["poptorch 3.10.0", "torch 2.1.0"]
    with pytest.raises(ConfigError, match=r"poptorch 3\.2\.0.*torch 1\.13\.1.*python 3\.7\.9"):
        check_versions(Host(version="3.2.0"), "1.13.1", "3.7.9", {})


@pytest.mark.parametrize(("ipus", "counted"), [(0, 0), (6, 4), (256, 64)])
def test_ipus_are_counted_as_one_device_of_a_process(ipus, counted):
    assert count_ipus(Host(ipus)) == counted


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (Host(0), "no IPUs found.*gc-info -l.*the stages compile_pretrain and compile"),
        (Host(4), "needs 8 IPUs.*this host has 4.*replication_factor.*the stages compile_pretrain and"),
        (Host(16, hardware=1), "hardware version 1"),
    ],
)
def test_a_host_without_fitting_ipus_is_refused(host, words):
    with pytest.raises(ConfigError, match=words) as refused:
        check_hardware(host, 8, compile_only=False, environ={})
    assert "compile_only" not in str(refused.value), "no parameter of Podium"


@pytest.mark.parametrize(
    ("host", "compile_only", "environ", "words"),
    [
        (Host(8, hardware=21), False, {}, "8 IPUs, hardware version 21"),
        (Host(0), True, {}, "none attached"),
        (Host(0), False, {"POPTORCH_IPU_MODEL": "1"}, "simulator"),
    ],
)
def test_fitting_ipus_none_and_the_simulator_are_named(host, compile_only, environ, words):
    assert words in check_hardware(host, 8, compile_only=compile_only, environ=environ)


@pytest.mark.parametrize(
    ("installed", "host", "taken", "reason"),
    [
        (True, Host(4), True, "PopTorch 3.4.0 and 4 IPUs"),
        (True, Host(0), False, "PopTorch 3.4.0, but no IPUs"),
        (True, None, False, "is not enabled"),
        (False, None, False, "no poptorch in this Python"),
    ],
)
def test_auto_takes_the_ipu_where_there_is_one_and_says_why(installed, host, taken, reason):
    def load():
        if host is None:
            raise ConfigError("it is not enabled, and without PopTorch it must not be imported")
        return host

    decision = detect_ipus({}, lambda name: "spec" if installed else None, load)
    assert decision[0] == taken
    assert reason in decision[1]
