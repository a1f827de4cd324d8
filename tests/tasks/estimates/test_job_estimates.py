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
    [found] = estimate_jobs(params_of(None), ROOT, tmp_path, DEMO, options=EstimateOptions(records, **more))
    return found


def memory(found: EstimatedJob) -> job_estimates.Interval:
    return found.estimate.memory[0].total


def of_demo(tmp_path: Path, **figures: Any) -> ledger.Record:
    one = demo(tmp_path)
    shape = job_estimates._job_shape(one, one.plan)
    known = {"runtime": "cpu", "precision": "fp32", "host": ledger.host_name("cpu"), "shape": shape}
    return record(**{**known, **{name: {"measured": value} for name, value in figures.items()}})


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "ledger.json"
    monkeypatch.setenv(ledger.LEDGER, str(path))
    return path


def test_a_cpu_answers_from_the_records_of_the_shape_and_else_says_that_nothing_was_measured(tmp_path: Path) -> None:
    plain = demo(tmp_path)
    assert (plain.seconds, plain.records, plain.basis) == (None, 0, "not measured; a bound from the sizes of tensors")
    told = demo(tmp_path, of_demo(tmp_path, memory=6e8, update_seconds=0.1, tokens_per_second=9.0))
    assert (told.time.updates, told.records, told.basis) == (1500, 1, "")
    assert told.seconds.likely == pytest.approx(150.0)
    assert told.seconds.low < told.seconds.likely < told.seconds.high
    assert (memory(told).low, memory(told).likely, memory(told).high) == pytest.approx((6e8 / 1.15, 6e8, 6.9e8))
    rows = told.planned.rows.manifest
    sequences = round(32 / rows.packing_factor) * rows.packing_factor
    assert told.time.sequences_per_second.likely == pytest.approx(sequences / told.time.update_seconds.likely)
    for change in ({"host": "another"}, {"shape": {"kind": "pretrain"}}, {"precision": "bf16"}):
        other = demo(tmp_path, {**of_demo(tmp_path, memory=6e8), **change})
        assert (memory(other), other.records) == (memory(plain), 0)


def test_an_ipu_widens_its_intervals_by_the_ledger_and_never_narrows_them(tmp_path: Path) -> None:
    params = params_of("ipu-base-pod16-examples")

    def found(*records: ledger.Record) -> EstimatedJob:
        [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        return one

    plain = found()
    device = plain.estimate.device
    wide = found(*({**record(memory=figure(9, 10, 11, most)), "device": device} for most in (20, 5)))
    assert (memory(wide).low, memory(wide).high) == (memory(plain).likely * 0.5, memory(plain).likely * 2.0)
    assert (memory(wide).likely, wide.records) == (memory(plain).likely, 2)
    assert memory(found({**record(memory=figure(9, 10, 11, 10)), "device": device})) == memory(plain)
    for other in ({"device": "16 IPUs Bow, 4 replicas of 4"}, {"device": device, "kind": "predict"}):
        assert memory(found({**record(memory=figure(9, 10, 11, 20)), **other})) == memory(plain)
    toy = {**record(update_seconds=figure(0.1, 0.1, 0.1, 9)), "device": device}
    assert found(toy).seconds == plain.seconds, "of what is far less work its time says nothing"
    alike = {**record(update_seconds=figure(6, 6, 6, 30)), "device": device}
    assert found(alike).seconds == dataclasses.replace(plain.seconds, high=pytest.approx(5 * plain.seconds.likely))


MEASURED = {"runtime": "cpu", "precision": "bf16", "memory": 3e8, "free_memory": None}
MEASURED |= {"update_seconds": 0.2, "tokens_per_second": 9.0}


def measured_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any, limit: float | None = None, **choices: Any
) -> tuple[EstimatedJob, list[str]]:
    """The demo's pre-training with a measurement that ends like this, and its output."""
    said: list[str] = []

    def measure(*args: Any) -> Any:
        said.append("measured")
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(job_estimates, "measure", measure)
    params = params_of(None, "device.precision=auto")
    asked = EstimateOptions(limit=limit, measured=DEMO, say=said.append, **choices)
    [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=asked)
    return one, said


