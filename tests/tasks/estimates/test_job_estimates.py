"""What jobs need, from records, formulas or a measurement, and the rows that they will read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.errors import OutOfMemory
from tasks.estimates import job_estimates
from tasks.estimates.job_estimates import (
    DOES_NOT_FIT,
    EstimatedJob,
    EstimateOptions,
    NotMeasured,
    choose_runtime,
    estimate_jobs,
)
from tasks.estimates.planned_jobs import FILL, NAMELESS, RowEstimator, planned_jobs, take_share, text_packing_factor
from tasks.host import ledger
from tasks.stage import artifacts
from tests.ipu_model.tiny_jobs import make_columns, write_rows
from tests.places import ROOT
from tests.plans import params_of

DEMO = ["pretrain@phase1"]
DEVICE = "CPU, 1 process"


def record(**figures: Any) -> ledger.Record:
    return {"at": "2026-01-01T00:00:00", "kind": "pretrain", "device": DEVICE, **figures}


def figure(low: float, likely: float, high: float, measured: float) -> dict[str, float]:
    return {"low": low, "likely": likely, "high": high, "measured": measured}


def demo(tmp_path: Path, *records: ledger.Record, **more: Any) -> EstimatedJob:
    [job] = estimate_jobs(params_of(None), ROOT, tmp_path, DEMO, options=EstimateOptions(records, **more))
    return job


def memory(job: EstimatedJob) -> job_estimates.Interval:
    return job.estimate.memory[0].total


MEASURED = {"runtime": "cpu", "precision": "bf16", "memory": 3e8, "free_memory": None}
MEASURED |= {"update_seconds": 0.2, "tokens_per_second": 9.0}


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "ledger.json"
    monkeypatch.setenv(ledger.LEDGER, str(path))
    return path


def test_a_cpu_answers_from_the_records_of_the_shape_and_else_says_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    plain = demo(tmp_path)
    measured_demo(tmp_path, monkeypatch, MEASURED)
    figures = {"memory": 6e8, "update_seconds": 0.1, "tokens_per_second": 9.0}
    known = {**ledger.read(own_ledger)[0], "precision": "fp32"}
    known |= {name: {"measured": value} for name, value in figures.items()}
    assert (plain.seconds, plain.records, plain.basis) == (None, 0, "not measured; a bound from the sizes of tensors")
    answer = demo(tmp_path, known)
    assert (answer.time.updates, answer.records, answer.basis) == (1500, 1, "")
    assert answer.seconds.likely == pytest.approx(150.0)
    assert answer.seconds.low < answer.seconds.likely < answer.seconds.high
    assert (memory(answer).low, memory(answer).likely, memory(answer).high) == pytest.approx((6e8 / 1.15, 6e8, 6.9e8))
    rows = answer.planned.rows.manifest
    sequences = round(32 / rows.packing_factor) * rows.packing_factor
    assert answer.time.sequences_per_second.likely == pytest.approx(sequences / answer.time.update_seconds.likely)
    for change in ({"host": "another"}, {"shape": {"kind": "pretrain"}}, {"precision": "bf16"}):
        other = demo(tmp_path, {**known, **change})
        assert (memory(other), other.records) == (memory(plain), 0)


def test_an_ipu_widens_its_intervals_by_the_ledger_and_never_narrows_them(tmp_path: Path) -> None:
    params = params_of("ipu-base-pod16-examples")

    def estimated(*records: ledger.Record) -> EstimatedJob:
        [job] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        return job

    plain = estimated()
    device = plain.estimate.device
    wide = estimated(*({**record(memory=figure(9, 10, 11, most)), "device": device} for most in (20, 5)))
    assert (memory(wide).low, memory(wide).high) == (memory(plain).likely * 0.5, memory(plain).likely * 2.0)
    assert (memory(wide).likely, wide.records) == (memory(plain).likely, 2)
    assert memory(estimated({**record(memory=figure(9, 10, 11, 10)), "device": device})) == memory(plain)
    for other in ({"device": "16 IPUs Bow, 4 replicas of 4"}, {"device": device, "kind": "predict"}):
        assert memory(estimated({**record(memory=figure(9, 10, 11, 20)), **other})) == memory(plain)
    toy = {**record(update_seconds=figure(0.1, 0.1, 0.1, 9)), "device": device}
    assert estimated(toy).seconds == plain.seconds, "of what is far less work its time says nothing"
    alike = {**record(update_seconds=figure(6, 6, 6, 30)), "device": device}
    assert estimated(alike).seconds == dataclasses.replace(plain.seconds, high=pytest.approx(5 * plain.seconds.likely))


def measured_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any, limit: float | None = None, **choices: Any
) -> tuple[EstimatedJob, list[str]]:
    """The demo's pre-training with a measurement that ends like this, and its output."""
    lines: list[str] = []

    def measure(*args: Any) -> Any:
        lines.append("measured")
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(job_estimates, "measure", measure)
    params = params_of(None, "device.precision=auto")
    asked = EstimateOptions(limit=limit, measured=DEMO, say=lines.append, **choices)
    [job] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=asked)
    return job, lines


