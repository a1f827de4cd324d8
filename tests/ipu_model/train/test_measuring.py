"""A measurement: updates timed on made-up rows, nothing written, nothing trained."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import (
    LABELS,
    ONE_THREAD,
    TINY,
    finish,
    head_of,
    labels_of,
    make_columns,
    make_job,
    result_of,
    start,
    start_job,
    write_rows,
)

from ipu_model.core.errors import ConfigError, OutOfMemory
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job
from ipu_model.jobs.plan import Choice
from ipu_model.rows.format import MANIFEST, Manifest, get_columns, list_row_kinds, read_manifest
from ipu_model.train import energy, measurement
from ipu_model.train.energy import EnergyMeter
from ipu_model.train.measurement import GeneratedRows, measure


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(measurement, "BUDGET_SECONDS", 0.2)


def nothing(event: str, **fields: Any) -> None:
    """Ignore events."""


def files_below(folder: Path) -> List[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def manifest_alone(folder: Path, kind: str) -> Manifest:
    """Write real rows of this kind, and a folder that has their manifest and none of them."""
    manifest = write_rows(folder / "real", kind, make_columns(kind, 200))
    (folder / "rows").mkdir()
    alone = dataclasses.replace(manifest, files={})
    (folder / "rows" / MANIFEST).write_text(alone.to_json(), encoding="utf-8")
    return alone


@pytest.mark.parametrize("kind", list_row_kinds())
def test_made_up_rows_are_as_full_as_the_manifest_says_and_valid(kind: str, tmp_path: Path) -> None:
    manifest = manifest_alone(tmp_path, kind)
    rows = GeneratedRows(manifest, TINY)
    batch = rows.take(np.arange(400))
    assert batch.real_tokens / 400 == pytest.approx(manifest.real_tokens / manifest.rows, rel=0.1)
    assert batch.sequences / 400 == pytest.approx(manifest.packing_factor, rel=0.1)
    rows._check_values(batch)  # what a folder of real rows is refused for
    for column in get_columns(kind, manifest.vocab_size):
        assert batch.columns[column.name].dtype == column.type
        if "label" in column.name or column.name == "targets":
            assert batch.labels(column.name) > 0
    assert (rows.take(np.arange(3)).columns["input_ids"] == batch.columns["input_ids"][:3]).all()
    parts = [rows.take(np.arange(8) + 8 * number).real_tokens for number in range(100)]
    assert np.mean(parts) < rows.take_fullest(8).real_tokens <= 8 * manifest.row_length
    assert sum(part > rows.take_fullest(8).real_tokens for part in parts) <= 2


@pytest.mark.parametrize("kind", list_row_kinds())
def test_every_kind_of_job_is_measured_without_its_rows_and_writes_nothing(kind: str, tmp_path: Path) -> None:
    manifest = manifest_alone(tmp_path, kind)
    job = make_job(
        tmp_path / "job",
        "pretrain" if kind == "pretrain" else "finetune",
        tmp_path / "rows",
        head=head_of(kind),
        labels=[str(number) for number in range(labels_of(kind))] or None,
        precision="auto",
        geometry=BatchGeometry(round(12 * manifest.batch_factor), 4),
        evaluation=EvaluationConfig(str(tmp_path / "gone"), 2, keep="best"),
    )
    before = files_below(tmp_path)
    found = measure(job, nothing)
    assert files_below(tmp_path) == before
    assert found["precision"] in ("fp32", "bf16")
    assert found["memory"] > 100 << 20
    assert found["update_seconds"] > 0
    tokens = 12 * manifest.real_tokens / manifest.rows
    assert found["tokens_per_second"] * found["update_seconds"] == pytest.approx(tokens, rel=0.1)


def test_an_update_takes_what_its_first_micro_batch_does_and_the_others_add(
    pretrain_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch of 4 rows takes 3 s and every update 2 s next to: an update of 3 takes 11 s."""
    monkeypatch.setattr(measurement, "_update", lambda runtime, rows, count, number: 2.0 + 3.0 * count / 4)
    manifest = read_manifest(pretrain_rows)
    for rows, seconds in ((4, 5.0), (8, 8.0), (12, 11.0)):
        geometry = BatchGeometry(round(rows * manifest.packing_factor), 4)
        job = make_job(tmp_path / "job", "pretrain", pretrain_rows, geometry=geometry)
        assert measure(job, nothing)["update_seconds"] == pytest.approx(seconds)


@pytest.mark.soak
def test_a_measurement_is_near_what_the_job_takes(tmp_path: Path) -> None:
    """In memory; two processes on a busy host say little of time."""
    rows = tmp_path / "rows"
    write_rows(rows, "pretrain", make_columns("pretrain", 300))
    model = dataclasses.replace(TINY, hidden_size=256, intermediate_size=1024, num_layers=6, vocab_size=20000)
    job = make_job(tmp_path / "job", "pretrain", rows, model=model, geometry=BatchGeometry(128, 64))
    found = run_measurement(job)
    assert finish(start_job(job)).code == 0
    assert found["memory"] / (1 << 20) == pytest.approx(result_of(job).peak_memory_mb, rel=0.15)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), OutOfMemory),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), OutOfMemory),
        (RuntimeError("a shape differs"), RuntimeError),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures(
    error: Exception, raised: Any, pretrain_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> float:
        raise error

    monkeypatch.setattr(measurement, "_update", fail)
    with pytest.raises(raised):
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows), nothing)


def test_a_job_for_ipus_or_without_an_architecture_is_not_measured(
    pretrain_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="job.model is missing"):
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows, model=None, init_checkpoint="x"), nothing)
    monkeypatch.setattr(measurement, "choose_runtime", lambda asked: Choice("ipu", "as requested"))
    with pytest.raises(ConfigError, match="an IPU would compile"):
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows), nothing)


def run_measurement(job: Job) -> Dict[str, Any]:
    path = Path(job.run_folder).parent.parent / "job.json"
    path.write_text(job.to_json(), encoding="utf-8")
    done = finish(start([sys.executable, "-m", "ipu_model", "--measure", str(path)], {**os.environ, **ONE_THREAD}))
    return {"code": done.code, **done.events[-1]}


@pytest.mark.soak
def test_the_entry_point_measures_and_says_what_is_wrong_with_a_job(tmp_path: Path) -> None:
    kind = "sequence_classification"
    manifest_alone(tmp_path, kind)
    (tmp_path / "job.json").touch()
    job = make_job(tmp_path / "job", "finetune", tmp_path / "rows", head=kind, labels=list(LABELS))
    before = files_below(tmp_path)
    found = run_measurement(job)
    assert (found["code"], found["event"], found["runtime"], found["free_memory"]) == (0, "measured", "cpu", None)
    assert files_below(tmp_path) == before
    found = run_measurement(dataclasses.replace(job, rows=str(tmp_path / "gone")))
    assert (found["code"], found["event"], found["type"]) == (2, "error", "RowsError")


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
    assert found["energy_source"].startswith("measured")


def test_a_host_without_counters_gets_an_estimate_from_cpu_time_and_ipus_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.process_time", iter([10.0, 310.0]).__next__)
    found = EnergyMeter(plan("cpu"), 2, tmp_path).result()
    assert (found["energy_wh"], "12 W" in found["energy_source"]) == (2.0, True)
    monkeypatch.undo()
    found = EnergyMeter(plan("ipu"), 1, tmp_path).result()
    assert found == {"hardware": "16 IPUs", "energy_wh": None, "energy_source": "unknown"}
