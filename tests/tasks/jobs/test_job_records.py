"""What was foretold of a real job beside what it took: in its result, in the ledger of its host, in podium ledger."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands import ledger as flows_ledger
from tasks.host import ledger
from tasks.jobs.device_job import Job, JobResult, run_device_job
from tasks.preflight.foretelling import NotProbed, can_be_probed, probe
from tasks.preflight.planned_jobs import PlannedJob, Rows
from tasks.project.row_folders import read_manifest
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.places import copy_project


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


def test_a_job_enters_what_it_took_beside_what_was_foretold(tmp_path: Path, kept: Path) -> None:
    first = run(job_in(tmp_path, "first"))
    assert first.foretold is not None
    assert ledger.read(kept) == [first.foretold]
    memory, seconds = first.foretold["memory"], first.foretold["update_seconds"]
    assert memory["measured"] == pytest.approx(first.peak_memory_mb * (1 << 20))
    assert memory["low"] <= memory["likely"] <= memory["high"]
    assert set(seconds) == {"measured"}, "nobody knew the speed of this host"
    assert seconds["measured"] == pytest.approx(first.train_seconds / first.steps, rel=0.05)
    assert first.foretold["tokens_per_second"]["measured"] == pytest.approx(first.real_tokens_per_second, rel=0.05)

    second = run(job_in(tmp_path, "second"))
    assert second.foretold is not None
    foretold = second.foretold["update_seconds"]
    assert foretold["likely"] == pytest.approx(seconds["measured"]), "the same work at the speed of the first"
    written = json.loads((tmp_path / "runs" / "second" / "0123456789ab" / "result.json").read_text())
    assert written["foretold"] == second.foretold


def test_records_outlive_their_runs_and_those_of_runs_count_without_a_ledger(tmp_path: Path, kept: Path) -> None:
    result = run(job_in(tmp_path, "first"))
    assert flows_ledger.records_of(tmp_path) == [result.foretold], "once, though both have it"
    kept.unlink()
    assert flows_ledger.records_of(tmp_path) == [result.foretold]
    ledger.enter(result.foretold or {}, kept)
    shutil.rmtree(tmp_path / "runs")
    [row] = flows_ledger.summary(flows_ledger.records_of(tmp_path))
    assert (row["device"], row["kind"], row["jobs"]) == ("CPU, 1 process", "pretrain", 1)
    assert row["ratios"]["memory"]["jobs"] == 1
    assert row["ratios"]["update_seconds"] is None
    command = [sys.executable, "-m", "flows", "ledger"]
    project = copy_project(tmp_path / "project")
    said = subprocess.run(command, cwd=project, text=True, capture_output=True, timeout=120)
    assert "CPU, 1 process  pretrain" in said.stdout, said.stderr
    assert str(kept) in said.stderr


def test_a_ledger_that_cannot_be_written_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "state" / "ledger.json"))
    said: list[str] = []
    assert run_device_job(job_in(tmp_path, "first"), say=said.append).steps
    assert any("the ledger of this host was not written" in line for line in said)


def test_a_probe_times_updates_on_real_rows_and_leaves_nothing(tmp_path: Path) -> None:
    job = job_in(tmp_path, "first")
    before = sorted(tmp_path.rglob("*"))
    manifest = read_manifest(Path(job.rows))
    planned = PlannedJob("pretrain@phase1", "", job, Rows(manifest))
    assert can_be_probed(planned, "cpu")
    assert not can_be_probed(planned, "ipu")
    assert not can_be_probed(PlannedJob("pretrain@phase1", "", job, Rows(manifest, ("its length",))), "cpu")
    found = probe(planned, job, tmp_path)
    assert found.seconds_of_micro_batch > 0
    assert found.runtime == "cpu"
    assert sorted(tmp_path.rglob("*")) == before
    shutil.rmtree(job.rows)
    with pytest.raises(NotProbed, match="manifest.json is missing"):
        probe(planned, job, tmp_path)
