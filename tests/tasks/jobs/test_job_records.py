"""What was estimated of a real job next to what it took: in its result, in the ledger of its host and of a plan."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli import cli
from flows.commands import ledger as flows_ledger
from ipu_model.core.errors import OutOfMemory
from tasks.estimates import job_estimates
from tasks.estimates.job_estimates import NotMeasured, measure
from tasks.estimates.planned_jobs import PlannedRows
from tasks.host import ledger
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, ModelConfig, run_device_job
from tasks.stage.row_folders import read_manifest
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.places import ROOT

MEGABYTES = 1200 << 20
"""Bytes: room for Python and torch, and not for the weights of BERT base with gradients and moments."""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of this test."""
    path = tmp_path / "state" / "ledger.json"
    monkeypatch.setenv(ledger.LEDGER, str(path))
    return path


def job_in(folder: Path, name: str) -> Job:
    rows = folder / "rows"
    if not rows.exists():
        write_rows(rows, "pretrain", make_columns("pretrain", 64))
    run_folder = folder / "runs" / name / "0123456789ab"
    return make_job(folder / name, "pretrain", rows, run_folder=str(run_folder))


def run(job: Job) -> JobResult:
    return run_device_job(job, say=lambda text: None)


def test_a_job_enters_what_it_took_next_to_what_was_estimated(tmp_path: Path, kept: Path) -> None:
    first = run(job_in(tmp_path, "first"))
    assert first.foretold is not None
    assert ledger.read(kept) == [first.foretold]
    memory, seconds = first.foretold["memory"], first.foretold["update_seconds"]
    assert memory["measured"] == pytest.approx(first.peak_memory_mb * (1 << 20))
    assert set(memory) == set(seconds) == {"measured"}, "nothing was known of such jobs on this host"
    assert seconds["measured"] == pytest.approx(first.train_seconds / first.steps, rel=0.05)
    assert first.foretold["tokens_per_second"]["measured"] == pytest.approx(first.real_tokens_per_second, rel=0.05)

    second = run(job_in(tmp_path, "second"))
    assert second.foretold is not None
    estimated = second.foretold["update_seconds"]
    assert estimated["likely"] == pytest.approx(seconds["measured"]), "the first was of the same shape"
    assert estimated["low"] <= estimated["likely"] <= estimated["high"]
    assert second.foretold["memory"]["likely"] == memory["measured"]
    written = json.loads((tmp_path / "runs" / "second" / "0123456789ab" / "result.json").read_text())
    assert written["foretold"] == second.foretold

    shutil.rmtree(tmp_path / "runs")
    assert ledger.read(kept) == [first.foretold, second.foretold], "records outlive their runs"
    [row] = flows_ledger.summarize(ledger.read(kept))
    assert (row["device"], row["kind"], row["jobs"]) == ("CPU, 1 process", "pretrain", 2)
    [row] = flows_ledger.summarize([first.foretold])
    assert row["ratios"]["memory"] is row["ratios"]["update_seconds"] is None
    said = CliRunner().invoke(cli, ["--project", str(ROOT), "plan", "--ledger"])
    assert "CPU, 1 process  pretrain" in said.stdout, said.stderr
    assert str(kept) in said.stderr


@pytest.mark.soak
def test_a_ledger_that_cannot_be_written_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "state" / "ledger.json"))
    said: list[str] = []
    assert run_device_job(job_in(tmp_path, "first"), say=said.append).steps
    assert any("could not write the ledger of this host" in line for line in said)


def test_a_measurement_needs_no_rows_and_leaves_nothing(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path, "first")
    rows = PlannedRows(read_manifest(Path(job.rows)))
    shutil.rmtree(job.rows)
    before = sorted(tmp_path.rglob("*"))
    found = measure(job, rows)
    assert (found["runtime"], found["precision"]) == ("cpu", "fp32")
    assert found["update_seconds"] > 0
    assert sorted(tmp_path.rglob("*")) == before
    too_few = dataclasses.replace(job, geometry=BatchGeometry(1000, 4))
    with pytest.raises(NotMeasured, match="use more data"):
        measure(too_few, rows)
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", str(tmp_path / "no-python"))
    with pytest.raises(NotMeasured, match="cannot be started"):
        measure(job, rows)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("total", "raised"),
    [(MEGABYTES, OutOfMemory), (4 * MEGABYTES, NotMeasured)],
)
def test_what_needs_more_memory_than_there_is_is_stopped_and_said(
    total: int, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless others hold the memory of the host: that says nothing of the job."""
    model = ModelConfig(30000, hidden_size=768, num_layers=12, num_heads=12, intermediate_size=3072)
    job = dataclasses.replace(job_in(tmp_path, "first"), model=model)
    monkeypatch.setattr(job_estimates, "free_memory", lambda: MEGABYTES)
    monkeypatch.setattr(job_estimates, "memory_limit", lambda: total)
    with pytest.raises(raised, match="memory"):
        measure(job, PlannedRows(read_manifest(Path(job.rows))))
