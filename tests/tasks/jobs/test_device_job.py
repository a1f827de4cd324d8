"""A device job: its result, errors, environment, record in the ledger, and change from the original model."""

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from flows.cli import cli
from flows.commands import ledger as flows_ledger
from ipu_model.core.errors import OutOfMemory
from ipu_model.core.files import write_text
from tasks.estimates import job_estimates
from tasks.estimates.job_estimates import NotMeasured, measure
from tasks.estimates.planned_jobs import PlannedRows
from tasks.host import ledger
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, ModelConfig, format_event, run_device_job
from tasks.jobs.original import compare_with_original
from tasks.stage.errors import DeviceJobFailed
from tasks.stage.row_folders import read_manifest
from tests.ipu_model.tiny_jobs import make_columns, make_job, write_rows
from tests.places import ROOT

RESULT = JobResult("pretrain", "cpu", "asked for", "fp32", 3, 0, 2.5, {"mlm_loss": 2.0}, 12, 600, 2.0, 0.0, 100.0)

ENDS_WELL = f"""
job = json.load(open(sys.argv[3]))
open(os.path.join(job["run_folder"], "result.json"), "w").write({RESULT.to_json()!r})
"""


@pytest.fixture
def job(tmp_path):
    return make_job(tmp_path, "pretrain", "rows")


@pytest.fixture
def interpreter(tmp_path):
    """Makes an executable that is called as an interpreter would be: -m ipu_model job.json."""

    def make(body, name="device-python"):
        check = "" if name == "launch it" else "assert sys.argv[1:3] == ['-m', 'ipu_model']"
        write_text(tmp_path / name, f"#!{sys.executable}\nimport json, os, sys\n{check}\n{body}\n")
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    return make


def test_the_result_comes_back_and_events_are_said_in_words(job, interpreter, tmp_path):
    lines = []
    step = {"event": "step", "step": 3, "steps": 3, "loss": 2.5, "learning_rate": 1e-3}
    step |= {"real_tokens_per_second": 1234.0, "eta_seconds": 0.0}
    python = interpreter(f"print('a warning of a library')\nprint({json.dumps(json.dumps(step))})\n{ENDS_WELL}")
    assert run_device_job(job, python=python, say=lines.append) == RESULT
    assert lines == ["[100%] update 3/3  loss 2.5000  learning rate 1.00e-03  1,234 tokens/s  0 s left"]
    assert "a warning of a library" in (tmp_path / "run" / "job.log").read_text()
    assert Job.from_json((tmp_path / "run" / "job.json").read_text()) == job


ERROR = json.dumps({"event": "error", "type": "RowsError", "text": "rows of another tokenizer"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"print({ERROR!r}); sys.exit(2)", "pretrain job: rows of another tokenizer"),
        ("1 / 0", r"(?s)exit code 1 of .*ZeroDivisionError.*job\.log"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", r"SIGKILL \(killed; often .*memory\) .*`podium plan`"),
    ],
)
def test_a_job_that_fails_says_why(job, interpreter, body, words):
    with pytest.raises(DeviceJobFailed, match=words):
        run_device_job(job, python=interpreter(body))


def test_a_program_that_is_not_there_is_named_with_its_knob_and_an_older_result_is_not_taken(
    job, interpreter, monkeypatch, tmp_path
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(RESULT.to_json())
    with pytest.raises(DeviceJobFailed, match="ended without"):
        run_device_job(job, python=interpreter("pass"))
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", "/nowhere/python")
    for launcher, words in (
        ([], "/python .*PODIUM_DEVICE_PYTHON"),
        (["/nowhere/poprun"], r"/poprun .*device\.launcher"),
    ):
        with pytest.raises(DeviceJobFailed, match=words):
            run_device_job(job, launcher=launcher)


def test_a_launcher_comes_before_the_interpreter_and_no_shell_reads_it(job, interpreter, tmp_path):
    python = interpreter(ENDS_WELL)
    seen = tmp_path / "seen.json"
    keep = f"json.dump(sys.argv[1:], open({str(seen)!r}, 'w'))\nos.execv(sys.argv[3], sys.argv[3:])"
    words = [interpreter(keep, "launch it"), "--num-replicas", "4; $HOME *"]
    assert run_device_job(job, python=python, launcher=words, say=lambda text: None) == RESULT
    assert json.loads(seen.read_text()) == [
        "--num-replicas",
        "4; $HOME *",
        python,
        "-m",
        "ipu_model",
        str(tmp_path / "run" / "job.json"),
    ]


@pytest.mark.parametrize(("own", "launcher"), [(None, []), ("", ["env"]), ("/sdk/python:/sdk/more", [])])
def test_the_hosts_pythonpath_stays_behind_the_project_and_a_place_of_another_is_not_inherited(
    job, interpreter, monkeypatch, own, launcher
):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if own is not None:
        monkeypatch.setenv("PYTHONPATH", own)
    monkeypatch.setenv("RANK", "0")
    tells = interpreter('sys.exit(f\'{os.environ["PYTHONPATH"]} rank {os.environ.get("RANK")}\')')
    path, rank = os.pathsep.join([str(ROOT), *([own] if own else [])]), "0" if launcher else "None"
    with pytest.raises(DeviceJobFailed, match=re.escape(f"{path} rank {rank}")):
        run_device_job(job, python=tells, launcher=launcher)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "predicted", "rows": 5, "of": 20, "eta_seconds": 75.2}, "rows 5/20  1 min 15 s left"),
        (
            {"event": "progress", "update": 1, "of": 400, "loss": 7.5, "eta_seconds": 8000.4},
            "update 1/400  loss 7.5000  2 h 13 min left",
        ),
        ({"event": "saved", "path": "x"}, None),
        (
            {"event": "plan", "plan": {"updates": 4, "device": {"ipus": 8, "placement": {"layers": [0, 1]}}}},
            "plan: updates 4, ipus 8",
        ),
        (
            {"event": "evaluated", "after": 400, "updates": 2400, "best_after": 400, "loss": 3.5, "nsp_accuracy": 0.75},
            "held-out rows after update 400/2400: loss 3.5000, nsp accuracy 75.0%",
        ),
    ],
)
def test_an_event_is_one_line_for_people(event, line):
    assert format_event(event) == line


