"""Precision `auto` on a CPU: what is measured and chosen, and that a run keeps what it began with."""

import dataclasses
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tiny_jobs import (
    TINY,
    finish,
    make_columns,
    make_job,
    pausing,
    result_of,
    run_here,
    start_job,
    weights_of,
    write_rows,
)
from tiny_torch import run_two

from ipu_model.core.errors import CheckpointError
from ipu_model.distributed.process import StopRequest
from ipu_model.jobs.job import JobResult, ScheduleConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.flat import flatten
from ipu_model.models.rotary import RotaryLayer
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train import auto_precision
from ipu_model.train.auto_precision import PRECISION, choose_faster, measure_rates, time_pass
from ipu_model.train.job_runner import run_job

BF16_IS_FASTER, FP32_IS_FASTER = (100.0, 200.0), (200.0, 100.0)
ROTARY = dataclasses.replace(TINY, family="modernbert")


@pytest.fixture
def rates(monkeypatch):
    """What is measured: tokens per second in fp32 and in bf16."""
    measured = Mock(return_value=BF16_IS_FASTER)
    monkeypatch.setattr(auto_precision, "measure_rates", measured)
    return measured


@pytest.fixture
def job(tmp_path, pretrain_rows):
    return make_job(tmp_path / "auto", "pretrain", pretrain_rows, precision="auto")


def planned(finished):
    (plan,) = finished.of("plan")
    return plan["precision"], plan["precision_reason"]


def make_inputs(folder, kind, config=TINY):
    """The plan of a job that pre-trains on 100 rows, or predicts for them, and these rows."""
    row_kind = "pretrain" if kind == "pretrain" else "question_answering"
    manifest = write_rows(folder / "rows", row_kind, make_columns(row_kind, 100))
    job = make_job(folder, kind, folder / "rows", init_checkpoint="somewhere")
    plan = make_plan(job, manifest, Choice("cpu", ""), Choice("auto", ""))
    return dataclasses.replace(plan, micro_batch_size=100), RowFolder(folder / "rows", row_kind, config)


