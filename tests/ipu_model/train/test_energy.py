"""Energy of a training: counters that overflow, hosts that hide them, and devices without any."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipu_model.train import energy
from ipu_model.train.energy import EnergyMeter, describe_hardware


def plan(runtime: str) -> Any:
    return SimpleNamespace(runtime=runtime, device={"ipus": 16})


def write_counter(folder: Path, name: str, microjoules: int) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text("65000000000\n")


def test_counters_of_all_processors_are_added_across_an_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "READ_SECONDS", 0.0)
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):  # the last is a part of the first
        write_counter(tmp_path, name, 64_000_000_000)
    meter = EnergyMeter(plan("cpu"), 1, tmp_path)
    write_counter(tmp_path, "intel-rapl:0", 600_000_000)  # 1.6 kJ later, after an overflow
    meter.after_step(None)  # type: ignore[arg-type]
    write_counter(tmp_path, "intel-rapl:0", 2_600_000_000)
    write_counter(tmp_path, "intel-rapl:1", 64_900_000_000)
    found = meter.result()
    assert found["energy_wh"] == round((1600 + 2000 + 900) / 3600, 3)
    assert found["energy_source"] == "measured by the processors' counters"


def test_hardware_names_the_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7763\n")
    assert describe_hardware(plan("cpu"), 2, tmp_path / "cpuinfo").endswith(" threads of AMD EPYC 7763")
    assert describe_hardware(plan("cpu"), 1, tmp_path / "none").endswith("x86_64")


def test_a_host_without_counters_gets_an_estimate_from_cpu_time_and_ipus_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.process_time", iter([10.0, 310.0]).__next__)
    found = EnergyMeter(plan("cpu"), 2, tmp_path).result()
    assert (found["energy_wh"], found["energy_source"]) == (2.0, "estimated with 12 W for a busy core")
    monkeypatch.undo()
    found = EnergyMeter(plan("ipu"), 1, tmp_path).result()
    assert found == {"hardware": "16 IPUs", "energy_wh": None, "energy_source": "unknown"}