MEGABYTES = 1200 << 20
"""Bytes: room for Python and torch, and not for the weights of BERT base with gradients and moments."""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "ledger.json"
    monkeypatch.setenv(ledger.LEDGER, str(path))
    return path


def job_in(folder: Path, name: str) -> Job:
    rows = folder / "rows"
    if not rows.exists():
        write_rows(rows, "pretrain", make_columns("pretrain", 64))
    run_folder = folder / "runs" / name / "0123456789ab"
    return make_job(folder / name, "pretrain", rows, run_folder=str(run_folder))


def test_a_job_enters_what_it_took_next_to_what_was_estimated(tmp_path: Path, kept: Path) -> None:
    first = run_device_job(job_in(tmp_path, "first"), say=lambda text: None)
    assert ledger.read(kept) == [first.foretold]
    memory, seconds = first.foretold["memory"], first.foretold["update_seconds"]
    assert memory["measured"] == pytest.approx(first.peak_memory_mb * (1 << 20))
    assert set(memory) == set(seconds) == {"measured"}, "nothing was known of such jobs on this host"
    assert seconds["measured"] == pytest.approx(first.train_seconds / first.steps, rel=0.05)
    assert first.foretold["tokens_per_second"]["measured"] == pytest.approx(first.real_tokens_per_second, rel=0.05)

    second = run_device_job(job_in(tmp_path, "second"), say=lambda text: None)
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
    result = CliRunner().invoke(cli, ["--project", str(ROOT), "plan", "--ledger"])
    assert "CPU, 1 process  pretrain" in result.stdout, result.stderr
    assert str(kept) in result.stderr


@pytest.mark.soak
def test_a_ledger_that_cannot_be_written_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "state" / "ledger.json"))
    lines: list[str] = []
    assert run_device_job(job_in(tmp_path, "first"), say=lines.append).steps
    assert any("the ledger" in line for line in lines)


def test_a_measurement_leaves_nothing(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_in(tmp_path, "first")
    rows = PlannedRows(read_manifest(Path(job.rows)))
    shutil.rmtree(job.rows)
    before = sorted(tmp_path.rglob("*"))
    measured = measure(job, rows)
    assert (measured["runtime"], measured["precision"]) == ("cpu", "fp32")
    assert measured["update_seconds"] > 0
    assert sorted(tmp_path.rglob("*")) == before
    too_few = dataclasses.replace(job, geometry=BatchGeometry(1000, 4))
    with pytest.raises(NotMeasured, match="use more data"):
        measure(too_few, rows)
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", str(tmp_path / "no-python"))
    with pytest.raises(NotMeasured, match="cannot be started"):
        measure(job, rows)


@pytest.mark.soak
@pytest.mark.parametrize(("total", "raised"), [(MEGABYTES, OutOfMemory), (4 * MEGABYTES, NotMeasured)])
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


def compare(groups: np.ndarray) -> dict[str, float]:
    return compare_with_original({"figures": {"mlm_loss": 3.0000004}, "new_head": False, "groups": groups.tolist()})


def test_the_change_is_that_of_the_mean_over_masked_tokens() -> None:
    change = compare(np.array([[30.0, 20.0, 10], [90.0, 88.0, 30]]))
    assert change["mlm_loss"] == 3.0
    assert change["change"] == pytest.approx((108 - 120) / 40)
    # residuals -7 and 7, so the error is sqrt(2 * 98) / 40; Student's t of one degree of freedom is 12.706
    half = 12.7062 * 14 / 40
    assert (change["change_low"], change["change_high"]) == pytest.approx((-0.3 - half, -0.3 + half), rel=1e-4)
    assert compare(np.array([[30.0, 20.0, 10]])) == {"mlm_loss": 3.0, "new_head": False, "change": -1.0, "groups": 1}


@pytest.mark.parametrize("groups", [5, 40])
def test_intervals_contain_the_truth_in_about_95_percent_of_cases(groups: int) -> None:
    rng, covered = np.random.default_rng(1), 0
    for _ in range(2000):
        labels = rng.integers(5, 20, groups).astype(float)
        old = labels * rng.normal(5, 1, groups)
        new = old + labels * rng.normal(-0.3, 0.5, groups)
        change = compare(np.stack([old, new, labels], 1))
        covered += change["change_low"] <= -0.3 <= change["change_high"]
    assert 0.93 < covered / 2000 < 0.97