def test_jobs_of_one_shape_are_measured_once_and_the_ledger_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    monkeypatch.setattr(job_estimates, "measure", lambda *args: MEASURED)
    said: list[str] = []
    stages = ["pretrain@phase1", "pretrain@phase1"]
    for precision, records in (("fp32", 0), ("bf16", 1)):
        params = params_of(None, f"device.precision={precision}")
        options = EstimateOptions(measured=stages, say=said.append)
        found = estimate_jobs(params, ROOT, tmp_path, stages, options=options)
        assert [one.records for one in found] == [records] * 2, "it took bf16"
    assert len(said) == 3
    assert (found[0].seconds.likely, found[0].precision) == (pytest.approx(300.0), "bf16")
    assert job_estimates.MEASURED_LATER not in found[0].assumed
    kept = ledger.read(own_ledger)
    assert all(one["measurement"] for one in kept)
    [again] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(kept))
    assert (again.seconds, memory(again)) == (found[0].seconds, memory(found[0]))


@pytest.mark.parametrize(("share", "measures"), [(2.0, False), (0.9, True), (0.01, False)])
def test_before_a_run_only_jobs_are_measured_whose_memory_is_in_doubt(
    share: float, measures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    bound = memory(demo(tmp_path)).high
    one, said = measured_demo(tmp_path, monkeypatch, MEASURED, share * bound, in_doubt=True)
    assert ("measured" in said) == measures
    assert bool(one.refusal) == (share == 0.01), "what certainly does not fit needs no measurement"


def test_a_job_out_of_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path) -> None:
    limit = 0.9 * memory(demo(tmp_path)).high
    why = OutOfMemory("it ran out of memory when a few of its updates were measured")
    one, _ = measured_demo(tmp_path, monkeypatch, why, limit, in_doubt=True)
    assert one.verdict == DOES_NOT_FIT
    assert one.refusal.startswith(f"pretrain@phase1 does not fit: {why}. The largest part is ")
    assert ledger.read(own_ledger) == []
    one, said = measured_demo(tmp_path, monkeypatch, NotMeasured("it took too long"))
    assert said[-1] == "pretrain@phase1: not measured (it took too long)"
    assert (one.seconds, one.refusal) == (None, "")


