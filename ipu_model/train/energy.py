"""Hardware and energy of a training. Energy is read from the processors' counters where the host allows it, otherwise
estimated."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any, Dict, Optional

import torch

from ipu_model.core.files import find_value
from ipu_model.jobs.plan import JobPlan
from ipu_model.train.training import Hook, TrainingState

COUNTERS = Path("/sys/class/powercap")
"""Linux's folder of energy counters (RAPL); most hosts let only root read them."""
READ_SECONDS = 30.0
"""Seconds between two readings: a counter of 65 kJ overflows after 3 minutes at 350 W."""
CORE_WATTS, GPU_WATTS = 12.0, 200.0
"""Power of a busy core and of a GPU of any model (Green Algorithms, data/latest/TDP_cpu.csv and TDP_gpu.csv: "Any")."""


class EnergyMeter(Hook):
    """Hardware of a training whose `processes` all do the same work, and its energy since the meter was made.

    `counters` has one folder for each processor; they are read for a job on a CPU only.
    """

    def __init__(self, plan: JobPlan, processes: int, counters: Path = COUNTERS) -> None:
        self._plan, self._processes = plan, processes
        packages = sorted(counters.glob("intel-rapl:*")) if plan.runtime == "cpu" else []
        self._packages = [package for package in packages if package.name.count(":") == 1]
        self._joules, self._last = 0.0, self._read()
        self._read_at = self._began = time.perf_counter()
        self._cpu_began = time.process_time()

    def after_step(self, training: TrainingState) -> None:
        if time.perf_counter() - self._read_at >= READ_SECONDS:
            self._add()

    def result(self) -> Dict[str, Any]:
        """Return `hardware`, `energy_wh` (watt hours; None on IPUs, whose power is unknown) and `energy_source`.

        A measurement covers whole processors, with everything else that runs on them.
        """
        self._add()
        joules: Optional[float]
        joules, source = self._joules, "measured by the processors' counters"
        if self._plan.runtime == "ipu":
            joules, source = None, "unknown"
        elif self._plan.runtime == "cuda":
            joules = GPU_WATTS * (time.perf_counter() - self._began) * self._processes
            source = f"estimated with {GPU_WATTS:g} W for a GPU"
        elif self._last is None:
            joules = CORE_WATTS * (time.process_time() - self._cpu_began) * self._processes
            source = f"estimated with {CORE_WATTS:g} W for a busy core"
        watt_hours = None if joules is None else round(joules / 3600, 3)
        return {
            "hardware": describe_hardware(self._plan, self._processes),
            "energy_wh": watt_hours,
            "energy_source": source,
        }

    def _add(self) -> None:
        now, self._read_at = self._read(), time.perf_counter()
        if now is not None and self._last is not None:
            for package, joules in now.items():
                more = joules - self._last[package]
                limit = float((package / "max_energy_range_uj").read_text()) / 1e6 if more < 0 else 0.0
                self._joules += more + limit
        self._last = now

    def _read(self) -> Optional[Dict[Path, float]]:
        """Return the joules that each processor counts; None if the host does not let us read all of them."""
        files = {package: package / "energy_uj" for package in self._packages}
        if not files or not all(os.access(file, os.R_OK) for file in files.values()):
            return None
        return {package: float(file.read_text()) / 1e6 for package, file in files.items()}


def describe_hardware(plan: JobPlan, processes: int, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the number and model of the devices of a job, such as `2 threads of AMD EPYC 7763`."""
    if plan.runtime == "ipu":
        return f"{plan.device['ipus']} IPUs"
    if plan.runtime == "cuda":
        return f"{processes} x {torch.cuda.get_device_name()}"
    model = find_value("model name", cpuinfo) or platform.machine()
    return f"{processes * torch.get_num_threads()} threads of {model}"
