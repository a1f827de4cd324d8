"""Precision `auto` on a CPU: what is chosen, what is kept on the host, and that a run keeps what it began with."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
import torch
from safetensors.torch import load_file
from test_compiling import needs_compiler
from test_torchrun import start_two
from tiny_jobs import ROOT, TINY, finish, make_job, pausing, run_here

from ipu_model.distributed.process import StopRequest
from ipu_model.errors import CheckpointError
from ipu_model.jobs.job import Job, JobResult, ScheduleConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.rows.format import read_manifest
from ipu_model.rows.reading import RowFolder
from ipu_model.runtimes import auto_precision
from ipu_model.runtimes.auto_precision import RECORD, TIE, decide, is_busy, rates_here, work_of
from ipu_model.runtimes.precision_probe import Rates, Work
from ipu_model.runtimes.probe_cache import cache_folder, file_of, find, keep, key_of
from ipu_model.train.running import run_job

FP32, BF16 = Rates(200.0, 100.0, "real tokens/s"), Rates(100.0, 200.0, "real tokens/s")
WORK = Work(TINY, (20, 9, 7), 3, True)


class Probe:
    """Says what it is told to, and counts."""

    def __init__(self) -> None:
        self.says, self.calls = BF16, 0

    def __call__(self, work: Work) -> Rates:
        self.calls += 1
        return self.says


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Probe]:
    """A probe in the place of the real one, on a host that is not busy and has nothing kept."""
    fake = Probe()
    monkeypatch.setattr(auto_precision, "measure", fake)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield fake
    torch.set_num_threads(threads)


def forget(tmp_path: Path) -> None:
    """What the host keeps; another host has nothing, too."""
    shutil.rmtree(str(tmp_path / "cache"))


def said(finished: Any) -> str:
    return "\n".join(event["text"] for event in finished.of("message"))


def planned(finished: Any) -> Any:
    (plan,) = finished.of("plan")
    return plan["precision"], plan["precision_reason"]


FASTER = [(100.0, 200.0, "bf16"), (100.0, 100 * TIE + 1, "bf16")]
NEAR = [(11825.0, 8184.0, "fp32"), (100.0, 100 * TIE, "fp32"), (100.0, 100.0, "fp32")]


@pytest.mark.parametrize(("fp32", "bf16", "value"), [*FASTER, *NEAR])
def test_the_faster_is_taken_and_fp32_where_they_are_near(fp32: float, bf16: float, value: str) -> None:
    choice = decide(Rates(fp32, bf16, "real tokens/s"), 2)
    assert choice.value == value
    assert ("too near" in choice.reason) == (value == "fp32" and bf16 > fp32)


def test_the_reason_has_both_figures_with_their_unit() -> None:
    slow = decide(Rates(11825.0, 8184.4, "real tokens per CPU second"), 1)
    assert slow.reason == "auto: measured bf16 8,180 and fp32 11,800 real tokens per CPU second with 1 thread"
    assert (
        decide(Rates(42.26, 3.0, "GFLOP/s"), 4).reason == "auto: measured bf16 3 and fp32 42.3 GFLOP/s with 4 threads"
    )
    assert decide(Rates(40.0, None, "GFLOP/s"), 4).reason == "auto: this torch has no bf16 products for this CPU"


def test_a_host_is_asked_once_and_says_where_it_keeps_that(probe: Probe, tmp_path: Path) -> None:
    texts: List[str] = []
    for _ in range(2):
        assert rates_here(WORK, os.environ, lambda event, text: texts.append(text)) == BF16
    assert probe.calls == 1
    (path,) = (tmp_path / "cache" / "podium" / "precision").iterdir()
    assert texts == [f"precision: measured, kept in {path}", f"precision: measured before on this host ({path})"]
    other = dataclasses.replace(WORK, config=dataclasses.replace(TINY, hidden_size=32))
    rates_here(other, os.environ, lambda event, text: None)
    assert probe.calls == 2


@pytest.mark.parametrize(
    "damage", ["", "{", "[1, 2]", "null", "{}", '{"key": 1}', "[" * 100_000, "changed", "nan", "negative", "text"]
)
def test_damaged_figures_are_measured_again(probe: Probe, damage: str) -> None:
    key = key_of(WORK, os.environ)
    folder = cache_folder(os.environ)
    assert folder is not None
    path = file_of(folder, key)
    keep(path, key, FP32)
    kept = json.loads(path.read_text())
    numbers = {"nan": {"bf16": float("nan")}, "negative": {"fp32": -1.0}, "text": {"bf16": "fast"}}
    changes = {"changed": {"key": {**key, "torch": "1"}}, **numbers}
    path.write_text(json.dumps({**kept, **changes[damage]}) if damage in changes else damage)
    assert rates_here(WORK, os.environ, lambda event, text: None) == BF16
    assert find(path, key) == BF16, "and what was damaged is replaced"


def test_a_host_without_a_place_for_it_measures_every_time(probe: Probe, tmp_path: Path) -> None:
    texts: List[str] = []
    (tmp_path / "file").write_text("")
    for _ in range(2):
        environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
        assert rates_here(WORK, environ, lambda event, text: texts.append(text)) == BF16
    assert probe.calls == 2
    assert "cannot be written (Not a directory; XDG_CACHE_HOME names another)" in texts[-1]


def test_a_user_without_a_home_is_no_error(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a uid without a passwd entry
    texts: List[str] = []
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) is None
    assert rates_here(WORK, {}, lambda event, text: texts.append(text)) == BF16
    assert texts == ["precision: measured, not kept, as there is no home folder (XDG_CACHE_HOME names one)"]


def test_what_a_busy_host_finds_is_not_kept(probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert is_busy()
    rates_here(WORK, os.environ, lambda event, text: None)
    assert not (tmp_path / "cache").exists()


def test_other_kernels_threads_and_shapes_are_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(WORK, {})
    assert key == key_of(dataclasses.replace(WORK, lengths=(21, 8, 7)), {}), "work of about the same size"
    assert key != key_of(dataclasses.replace(WORK, training=False, masked=0), {})
    assert key != key_of(WORK, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert key != key_of(dataclasses.replace(WORK, lengths=(400,) * 9), {})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert key != key_of(WORK, {})


KEEPER = """
import sys
from pathlib import Path
from ipu_model.runtimes.precision_probe import Rates
from ipu_model.runtimes.probe_cache import keep
for number in range(300):
    keep(Path(sys.argv[1]), {"a": 1}, Rates(float(sys.argv[2]), None, "x" * 20000))