def test_a_gpu_has_the_memory_that_was_free_when_one_was_measured(tmp_path: Path) -> None:
    params = params_of(None, "device.runtime=cuda")
    known = record(memory={"measured": 1.0}, host=ledger.host_name("cuda"), free_memory=1e7)
    for records, verdict in (((), ""), ((known,), DOES_NOT_FIT)):
        [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        assert one.verdict == verdict


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


def test_what_a_recipe_says_is_taken_and_the_rest_is_said(tmp_path: Path) -> None:
    packed = RowEstimator(params_of("ipu-large-pod16-examples-packed"), ROOT, tmp_path, ()).all()
    phase = packed[artifacts.rows_folder("phase2")]
    assert (phase.manifest.row_length, phase.manifest.max_sequences) == (512, 3)
    assert phase.manifest.packing_factor == pytest.approx(2.0)
    assert phase.manifest.packing_efficiency == pytest.approx(FILL)
    assert "2 sequences per row of 512 tokens, as for Wikipedia" in phase.assumed
    squad = packed[artifacts.rows_folder("squad", "train")].manifest
    assert (squad.rows, squad.sequences, squad.packing_factor) == (87_599, 87_599, 1.0), "rajpurkar/squad, unpacked"
    assert packed[artifacts.rows_folder("squad", "dev")].manifest.rows == 10_570


def test_the_demo_is_packed_as_its_short_documents_are() -> None:
    """A run of it, with 1,500 documents, had 1.34 sequences in a row of 64 tokens and 2.46 in one of 128."""
    found = RowEstimator(params_of(None), ROOT, ROOT / "none", ()).all()
    assert found[artifacts.rows_folder("phase1")].manifest.packing_factor == pytest.approx(1.34, rel=0.1)
    assert found[artifacts.rows_folder("phase2")].manifest.packing_factor == pytest.approx(2.46, rel=0.1)


def test_rows_that_are_there_are_believed_unless_they_will_be_made_anew(tmp_path: Path) -> None:
    params = params_of(None)
    folder = tmp_path / artifacts.rows_folder("phase1")
    made = write_rows(folder, "pretrain", make_columns("pretrain", 12))
    found = RowEstimator(params, ROOT, tmp_path, ()).all()
    assert found[artifacts.rows_folder("phase1")].manifest == made
    assert found[artifacts.rows_folder("phase1")].assumed == ()
    assert found[artifacts.rows_folder("phase2")].manifest.vocab_size == made.vocab_size, "of the same tokenizer"
    estimated_again = RowEstimator(params, ROOT, tmp_path, ("pretrain_rows@phase1", "tokenizer")).all()
    assert (
        estimated_again[artifacts.rows_folder("phase1")].manifest.row_length == params.pretrain_rows.phase1.row_length
    )
    assert estimated_again[artifacts.rows_folder("phase2")].manifest.vocab_size == params.tokenizer.vocabulary_size


def test_a_job_of_another_encoder_has_its_config_json_beyond_the_sizes(tmp_path: Path) -> None:
    """So that a measurement builds the model that will be trained: of DeBERTa, with its relative attention."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "deberta-v2", **sizes, "intermediate_size": 32, "relative_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = ("base_model.source=folder", f"base_model.path={tmp_path}", "model.family=deberta-v2", "packing=false")
    params = params_of(None, *base, "pretrain.enabled=false", "pretrain_rows.next_sentence=false")
    [planned] = planned_jobs(params, ROOT, tmp_path / "none", ["finetune@squad"])
    assert (planned.job.model.settings or {})["relative_attention"] is True


def test_examples_are_counted_where_somebody_says_and_guessed_where_nobody_does(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_bytes(b"x" * 346_000)
    entry = "downstream.squad.data"
    given = (f"{entry}.source=files", f"{entry}.train_path={tmp_path / 'train.json'}")

    def train(*overrides: str) -> tuple[int, tuple[str, ...]]:
        rows = RowEstimator(params_of("bert", *overrides), ROOT, tmp_path, ()).all()[
            artifacts.rows_folder("squad", "train")
        ]
        return rows.manifest.sequences, rows.assumed

    count, words = train(*given)
    assert count == 1000
    assert "1,000 examples, from the 0.3 MB of the file" in words
    assert train(*given, f"{entry}.limit_train=7")[0] == 7
    count, words = train(f"{entry}.source=hub", f"{entry}.dataset=someone/questions")
    assert count == NAMELESS
    assert any("is unknown" in word for word in words)


def test_held_out_rows_are_a_share_of_those_of_training(tmp_path: Path) -> None:
    params = params_of(None, "downstream.squad.rows.held_out_fraction=0.1")
    found = RowEstimator(params, ROOT, tmp_path, ()).all()
    train = artifacts.rows_folder("squad", "train")
    assert found[train].manifest.sequences == 10_800
    assert found[train / artifacts.HELD_OUT].manifest.sequences == 1_200
    assert take_share(found[train].manifest, 1e-9).rows == 1


@pytest.mark.parametrize(
    ("length", "factor"), [(32, 1.1), (64, 1.1), (128, 1.17), (256, 1.435), (512, 2.0), (1024, 3.2), (8192, 20.0)]
)
def test_packing_lies_between_what_was_published_and_grows_beyond(length: int, factor: float) -> None:
    assert text_packing_factor(length) == pytest.approx(factor)


def test_a_job_that_cannot_be_says_why(tmp_path: Path) -> None:
    [found] = estimate_jobs(params_of(None, "device.precision=fp16"), ROOT, tmp_path, DEMO)
    assert (found.estimate, found.verdict, found.seconds) == (None, "", None)
    assert "has no fp16" in found.problem
    assert job_estimates.as_values(found)["problem"] == found.problem
