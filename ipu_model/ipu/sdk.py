"""Checks for a compatible PopTorch and for IPUs, made before anything else is prepared.

`ipu_model/runtimes/ipu.py` imports poptorch; this module explains a failed import.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ipu_model.core.errors import ConfigError
from ipu_model.core.units import parse_version
from ipu_model.ipu.planning import MAX_IPUS_PER_PROCESS

OLDEST_POPTORCH = (3, 3)
NEWEST_TRIED_POPTORCH = (3, 4)
TORCH_OF_POPTORCH = (2, 0)
"""PopTorch 3.3 and 3.4 are built for torch 2.0.1."""
OLDEST_PYTHON = (3, 8)
HARDWARE_VERSIONS = (2, 21)
"""Results of poptorch.ipuHardwareVersion(): Mk2 (GC200, Bow) and Mk2 with FP8 (C600)."""
SIMULATOR_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
SDK_VARIABLE = "POPLAR_SDK_ENABLED"
ENABLE = "source the SDK's enable scripts (`source <sdk>/enable`, or poplar-*/enable.sh and popart-*/enable.sh)"

Say = Callable[[str], None]


def explain_import_error(error: BaseException) -> ConfigError:
    """Explain a failed `import poptorch`: not installed, SDK not enabled, another torch, or a missing package."""
    text = " ".join(str(error).split())
    cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
    if isinstance(error, ModuleNotFoundError) and error.name == "poptorch":
        return ConfigError(
            "runtime ipu needs PopTorch, which this Python lacks. It is part of the Poplar SDK, not on PyPI: install "
            f"<sdk>/poptorch-*.whl into a Python of the version the wheel was built for, {ENABLE}, and set "
            "PODIUM_DEVICE_PYTHON to that Python; or set device.runtime to cpu"
        )
    if isinstance(error, ModuleNotFoundError):
        hint = (
            "; setuptools 81 and later have no pkg_resources: install an older one"
            if error.name == "pkg_resources"
            else ""
        )
        return ConfigError(f"PopTorch needs the package {error.name}, which is not installed in this Python{hint}")
    if isinstance(error, AssertionError) and "torch==" in text:
        return ConfigError(
            f"{text}. Install that torch (the +cpu build) into the device's Python (PODIUM_DEVICE_PYTHON)"
        )
    if isinstance(error, ImportError) and "Poplar" in text:
        return ConfigError(f"PopTorch is installed, but the Poplar SDK is not enabled{cause}: {ENABLE}, then run again")
    return ConfigError(
        f"import poptorch failed with {type(error).__name__}: {text}{cause}. Check the Poplar SDK: {ENABLE}"
    )


def check_versions(
    poptorch: Any,
    torch_version: str,
    python_version: str,
    environ: Optional[Mapping[str, str]] = None,
    say: Say = print,
) -> Dict[str, str]:
    """Check the versions and return them for result.json; untested newer versions are reported, not rejected.

    Raises:
        ConfigError: versions are older than required; one message lists all of them.
    """
    versions = {"poptorch": str(poptorch.__version__), "torch": torch_version, "python": python_version}
    sdk = sdk_name(os.environ if environ is None else environ)
    if sdk is not None:
        versions["poplar_sdk"] = sdk
    required = {"poptorch": OLDEST_POPTORCH, "torch": TORCH_OF_POPTORCH, "python": OLDEST_PYTHON}
    old = [
        f"{name} {versions[name]} (required: {'.'.join(map(str, least))} or newer)"
        for name, least in required.items()
        if parse_version(versions[name]) < least
    ]
    if old:
        raise ConfigError(
            f"runtime ipu: too old: {', '.join(old)}. Use Poplar SDK 3.3 or 3.4 with its PopTorch wheel, "
            "torch 2.0.1 and Python 3.8, and set PODIUM_DEVICE_PYTHON to that Python"
        )
    for name, tried in (("poptorch", NEWEST_TRIED_POPTORCH), ("torch", TORCH_OF_POPTORCH)):
        if parse_version(versions[name]) > tried:
            say(f"{name} {versions[name]} is newer than {'.'.join(map(str, tried))}, the newest tested version")
    return versions


COMPILE_STAGES = "stages compile_pretrain and compile can build the programs (podium run --to STAGE)"


def check_hardware(poptorch: Any, ipus: int, compile_only: bool, environ: Optional[Mapping[str, str]] = None) -> str:
    """Describe the hardware of the job; `ipus` is the number of IPUs of this process.

    Raises:
        ConfigError: there are no IPUs, too few, or of a version that PopTorch 3.3 does not support.
    """
    if compile_only:
        return f"compile_only: built for {ipus} Mk2 IPUs, none attached"
    environ = os.environ if environ is None else environ
    simulator = next((name for name in SIMULATOR_VARIABLES if environ.get(name, "0") not in ("", "0")), None)
    if simulator is not None:
        return f"the IPU Model, a simulator on the CPU ({simulator} is set): slow, and executables are not cached"
    if not poptorch.ipuHardwareIsAvailable(1):
        raise ConfigError(
            "runtime ipu: no IPUs found. `gc-info -l` lists the devices of this host; on a Pod, name the V-IPU "
            "partition: IPUOF_VIPU_API_HOST and IPUOF_VIPU_API_PARTITION_ID, or IPUOF_CONFIG_PATH. Without IPUs, the "
            f"{COMPILE_STAGES}; or set device.runtime to cpu"
        )
    if not poptorch.ipuHardwareIsAvailable(ipus):
        raise ConfigError(
            f"runtime ipu: the job needs {ipus} IPUs as one device (ipus_per_replica x replicas), this host has "
            f"{count_ipus(poptorch)}. `gc-info -l` lists the devices. Lower replication_factor or shorten "
            "layers_per_ipu, or use a larger V-IPU partition (IPUOF_VIPU_API_PARTITION_ID). Without IPUs, "
            f"the {COMPILE_STAGES}"
        )
    version = poptorch.ipuHardwareVersion()
    if version not in HARDWARE_VERSIONS:
        raise ConfigError(
            f"runtime ipu: IPU hardware version {version}, required {' or '.join(map(str, HARDWARE_VERSIONS))} "
            "(Mk2: GC200, Bow, C600). `gc-info -l` names the devices; set device.runtime to cpu on this host"
        )
    return f"{ipus} IPUs, hardware version {version}"


def count_ipus(poptorch: Any) -> int:
    """Return the IPUs of the largest device that one process can attach: a power of two up to 64, or 0."""
    count, size = 0, 1
    while size <= MAX_IPUS_PER_PROCESS and poptorch.ipuHardwareIsAvailable(size):
        count, size = size, size * 2
    return count


def detect_ipus(
    environ: Mapping[str, str], find_spec: Callable[[str], Any], load: Callable[[], Any]
) -> Tuple[bool, str]:
    """Return whether `runtime: auto` selects the IPU, and the reason.

    `find_spec` is that of importlib.util. `load` returns poptorch, or raises ConfigError; it is called where that is
    installed.
    """
    if find_spec("poptorch") is None:
        enabled = f", although {SDK_VARIABLE} is set: install its wheel" if environ.get(SDK_VARIABLE) else ""
        return False, f"no poptorch in this Python{enabled}"
    try:
        poptorch = load()
    except ConfigError as error:
        return False, f"poptorch cannot be imported: {error}"
    ipus = count_ipus(poptorch)
    version = str(poptorch.__version__).partition("-")[0]
    if not ipus:
        return False, f"PopTorch {version}, but no IPUs (gc-info -l)"
    return True, f"PopTorch {version} and {ipus} IPUs"


def sdk_name(environ: Mapping[str, str]) -> Optional[str]:
    """Return the name of the enabled SDK: the parent folder of POPLAR_SDK_ENABLED, or None if none is enabled."""
    path = environ.get(SDK_VARIABLE)
    return PurePath(path).parent.name or None if path else None