def test_jobs_of_one_shape_are_measured_once_and_the_ledger_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    monkeypatch.setattr(job_estimates, "measure", lambda *args: MEASURED)
    lines: list[str] = []
    stages = ["pretrain@phase1", "pretrain@phase1"]
    for precision, records in (("fp32", 0), ("bf16", 1)):
        params = params_of(None, f"device.precision={precision}")
        options = EstimateOptions(measured=stages, say=lines.append)
        jobs = estimate_jobs(params, ROOT, tmp_path, stages, options=options)
        assert [job.records for job in jobs] == [records] * 2, "it took bf16"
    assert len(lines) == 3
    assert (jobs[0].seconds.likely, jobs[0].precision) == (pytest.approx(300.0), "bf16")
    assert job_estimates.MEASURED_LATER not in jobs[0].assumed
    kept = ledger.read(own_ledger)
    assert all(entry["measurement"] for entry in kept)
    [again] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(kept))
    assert (again.seconds, memory(again)) == (jobs[0].seconds, memory(jobs[0]))


@pytest.mark.parametrize(("share", "measures"), [(2.0, False), (0.9, True), (0.01, False)])
def test_before_a_run_only_jobs_are_measured_whose_memory_is_in_doubt(
    share: float, measures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    bound = memory(demo(tmp_path)).high
    job, lines = measured_demo(tmp_path, monkeypatch, MEASURED, share * bound, in_doubt=True)
    assert ("measured" in lines) == measures
    assert bool(job.refusal) == (share == 0.01), "what certainly does not fit needs no measurement"


def test_a_job_out_of_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path) -> None:
    limit = 0.9 * memory(demo(tmp_path)).high
    why = OutOfMemory("it ran out of memory when a few of its updates were measured")
    job, _ = measured_demo(tmp_path, monkeypatch, why, limit, in_doubt=True)
    assert job.verdict == DOES_NOT_FIT
    assert job.refusal.startswith(f"pretrain@phase1 does not fit: {why}. ")
    assert ledger.read(own_ledger) == []
    job, lines = measured_demo(tmp_path, monkeypatch, NotMeasured("it took too long"))
    assert lines[-1] == "pretrain@phase1: not measured (it took too long)"
    assert (job.seconds, job.refusal) == (None, "")


def test_a_gpu_has_the_memory_that_was_free_when_one_was_measured(tmp_path: Path) -> None:
    params = params_of(None, "device.runtime=cuda")
    known = record(memory={"measured": 1.0}, host=ledger.host_name("cuda"), free_memory=1e7)
    for records, verdict in (((), ""), ((known,), DOES_NOT_FIT)):
        [job] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        assert job.verdict == verdict


