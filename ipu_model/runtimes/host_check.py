"""Check of this Python and this host for device jobs, before any job is prepared.

    python -m ipu_model.runtimes.host_check < REQUEST

REQUEST is JSON: `places`, a list of objects with `knob` (the parameter that sets the runtime, for messages), `runtime`
and `precision`; `family` of the model, and `pretrains` if it is pre-trained; `processes` of a training job on this
host; `compile_only` if no IPUs are needed; `ipus` of the largest job. Each result is printed as a line of JSON. Like
the whole package it runs on Python 3.8 and torch 2.0.1 upwards.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from typing import Any, Dict, Iterator, Mapping

from ipu_model.core.errors import ConfigError, DeviceJobError

OLDEST_PYTHON = (3, 8)
NEEDED = ("numpy", "pyarrow", "safetensors", "torch")


def run_checks(request: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yield the results of all checks: name, level (ok, warning or problem), text and of_parameters."""
    version = platform.python_version()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    problem = f"is Python {version}, 3.8 or newer is required" if sys.version_info < OLDEST_PYTHON else ""
    if missing and not problem:
        problem = f"(Python {version}) lacks {', '.join(missing)}"
    if not problem:
        try:
            import torch
        except (ImportError, OSError) as error:  # OSError: a shared library is missing
            problem = f"cannot load torch ({' '.join(str(error).split())[:300]})"
    if problem:
        yield _make_result("problem", f"{sys.executable} {problem}: {_FIX}")
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    yield _make_result(
        "ok", f"Python {version}, torch {torch.__version__} ({build}), {sys.executable}", "device python"
    )
    for device in request["places"]:
        yield from _check_device(device, request)


_FIX = (
    "install torch, numpy, pyarrow and safetensors into it (constraints/host.txt, for Python 3.8 "
    "constraints/poplar.txt), or set PODIUM_DEVICE_PYTHON to another Python"
)


def _check_device(device: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    import torch

    from ipu_model.models.families import get_family
    from ipu_model.runtimes.selection import choose_precision, choose_runtime

    runtime, failed, family = device["runtime"], False, get_family(request["family"])
    try:
        family.check(runtime, request["pretrains"])
        chosen = choose_runtime(runtime)
        family.check(chosen.value, request["pretrains"])  # auto may choose IPUs
        runtime, text = chosen.value, f"{chosen.value} ({chosen.reason})"
        if runtime == "ipu":
            from ipu_model.ipu.sdk import check_hardware
            from ipu_model.runtimes.ipu import load_poptorch, read_versions

            poptorch = load_poptorch()
            read_versions(poptorch, lambda text: None)
            text += f"; {check_hardware(poptorch, request.get('ipus', 1), request['compile_only'], os.environ)}"
        if runtime == "cuda":
            count = torch.cuda.device_count()
            if request["processes"] > count:
                raise ConfigError(
                    f"device.processes={request['processes']} needs one GPU per process, but this host has {count}: "
                    "lower it, or check CUDA_VISIBLE_DEVICES"
                )
            text += f"; {count} GPUs"
    except DeviceJobError as error:
        failed = True
        yield _make_result("problem", f"{error}; found {device['knob']}")
    try:
        if "auto" not in (device["precision"], runtime):  # auto is resolved when the job starts
            choose_precision(device["precision"], runtime)
    except DeviceJobError as error:
        failed = True
        yield _make_result("problem", f"{error}; found {device['knob']}", of_parameters=True)
    if not failed:
        yield _make_result("ok", f"{text}, {device['precision']}")


def _make_result(level: str, text: str, name: str = "device", of_parameters: bool = False) -> Dict[str, Any]:
    return {"name": name, "level": level, "text": text, "of_parameters": of_parameters}


def main() -> None:
    argparse.ArgumentParser(description="Check this Python for device jobs.").parse_args()
    for result in run_checks(json.load(sys.stdin)):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
