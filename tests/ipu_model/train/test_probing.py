"""The probe: parts of an update timed, nothing written, nothing trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import torch
from tiny_jobs import LABELS, ROOT, TINY, make_columns, make_job, run_here, write_rows

from ipu_model.errors import ConfigError, RowsError
from ipu_model.estimates.host import HostJob, estimate_host, update_seconds
from ipu_model.jobs.job import BatchGeometry, Job
from ipu_model.jobs.probed import Probed
from ipu_model.rows.format import read_manifest
from ipu_model.train import probing
from ipu_model.train.probing import probe


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(probing, "BUDGET_SECONDS", 0.2)


def nothing(event: str, **fields: Any) -> None:
    """Nobody reads."""


def files_below(folder: Path) -> List[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(("micro_batch", "timed"), [(4, 2), (12, 1)])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "auto"])
def test_parts_of_an_update_are_timed_and_nothing_is_written(
    precision: str, micro_batch: int, timed: int, pretrain_rows: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(pretrain_rows)
    geometry = BatchGeometry(round(12 * manifest.packing_factor), micro_batch)
    before = files_below(pretrain_rows.parent)
    job = make_job(tmp_path / "job", "pretrain", pretrain_rows, precision=precision, geometry=geometry)
    found = probe(job, nothing)
    assert not (tmp_path / "job").exists()
    assert files_below(pretrain_rows.parent) == before
    assert found.cpu_seconds_of_micro_batch > 0
    assert found.micro_batches % timed == 0
    assert found.cpu_seconds_of_update >= 0
    assert timed > 1 or found.cpu_seconds_of_update == 0, "one micro-batch cannot be told from its update"
    assert found.precision in ("fp32", "bf16")
    assert found.tokens == pytest.approx(micro_batch * manifest.real_tokens / manifest.rows, rel=0.3)


def test_a_probe_of_a_prediction_times_its_calls(answer_rows: Path, tmp_path: Path) -> None:
    run_here(make_job(tmp_path / "first", "finetune", answer_rows))
    model = str(tmp_path / "first" / "model")
    job = make_job(tmp_path / "second", "predict", answer_rows, init_checkpoint=model, optimizer=None, schedule=None)
    found = probe(job, nothing)
    assert found.cpu_seconds_of_micro_batch > 0
    assert found.cpu_seconds_of_update == 0
    assert not (tmp_path / "second").exists()
    asked = HostJob(job, TINY, read_manifest(answer_rows), limit=1e12)
    time = estimate_host(asked, found).time
    assert time is not None
    assert time.updates == -(-20 // (4 * 4)), "calls of four micro-batches"


def test_a_run_is_foretold_from_its_parts() -> None:
    manifest_rows = {"kind": "pretrain", "row_length": 24, "max_sequences": 3, "max_predictions": 4, "vocab_size": 60}
    manifest = read_manifest_of(**manifest_rows, rows=100, sequences=200, real_tokens=2000)
    job = make_job(Path("x"), "pretrain", Path("rows"), geometry=BatchGeometry(24, 4))  # 12 rows, 3 micro-batches
    found = Probed("cpu", "fp32", "", 1, 4, 40.0, 0.5, 0.25, 1.0, 0.5, 100.0)
    asked = HostJob(job, TINY, manifest, limit=1e12)
    assert update_seconds(asked, 0.5, 0.25, found) == (pytest.approx(3 * 0.5 * 80 / 40), 0.25)
    time = estimate_host(asked, found).time
    assert time is not None
    assert time.update_seconds.likely == pytest.approx(6.5)
    assert time.sequences_per_second.likely == pytest.approx(24 / 6.5)
    assert time.updates == 6
    assert estimate_host(asked).time is None


def read_manifest_of(**values: Any) -> Any:
    from ipu_model.rows.format import Manifest

    return Manifest(**values, tokenizer_sha256="", seed=0, files={})


def test_a_job_for_ipus_is_not_probed(pretrain_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipu_model.jobs.plan import Choice

    monkeypatch.setattr(probing, "choose_runtime", lambda asked: Choice("ipu", "as asked"))
    with pytest.raises(ConfigError, match="an IPU would compile"):
        probe(make_job(tmp_path / "job", "pretrain", pretrain_rows), nothing)


def run_probe(path: Path) -> Dict[str, Any]:
    environment = {**os.environ, "PODIUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "ipu_model", "--probe", str(path)]
    done = subprocess.run(words, cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, check=False)
    last: Dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return {"code": done.returncode, **last}


def test_the_door_takes_a_probe_and_says_what_is_wrong_with_one(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    write_rows(rows, "sequence_classification", make_columns("sequence_classification", 20))
    job = make_job(
        tmp_path / "job",
        "finetune",
        rows,
        head="sequence_classification",
        labels=list(LABELS),
        checkpoint_every_updates=0,
    )
    assert job.labels is not None
    path = tmp_path / "job.json"
    path.write_text(job.to_json(), encoding="utf-8")
    found = run_probe(path)
    assert (found.pop("code"), found.pop("event")) == (0, "probed")
    assert Probed(**found).threads == 1
    assert files_below(tmp_path) == ["job.json", *sorted(["rows", *(f"rows/{x}" for x in files_below(rows))])]
    lost = Job.from_json(path.read_text().replace(str(rows), str(tmp_path / "gone")))
    path.write_text(lost.to_json(), encoding="utf-8")
    found = run_probe(path)
    assert (found["code"], found["event"], found["type"]) == (2, "error", RowsError.__name__)