"""


@pytest.mark.slow
def test_two_processes_that_write_at_once_leave_whole_figures(tmp_path: Path) -> None:
    path = tmp_path / "new" / "figures.json"
    command = [sys.executable, "-c", KEEPER, str(path)]
    writers = [subprocess.Popen([*command, str(number)], cwd=str(ROOT)) for number in (1, 2)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            found = find(path, {"a": 1})
            assert found is not None, "half a file was seen"
            assert found.fp32 in (1.0, 2.0)
            seen += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen > 0
    assert [file.name for file in path.parent.iterdir()] == ["figures.json"]


@pytest.fixture
def job(tmp_path: Path, pretrain_rows: Path) -> Job:
    return make_job(tmp_path / "auto", "pretrain", pretrain_rows, precision="auto")


@pytest.mark.parametrize("lost", [None, RECORD], ids=["here", "on a host that only the checkpoints came to"])
def test_a_resumed_run_keeps_its_precision_whatever_a_probe_says_now(
    probe: Probe, tmp_path: Path, pretrain_rows: Path, job: Job, lost: Optional[str]
) -> None:
    pausing(job, "saved")
    probe.says = FP32
    forget(tmp_path)
    if lost is not None:
        (Path(job.run_folder) / lost).unlink()
    resumed = run_here(job)
    assert planned(resumed) == ("bf16", "auto: measured bf16 200 and fp32 100 real tokens/s with 1 thread")
    assert "precision: bf16, recorded when this run began" in said(resumed)
    assert probe.calls == 1
    result = JobResult.from_json((Path(job.run_folder) / "result.json").read_text())
    assert result.resumed_from_step > 0
    assert (result.precision, result.plan["precision_reason"]) == planned(resumed)
    whole = make_job(tmp_path / "whole", "pretrain", pretrain_rows, precision="bf16")
    run_here(whole)
    one, other = (load_file(str(Path(each.output) / "model.safetensors")) for each in (job, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_that_ended_before_its_first_update_keeps_its_precision(probe: Probe, tmp_path: Path, job: Job) -> None:
    def emit(name: str, **fields: Any) -> None:
        if name == "plan":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # as if killed: nothing is saved
        run_job(job, emit, StopRequest())
    probe.says = FP32
    forget(tmp_path)
    assert planned(run_here(job))[0] == "bf16"
    assert probe.calls == 1


@pytest.mark.parametrize("damage", ["", "[]", '{"precision": []}', None])
def test_a_damaged_record_is_made_again(probe: Probe, tmp_path: Path, job: Job, damage: Optional[str]) -> None:
    run_here(job)
    path = Path(job.run_folder) / RECORD
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "precision": ["bf16"]}) if damage is None else damage)
    probe.says = FP32
    forget(tmp_path)
    assert planned(run_here(job))[0] == "fp32"
    assert json.loads(path.read_text()) == {
        **kept,
        "precision": "fp32",
        "reason": json.loads(path.read_text())["reason"],
    }


def test_another_job_in_the_same_folder_is_measured_anew(probe: Probe, tmp_path: Path, job: Job) -> None:
    run_here(job)
    probe.says = FP32
    forget(tmp_path)
    assert planned(run_here(dataclasses.replace(job, seed=8)))[0] == "fp32"
    assert planned(run_here(dataclasses.replace(job, seed=8, precision="bf16"))) == ("bf16", "as asked")


def test_a_checkpoint_of_another_precision_is_still_refused(probe: Probe, job: Job) -> None:
    pausing(job, "saved")
    with pytest.raises(CheckpointError, match="plan.precision: bf16 -> fp32"):
        run_here(dataclasses.replace(job, precision="fp32"))


@needs_compiler
def test_a_job_that_only_compiles_and_the_training_after_it_agree(probe: Probe, tmp_path: Path, job: Job) -> None:
    compiled = dataclasses.replace(job, compile="optimizer")
    ahead = dataclasses.replace(compiled, compile_only=True, checkpoint_every_updates=0)
    assert planned(run_here(ahead))[0] == "bf16"
    probe.says = FP32
    forget(tmp_path)
    assert planned(run_here(compiled))[0] == "bf16"


def test_nothing_is_measured_where_it_decides_nothing(
    probe: Probe, tmp_path: Path, answer_rows: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = dataclasses.replace(job, schedule=ScheduleConfig(steps=0))
    assert planned(run_here(still)) == ("fp32", "auto: no update is made")
    tuned = make_job(tmp_path / "tuned", "finetune", answer_rows)
    run_here(tuned)
    settings: Dict[str, Any] = {
        "precision": "auto",
        "init_checkpoint": tuned.output,
        "optimizer": None,
        "schedule": None,
    }
    few = make_job(tmp_path / "few", "predict", answer_rows, **settings)
    assert planned(run_here(few)) == ("fp32", "auto: so little is computed before a probe would end")
    assert probe.calls == 0
    monkeypatch.setattr(auto_precision, "LITTLE", 1000)
    many = make_job(tmp_path / "many", "predict", answer_rows, **settings)
    assert planned(run_here(many))[0] == "bf16"
    assert probe.calls == 1
    assert not (Path(many.run_folder) / RECORD).exists()


def test_the_work_is_that_of_the_job(tmp_path: Path, pretrain_rows: Path, answer_rows: Path) -> None:
    for kind, folder in (("pretrain", pretrain_rows), ("predict", answer_rows)):
        job = make_job(tmp_path / kind, kind, folder, init_checkpoint="somewhere")
        manifest = read_manifest(folder)
        plan = make_plan(job, manifest, Choice("cpu", ""), Choice("auto", ""))
        rows = RowFolder(folder, manifest.kind, TINY)
        work = work_of(plan, job, TINY, rows)
        taken = rows.take(list(range(plan.micro_batch_size if kind == "pretrain" else plan.rows_per_call)))
        assert (work.tokens, len(work.lengths)) == (taken.real_tokens, taken.sequences)
        assert work.training == (kind == "pretrain")
        assert work.masked == (taken.labels("masked_labels") if kind == "pretrain" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("first", [BF16, FP32], ids=["bf16", "fp32"])
def test_all_processes_take_what_the_first_one_chose(
    tmp_path: Path, answer_rows: Path, monkeypatch: pytest.MonkeyPatch, first: Rates
) -> None:
    """On hosts that measured otherwise: each process finds figures of its own."""
    job = make_job(tmp_path / "two", "finetune", answer_rows, precision="auto")
    value = decide(first, 1).value
    from test_torchrun import start_job

    caches = iter([(tmp_path / "one", first), (tmp_path / "other", FP32 if first is BF16 else BF16)])

    def start(each: Job, environment: Dict[str, str]) -> Any:
        cache, rates = next(caches)
        given = {**environment, "XDG_CACHE_HOME": str(cache)}
        shared = dataclasses.replace(each.geometry, replication_factor=2)
        plan = make_plan(
            dataclasses.replace(each, geometry=shared),
            read_manifest(answer_rows),
            Choice("cpu", ""),
            Choice("auto", ""),
        )
        work = work_of(plan, each, TINY, RowFolder(answer_rows, "question_answering", TINY))
        torch.set_num_threads(1)
        key = key_of(work, given)
        folder = cache_folder(given)
        assert folder is not None
        keep(file_of(folder, key), key, rates)
        return start_job(each, given)

    monkeypatch.setattr("test_torchrun.start_job", start)
    done = [finish(process) for process in start_two(job, job)]
    assert [each.code for each in done] == [0, 0], [each.stderr for each in done]
    assert planned(done[0])[0] == value
    assert "measured before on this host" in said(done[0])
    folders = (Path(job.run_folder), Path(job.run_folder) / "instance-1")
    results = [JobResult.from_json((folder / "result.json").read_text()) for folder in folders]
    assert [result.precision for result in results] == [value, value]