@pytest.mark.parametrize(("bf16", "value"), [(105.1, "bf16"), (105.0, "fp32")])
def test_bf16_is_taken_where_it_gains_5_percent_on_one_thread(rates, tmp_path, bf16, value):
    threads, measuring = torch.get_num_threads(), []
    rates.side_effect = lambda *_: (measuring.append(torch.get_num_threads()), (100.0, bf16))[1]
    torch.set_num_threads(2)
    try:
        choice = choose_faster(*make_inputs(tmp_path, "pretrain"))
        assert (measuring, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(threads)
    assert choice.value == value
    assert f"bf16 {bf16:,.0f} and fp32 100" in choice.reason


def test_a_cpu_without_bf16_products_takes_fp32(rates, tmp_path):
    inputs = make_inputs(tmp_path, "pretrain")
    rates.side_effect = RuntimeError("could not create a primitive descriptor")
    assert choose_faster(*inputs).value == "fp32"
    rates.side_effect = RuntimeError("size mismatch")
    with pytest.raises(RuntimeError, match="size mismatch"):
        choose_faster(*inputs)


@pytest.mark.parametrize(
    ("fp32", "bf16", "least", "most"),
    [(1e-9, 2e-9, 2000, 3000), (1e-2, 2e-2, 40, 88), (1e-3, 5e-2, 1, 20)],
    ids=["all", "few", "emulated"],
)
def test_as_many_tokens_as_fit_are_timed_in_turns_and_the_fastest_passes_count(
    tmp_path, monkeypatch, fp32, bf16, least, most
):
    """Only every third pass is undisturbed."""
    passes = []

    def timed(layer, dtype, lengths):
        passes.append((dtype, sum(lengths)))
        disturbance = 1 if len(passes) // 2 % 3 == 0 else 1.5
        return disturbance * {None: fp32, torch.bfloat16: bf16}[dtype] * sum(lengths)

    monkeypatch.setattr(auto_precision, "time_pass", timed)
    plan, rows = make_inputs(tmp_path, "pretrain")
    assert measure_rates(plan, rows) == (pytest.approx(1 / fp32), pytest.approx(1 / bf16))
    assert [dtype for dtype, _ in passes] == [None, torch.bfloat16] * (len(passes) // 2)
    whole = sum(flatten(rows.take(list(range(100)))).lengths.tolist())
    assert min(least, whole) <= passes[-1][1] <= min(most, whole)


@pytest.mark.parametrize(("kind", "config"), [("pretrain", TINY), ("predict", ROTARY)])
def test_the_real_passes_are_those_of_the_job_and_draw_no_numbers(tmp_path, monkeypatch, kind, config):
    passes = set()

    def timed(layer, dtype, lengths):
        assert time_pass(layer, dtype, lengths) >= 0
        factor = layer.output.dense.factor
        gradient = None if factor.grad is None else factor.grad.dtype
        passes.add((isinstance(layer, RotaryLayer), layer.training, factor.dtype, gradient))
        return 1e-2 * sum(lengths)

    monkeypatch.setattr(auto_precision, "time_pass", timed)
    state = torch.get_rng_state()
    measure_rates(*make_inputs(tmp_path, kind, config))
    assert torch.equal(torch.get_rng_state(), state)
    training = kind == "pretrain"
    types = (torch.float32, torch.bfloat16)
    assert passes == {(config is ROTARY, training, dtype, dtype if training else None) for dtype in types}
    assert torch.is_grad_enabled()


@pytest.mark.soak
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
def test_a_cpu_without_bf16_instructions_is_no_error(job, limit):
    """oneDNN held to what it had before bf16: computed in emulation, or not at all (torch 2.0 with AVX2)."""
    done = finish(start_job(job, {"ONEDNN_MAX_CPU_ISA": limit}))
    assert done.code == 0, done.stderr
    assert planned(done)[1].startswith("auto: ")


@pytest.mark.parametrize("lost", [None, PRECISION.record], ids=["here", "on a host that only the checkpoints came to"])
def test_a_resumed_run_keeps_its_precision_whatever_is_measured_now(rates, tmp_path, pretrain_rows, job, lost):
    pausing(job, "saved")
    with pytest.raises(CheckpointError, match="plan.precision: bf16 -> fp32"):
        run_here(dataclasses.replace(job, precision="fp32"))
    rates.return_value = FP32_IS_FASTER
    if lost is not None:
        (Path(job.run_folder) / lost).unlink()
    resumed = run_here(job)
    assert (planned(resumed)[0], rates.call_count) == ("bf16", 1)
    result = result_of(job)
    assert result.resumed_from_step > 0
    assert (result.precision, result.plan["precision_reason"]) == planned(resumed)
    whole = make_job(tmp_path / "whole", "pretrain", pretrain_rows, precision="bf16")
    run_here(whole)
    torch.testing.assert_close(weights_of(job), weights_of(whole), rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["", '{"precision": ["bf16"]}', None])
def test_a_record_is_made_again_where_it_is_damaged_or_of_another_job(rates, job, damage):
    with pytest.raises(KeyboardInterrupt):  # as if killed before the first update: nothing is saved
        run_job(job, Mock(side_effect=KeyboardInterrupt), StopRequest())
    rates.return_value = FP32_IS_FASTER
    assert planned(run_here(job))[0] == "bf16"
    path = Path(job.run_folder) / PRECISION.record
    if damage is None:
        job = dataclasses.replace(job, seed=8)
    else:
        path.write_text(damage)
    assert planned(run_here(job))[0] == json.loads(path.read_text())["precision"] == "fp32"
    assert planned(run_here(dataclasses.replace(job, seed=8, precision="bf16")))[0] == "bf16"


def test_nothing_is_measured_where_it_decides_nothing(rates, tmp_path, answer_rows, job, monkeypatch):
    assert planned(run_here(dataclasses.replace(job, schedule=ScheduleConfig(steps=0))))[0] == "fp32"
    tuned = make_job(tmp_path / "tuned", "finetune", answer_rows)
    run_here(tuned)
    few = make_job(tmp_path / "few", "predict", answer_rows, precision="auto", init_checkpoint=tuned.output)
    assert planned(run_here(few))[0] == "fp32"
    assert rates.call_count == 0
    monkeypatch.setattr(auto_precision, "SHORT_FLOPS", 1000)
    many = dataclasses.replace(few, run_folder=str(tmp_path / "many"))
    assert planned(run_here(many))[0] == "bf16"
    assert rates.call_count == 1
    assert not (Path(many.run_folder) / PRECISION.record).exists()


@pytest.mark.soak
def test_two_processes_take_what_the_first_one_recorded(tmp_path, answer_rows):
    job = make_job(tmp_path / "two", "finetune", answer_rows, precision="auto")
    path = Path(job.run_folder) / PRECISION.record
    values = set()
    for _ in range(2):
        assert [done.code for done in run_two(job)] == [0, 0]
        record = json.loads(path.read_text())
        for folder in (Path(job.run_folder), Path(job.run_folder) / "instance-1"):
            assert JobResult.from_json((folder / "result.json").read_text()).precision == record["precision"]
        values.add(record["precision"])
        path.write_text(json.dumps({**record, "precision": {"fp32": "bf16", "bf16": "fp32"}[record["precision"]]}))
        shutil.rmtree(job.output)
    assert values == {"fp32", "bf16"}
