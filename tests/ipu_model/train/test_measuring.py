"""A measurement: updates timed on made-up rows, nothing written, nothing trained."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_jobs import (
    LABELS,
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
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig
from ipu_model.jobs.plan import Choice
from ipu_model.rows.format import MANIFEST, get_columns, list_row_kinds, read_manifest
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train import energy, measurement
from ipu_model.train.energy import EnergyMeter
from ipu_model.train.measurement import GeneratedRows, measure

KINDS = pytest.mark.parametrize("kind", list_row_kinds())


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(measurement, "BUDGET_SECONDS", 0.2)


def ignore(event, **fields):
    """Ignore events."""


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write_manifest(folder, kind):
    """Write a folder that has the manifest of rows of this kind, and none of them."""
    manifest = write_rows(folder / "real", kind, make_columns(kind, 200))
    (folder / "rows").mkdir()
    (folder / "rows" / MANIFEST).write_text(dataclasses.replace(manifest, files={}).to_json(), encoding="utf-8")
    return manifest


@KINDS
def test_made_up_rows_are_as_full_as_the_manifest_says_and_valid(kind, tmp_path):
    manifest = write_manifest(tmp_path, kind)
    rows = GeneratedRows(manifest, TINY)
    batch = rows.take(np.arange(400))
    assert batch.real_tokens / 400 == pytest.approx(manifest.real_tokens / manifest.rows, rel=0.1)
    assert batch.sequences / 400 == pytest.approx(manifest.packing_factor, rel=0.1)
    write_rows(tmp_path / "written", kind, batch.columns)
    RowFolder(tmp_path / "written", kind, TINY, labels_of(kind)).take(np.arange(400))  # none is refused
    for column in get_columns(kind, manifest.vocab_size):
        assert batch.columns[column.name].dtype == column.type
        if "label" in column.name or column.name == "targets":
            assert batch.labels(column.name) > 0
    assert (rows.take(np.arange(3)).columns["input_ids"] == batch.columns["input_ids"][:3]).all()
    parts = [rows.take(np.arange(8) + 8 * number).real_tokens for number in range(100)]
    assert np.mean(parts) < rows.take_fullest(8).real_tokens <= 8 * manifest.row_length
    assert sum(part > rows.take_fullest(8).real_tokens for part in parts) <= 2


@KINDS
def test_every_kind_of_job_is_measured_without_its_rows_and_writes_nothing(kind, tmp_path):
    manifest = write_manifest(tmp_path, kind)
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
    measured = measure(job, ignore)
    assert files_below(tmp_path) == before
    assert measured["precision"] in ("fp32", "bf16")
    assert measured["memory"] > 100 << 20
    assert measured["update_seconds"] > 0
    tokens = 12 * manifest.real_tokens / manifest.rows
    assert measured["tokens_per_second"] * measured["update_seconds"] == pytest.approx(tokens, rel=0.1)


def test_an_update_takes_what_its_first_micro_batch_does_and_the_others_add(pretrain_rows, tmp_path, monkeypatch):
    """A micro-batch of 4 rows takes 3 s and every update 2 s next to: an update of 3 takes 11 s."""
    monkeypatch.setattr(measurement, "_update", lambda runtime, rows, count, number: 2.0 + 3.0 * count / 4)
    manifest = read_manifest(pretrain_rows)
    for rows, seconds in ((4, 5.0), (8, 8.0), (12, 11.0)):
        geometry = BatchGeometry(round(rows * manifest.packing_factor), 4)
        job = make_job(tmp_path / "job", "pretrain", pretrain_rows, geometry=geometry)
        assert measure(job, ignore)["update_seconds"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", OutOfMemory),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", OutOfMemory),
        ("a shape differs", RuntimeError),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures(text, raised, pretrain_rows, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(measurement, "_update", fail)
    with pytest.raises(raised) as caught:
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows), ignore)
    assert caught.type is raised


def test_a_job_for_ipus_or_without_an_architecture_is_not_measured(pretrain_rows, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="job.model is missing"):
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows, model=None, init_checkpoint="x"), ignore)
    monkeypatch.setattr(measurement, "choose_runtime", lambda requested: Choice("ipu", "as requested"))
    with pytest.raises(ConfigError, match="an IPU would compile"):
        measure(make_job(tmp_path / "job", "pretrain", pretrain_rows), ignore)


def run_measurement(job):
    path = Path(job.run_folder).parent.parent / "job.json"
    path.write_text(job.to_json(), encoding="utf-8")
    done = finish(start([sys.executable, "-m", "ipu_model", "--measure", str(path)]))
    return {"code": done.code, **done.events[-1]}


@pytest.mark.soak
def test_the_entry_point_measures_what_the_job_takes_and_says_what_is_wrong_with_a_job(tmp_path):
    """In memory; two processes on a busy host say little of time."""
    kind = "sequence_classification"
    write_manifest(tmp_path, kind)
    (tmp_path / "job.json").touch()
    model = dataclasses.replace(TINY, hidden_size=256, intermediate_size=1024, num_layers=6)
    settings = {"head": kind, "labels": list(LABELS), "model": model, "geometry": BatchGeometry(128, 64)}
    job = make_job(tmp_path / "job", "finetune", tmp_path / "rows", **settings)
    before = files_below(tmp_path)
    measured = run_measurement(job)
    assert [measured[name] for name in ("code", "event", "runtime", "free_memory")] == [0, "measured", "cpu", None]
    assert files_below(tmp_path) == before
    real = dataclasses.replace(job, rows=str(tmp_path / "real"))
    assert finish(start_job(real)).code == 0
    assert measured["memory"] / (1 << 20) == pytest.approx(result_of(real).peak_memory_mb, rel=0.15)
    refused = run_measurement(dataclasses.replace(job, rows=str(tmp_path / "gone")))
    assert [refused[name] for name in ("code", "event", "type")] == [2, "error", "RowsError"]


def make_plan(runtime):
    return SimpleNamespace(runtime=runtime, device={"ipus": 16})


def write_counter(folder, name, microjoules):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text("65000000000\n")


def test_counters_of_all_processors_are_added_across_an_overflow(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "READ_SECONDS", 0.0)
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):  # the last is a part of the first
        write_counter(tmp_path, name, 64_000_000_000)
    meter = EnergyMeter(make_plan("cpu"), 1, tmp_path)
    write_counter(tmp_path, "intel-rapl:0", 600_000_000)  # 1.6 kJ later, after an overflow
    meter.after_step(None)
    write_counter(tmp_path, "intel-rapl:0", 2_600_000_000)
    write_counter(tmp_path, "intel-rapl:1", 64_900_000_000)
    result = meter.result()
    assert result["energy_wh"] == round((1600 + 2000 + 900) / 3600, 3)
    assert result["energy_source"].startswith("measured")


def test_a_host_without_counters_gets_an_estimate_from_cpu_time_and_ipus_none(tmp_path, monkeypatch):
    with monkeypatch.context() as clock:
        clock.setattr("time.process_time", iter([10.0, 310.0]).__next__)
        result = EnergyMeter(make_plan("cpu"), 2, tmp_path).result()
    assert (result["energy_wh"], "12 W" in result["energy_source"]) == (2.0, True)
    result = EnergyMeter(make_plan("ipu"), 1, tmp_path).result()
    assert result == {"hardware": "16 IPUs", "energy_wh": None, "energy_source": "unknown"}
