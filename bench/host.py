"""Facts about the host and the run, to interpret results later."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ipu_model.distributed import process

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy", "pyarrow")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile")
"""CPU flags that determine the speed of matrix products."""


def collect_host_facts(arguments: list[str]) -> dict[str, Any]:
    """Return CPU, memory, versions, revision and command."""
    cpuinfo = _cpuinfo()
    flags = set(cpuinfo.get("flags", "").split())
    return {
        "command": " ".join(["python", "-m", "bench", *arguments]),
        "cpu": cpuinfo.get("model name", platform.processor()),
        "cpu_family_model_stepping": [cpuinfo.get(key, "") for key in ("cpu family", "model", "stepping")],
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "revision": _revision(),
    }


def peak_memory_mb(status: Path = Path("/proc/self/status")) -> float:
    """Return the peak resident memory of this program in MB of 2**20 bytes.

    On Linux it is VmHWM, because getrusage starts from the memory of the parent process.
    """
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) / 1024 if found else process.peak_memory_mb()


def read_load_average() -> list[float]:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    if not path.is_file():
        return {}
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    first: dict[str, str] = {}
    for name, _, value in lines:
        first.setdefault(name.strip(), value.strip())
    return first


def _revision() -> str:
    """Return the revision of the checkout; "unknown" outside one."""
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