@pytest.mark.parametrize(
    ("there", "expected"), [((), "cpu"), (("/dev/nvidia0",), "cuda"), (("/dev/ipu0",), "cpu"), (("/dev/dxg",), "cuda")]
)
def test_auto_is_what_the_host_has(there: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job cannot use an IPU without PopTorch."""
    monkeypatch.setattr(job_estimates.importlib.util, "find_spec", lambda name: None)
    device = params_of(None, "device.runtime=auto").device
    runtime, why = choose_runtime(device, exists=lambda path: path in there)
    assert runtime == expected
    assert f"device.runtime=auto is {expected}" in why
    assert choose_runtime(params_of(None).device) == ("cpu", "")


def rows_of(root: Path, preset: str | None, *overrides: str, again: tuple[str, ...] = ()) -> dict[str, Any]:
    """The rows that jobs will read, by the names of their folders."""
    rows = RowEstimator(params_of(preset, *overrides), ROOT, root, again).all()
    return {folder.relative_to("data/rows").as_posix(): estimated for folder, estimated in rows.items()}


def test_what_a_recipe_says_is_taken_and_the_rest_is_said(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "ipu-large-pod16-examples-packed")
    phase = rows["phase2"].manifest
    assert (phase.row_length, phase.max_sequences) == (512, 3)
    assert (phase.packing_factor, phase.packing_efficiency) == pytest.approx((2.0, FILL))
    assert "2 sequences per row of 512 tokens, as for Wikipedia" in rows["phase2"].assumed
    squad = rows["squad/train"].manifest
    assert (squad.rows, squad.sequences, squad.packing_factor) == (87_599, 87_599, 1.0), "rajpurkar/squad, unpacked"
    assert rows["squad/dev"].manifest.rows == 10_570


def test_the_demo_is_packed_as_its_short_documents_are() -> None:
    """A run of it, with 1,500 documents, had 1.34 sequences in a row of 64 tokens and 2.46 in one of 128."""
    rows = rows_of(ROOT / "none", None)
    factors = [rows[phase].manifest.packing_factor for phase in ("phase1", "phase2")]
    assert factors == pytest.approx([1.34, 2.46], rel=0.1)


def test_rows_that_are_there_are_believed_unless_they_will_be_made_anew(tmp_path: Path) -> None:
    made = write_rows(tmp_path / artifacts.rows_folder("phase1"), "pretrain", make_columns("pretrain", 12))
    rows = rows_of(tmp_path, None)
    assert (rows["phase1"].manifest, rows["phase1"].assumed) == (made, ())
    assert rows["phase2"].manifest.vocab_size == made.vocab_size, "of the same tokenizer"
    anew, params = rows_of(tmp_path, None, again=("pretrain_rows@phase1", "tokenizer")), params_of(None)
    assert anew["phase1"].manifest.row_length == params.pretrain_rows.phase1.row_length
    assert anew["phase2"].manifest.vocab_size == params.tokenizer.vocabulary_size


def test_a_job_of_another_encoder_has_its_config_json_beyond_the_sizes(tmp_path: Path) -> None:
    """So that a measurement builds the model that will be trained: of DeBERTa, with its relative attention."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "deberta-v2", **sizes, "intermediate_size": 32, "relative_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = ("base_model.source=folder", f"base_model.path={tmp_path}", "model.family=deberta-v2", "packing=false")
    params = params_of(None, *base, "pretrain.enabled=false", "pretrain_rows.next_sentence=false")
    [planned] = planned_jobs(params, ROOT, tmp_path / "none", ["finetune@squad"])
    assert (planned.job.model.settings or {})["relative_attention"] is True


@pytest.mark.parametrize(
    ("data", "count", "assumed"),
    [
        ("source: files, train_path: {}", 1000, "1,000 examples, from the 0.3 MB"),
        ("source: files, train_path: {}, limit_train: 7", 7, ""),
        ("source: hub, dataset: someone/questions", NAMELESS, "is unknown"),
    ],
)
def test_examples_are_counted_where_somebody_says_and_guessed_where_nobody_does(
    tmp_path: Path, data: str, count: int, assumed: str
) -> None:
    (tmp_path / "train.json").write_bytes(b"x" * 346_000)
    values = data.format(tmp_path / "train.json")
    rows = rows_of(tmp_path, "bert", f"downstream.squad.data={{{values}}}")["squad/train"]
    assert rows.manifest.sequences == count
    assert assumed in " ".join(rows.assumed)


def test_held_out_rows_are_a_share_of_those_of_training(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, None, "downstream.squad.rows.held_out_fraction=0.1")
    train = rows["squad/train"].manifest
    assert (train.sequences, rows["squad/train/held-out"].manifest.sequences) == (10_800, 1_200)
    assert take_share(train, 1e-9).rows == 1


@pytest.mark.parametrize(
    ("length", "factor"), [(32, 1.1), (64, 1.1), (128, 1.17), (256, 1.435), (512, 2.0), (1024, 3.2), (8192, 20.0)]
)
def test_packing_lies_between_what_was_published_and_grows_beyond(length: int, factor: float) -> None:
    assert text_packing_factor(length) == pytest.approx(factor)


def test_a_job_that_cannot_be_says_why(tmp_path: Path) -> None:
    [job] = estimate_jobs(params_of(None, "device.precision=fp16"), ROOT, tmp_path, DEMO)
    assert (job.estimate, job.verdict, job.seconds) == (None, "", None)
    assert "has no fp16" in job.problem
    assert job_estimates.as_values(job)["problem"] == job.problem
