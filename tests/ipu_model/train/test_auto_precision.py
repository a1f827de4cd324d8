"""Precision `auto` on a CPU: what is measured and chosen, and that a run keeps what it began with.

Timings are given: no test depends on how fast the machine is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import pytest
import torch
from tiny_jobs import ROOT, TINY, make_columns, make_job, pausing, result_of, run_here, weights_of, write_rows
from tiny_torch import needs_compiler, run_two

from ipu_model.core.errors import CheckpointError
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import StopRequest
from ipu_model.jobs.job import Job, JobResult, ScheduleConfig
from ipu_model.jobs.plan import Choice, JobPlan, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Layer
from ipu_model.models.flat import flatten
from ipu_model.models.rotary import RotaryLayer
from ipu_model.rows.row_folder import RowFolder
from ipu_model.train import auto_precision
from ipu_model.train.auto_precision import (
    LEAST_TOKENS,
    MIN_SPEEDUP,
    PRECISION,
    SECONDS,
    choose_faster,
    measure_rates,
    time_pass,
)
from ipu_model.train.job_runner import run_job

FP32, BF16 = (200.0, 100.0), (100.0, 200.0)
"""Rates of fp32 and bf16."""
SMALL = ModelConfig(vocab_size=60, hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512, max_positions=32)
BASE = ModelConfig(vocab_size=60, max_positions=32)


class Rates:
    """Stands in for measure_rates: gives the rates that it is told to, and counts."""

    def __init__(self) -> None:
        self.given, self.calls, self.threads = BF16, 0, 0

    def __call__(self, plan: JobPlan, rows: RowFolder) -> Tuple[float, float]:
        self.calls, self.threads = self.calls + 1, torch.get_num_threads()
        return self.given


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rates]:
    """Rates in the place of measured ones."""
    fake = Rates()
    monkeypatch.setattr(auto_precision, "measure_rates", fake)
    threads = torch.get_num_threads()
    yield fake
    torch.set_num_threads(threads)


def messages(finished: Any) -> str:
    return "\n".join(event["text"] for event in finished.of("message"))


def planned(finished: Any) -> Any:
    (plan,) = finished.of("plan")
    return plan["precision"], plan["precision_reason"]


def ignore(event: str, **fields: Any) -> None:
    """No one reads."""


def make_inputs(folder: Path, kind: str, config: ModelConfig = TINY) -> Tuple[JobPlan, RowFolder]:
    """The plan of a job that pre-trains on 100 rows, or predicts for them, and these rows."""
    row_kind = "pretrain" if kind == "pretrain" else "question_answering"
    manifest = write_rows(folder / "rows", row_kind, make_columns(row_kind, 100))
    job = make_job(folder, kind, folder / "rows", init_checkpoint="somewhere")
    plan = make_plan(job, manifest, Choice("cpu", ""), Choice("auto", ""))
    return dataclasses.replace(plan, micro_batch_size=100), RowFolder(folder / "rows", row_kind, config)


ROTARY = dataclasses.replace(TINY, family="modernbert")
FASTER = [(100.0, 200.0, "bf16"), (100.0, 100 * MIN_SPEEDUP + 1, "bf16")]
NEAR = [(11825.0, 8184.0, "fp32"), (100.0, 100 * MIN_SPEEDUP, "fp32"), (100.0, 100.0, "fp32")]


@pytest.mark.parametrize(("fp32", "bf16", "value"), [*FASTER, *NEAR])
def test_the_faster_is_taken_and_fp32_where_they_are_near(
    rates: Rates, tmp_path: Path, fp32: float, bf16: float, value: str
) -> None:
    rates.given = (fp32, bf16)
    torch.set_num_threads(2)
    choice = choose_faster(*make_inputs(tmp_path, "pretrain"))
    assert (rates.threads, torch.get_num_threads()) == (1, 2)
    assert choice.value == value
    assert f"bf16 {bf16:,.0f} and fp32 {fp32:,.0f} tokens/s per layer" in choice.reason
    assert ("a gain below" in choice.reason) == (value == "fp32" and bf16 > fp32)


def test_a_cpu_without_bf16_products_takes_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> float:
        raise RuntimeError(message)

    inputs, message = make_inputs(tmp_path, "pretrain"), "could not create a primitive descriptor"
    monkeypatch.setattr(auto_precision, "time_pass", refuse)
    assert choose_faster(*inputs) == Choice("fp32", "auto: this torch has no bf16 matrix products for this CPU")
    message = "size mismatch"
    with pytest.raises(RuntimeError, match="size mismatch"):
        choose_faster(*inputs)


class Timings:
    """Stands in for time_pass: gives seconds in proportion to the tokens, every third pass undisturbed."""

    def __init__(self, fp32: float, bf16: float) -> None:
        self._of_token: Dict[Optional[torch.dtype], float] = {None: fp32, torch.bfloat16: bf16}
        self.passes: List[Tuple[Optional[torch.dtype], List[int]]] = []

    def __call__(self, layer: Layer, dtype: Optional[torch.dtype], lengths: List[int]) -> float:
        self.passes.append((dtype, lengths))
        disturbance = 1 if len(self.passes) // 2 % 3 == 0 else 1.5
        return disturbance * self._of_token[dtype] * sum(lengths)

    @property
    def tokens(self) -> List[int]:
        """Tokens of each pass."""
        return [sum(lengths) for _, lengths in self.passes]


@pytest.fixture
def time_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Timings]:
    """Puts seconds of a token in fp32 and in bf16 in the place of measured ones."""

    def put(fp32: float, bf16: float) -> Timings:
        timings = Timings(fp32, bf16)
        monkeypatch.setattr(auto_precision, "time_pass", timings)
        return timings

    return put


@pytest.mark.parametrize(("fp32", "bf16"), [(1e-5, 2e-5), (1e-3, 5e-4), (3e-3, 1e-2)])
def test_the_fastest_passes_of_alternating_rounds_are_compared(
    tmp_path: Path, time_with: Callable[[float, float], Timings], fp32: float, bf16: float
) -> None:
    timings = time_with(fp32, bf16)
    measured = measure_rates(*make_inputs(tmp_path, "pretrain"))
    assert measured == (pytest.approx(1 / fp32), pytest.approx(1 / bf16))
    assert [dtype for dtype, _ in timings.passes] == [None, torch.bfloat16] * (len(timings.passes) // 2)
    assert timings.tokens[0] < LEAST_TOKENS


def test_as_many_tokens_as_fit_are_measured(tmp_path: Path, time_with: Callable[[float, float], Timings]) -> None:
    plan, rows = make_inputs(tmp_path, "pretrain")
    lengths = flatten(rows.take(list(range(100)))).lengths.tolist()
    for of_token, least, most in ((1e-9, sum(lengths), sum(lengths)), (2e-4, 150, 600), (1e-2, 40, LEAST_TOKENS + 24)):
        timings = time_with(of_token, of_token)
        measure_rates(plan, rows)
        assert least <= timings.tokens[-1] <= most
        assert of_token == 1e-2 or of_token * sum(timings.tokens) < 1.5 * SECONDS
        assert of_token == 1e-2 or set(timings.passes[-1][1]) > {max(lengths)}, "long and short sequences"


def test_where_bf16_is_emulated_a_few_tokens_are_enough(
    tmp_path: Path, time_with: Callable[[float, float], Timings]
) -> None:
    timings = time_with(1e-3, 5e-2)
    fp32, bf16 = measure_rates(*make_inputs(tmp_path, "pretrain"))
    assert fp32 / bf16 == pytest.approx(50)
    assert sum(timings.tokens) < 100


@pytest.mark.parametrize("config", [TINY, SMALL, BASE, ROTARY], ids=["tiny", "small", "base", "rotary"])
@pytest.mark.parametrize("kind", ["pretrain", "predict"])
def test_the_real_passes_are_those_of_the_job_and_draw_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, config: ModelConfig
) -> None:
    layers: List[Tuple[bool, torch.dtype, Any]] = []

    def run(layer: Any, dtype: Optional[torch.dtype], lengths: List[int]) -> float:
        assert time_pass(layer, dtype, lengths) >= 0
        dense = layer.output.dense
        assert isinstance(layer, RotaryLayer) == (config is ROTARY)
        layers.append((layer.training, dense.factor.dtype, dense.factor.grad))
        return 1e-2 * sum(lengths)

    monkeypatch.setattr(auto_precision, "time_pass", run)
    state = torch.get_rng_state()
    assert measure_rates(*make_inputs(tmp_path, kind, config)) == (pytest.approx(100), pytest.approx(100))
    assert torch.equal(torch.get_rng_state(), state), "a training draws the same numbers with and without a measurement"
    assert {dtype for _, dtype, _ in layers} == {torch.float32, torch.bfloat16}
    for training, dtype, gradient in layers:
        assert training == (kind == "pretrain")
        assert (gradient is not None) == training
        assert gradient is None or gradient.dtype == dtype
    assert torch.is_grad_enabled()


LIMITED = """
import sys
from pathlib import Path
from test_auto_precision import SMALL, choose_faster, make_inputs
print(choose_faster(*make_inputs(Path(sys.argv[1]), "pretrain", SMALL)).reason)
"""


@pytest.mark.soak
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
def test_a_cpu_without_bf16_instructions_is_no_error(tmp_path: Path, limit: str) -> None:
    """oneDNN held to what it had before bf16: computed in emulation, or not at all (torch 2.0 with AVX2)."""
    tests = ROOT / "tests" / "ipu_model"
    paths = [ROOT, tests, *(tests / room for room in ("distributed", "runtimes", "train"))]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert done.stdout.startswith(("auto: measured bf16 ", "auto: this torch has no bf16 matrix products"))


class Follower(Instances):
    """A process that is not the first; the first one chose bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.votes: List[bool] = []

    @property
    def is_writer(self) -> bool:
        return False

    def join(self, runtime: str) -> None:
        """Nothing to join."""

    def any_instance(self, votes: Sequence[bool]) -> List[bool]:
        self.votes += votes
        return [True]


def test_other_processes_take_what_the_first_one_chose_and_measure_nothing(rates: Rates, tmp_path: Path) -> None:
    follower, rates.given = Follower(), FP32
    plan, rows = make_inputs(tmp_path, "pretrain")
    choice = PRECISION.resolve(plan, {}, tmp_path, follower, ignore, lambda: choose_faster(plan, rows))
    assert choice == Choice("bf16", "auto: chosen by instance 0")
    assert (rates.calls, follower.votes) == (0, [False])
    assert not (tmp_path / PRECISION.record).exists()


@pytest.fixture
def job(tmp_path: Path, pretrain_rows: Path) -> Job:
    return make_job(tmp_path / "auto", "pretrain", pretrain_rows, precision="auto")


@pytest.mark.parametrize("lost", [None, PRECISION.record], ids=["here", "on a host that only the checkpoints came to"])
def test_a_resumed_run_keeps_its_precision_whatever_is_measured_now(
    rates: Rates, tmp_path: Path, pretrain_rows: Path, job: Job, lost: Optional[str]
) -> None:
    pausing(job, "saved")
    rates.given = FP32
    if lost is not None:
        (Path(job.run_folder) / lost).unlink()
    resumed = run_here(job)
    assert planned(resumed) == ("bf16", "auto: measured bf16 200 and fp32 100 tokens/s per layer with 1 thread")
    assert "precision: bf16, recorded when this run started" in messages(resumed)
    assert rates.calls == 1
    result = result_of(job)
    assert result.resumed_from_step > 0
    assert (result.precision, result.plan["precision_reason"]) == planned(resumed)
    whole = make_job(tmp_path / "whole", "pretrain", pretrain_rows, precision="bf16")
    run_here(whole)
    one, other = (weights_of(each) for each in (job, whole))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_a_run_that_ended_before_its_first_update_keeps_its_precision(rates: Rates, tmp_path: Path, job: Job) -> None:
    def emit(name: str, **fields: Any) -> None:
        if name == "plan":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # as if killed: nothing is saved
        run_job(job, emit, StopRequest())
    rates.given = FP32
    assert planned(run_here(job))[0] == "bf16"
    assert rates.calls == 1


@pytest.mark.parametrize("damage", ["", "[]", '{"precision": []}', None])
def test_a_damaged_record_is_made_again(rates: Rates, tmp_path: Path, job: Job, damage: Optional[str]) -> None:
    run_here(job)
    path = Path(job.run_folder) / PRECISION.record
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "precision": ["bf16"]}) if damage is None else damage)
    rates.given = FP32
    assert planned(run_here(job))[0] == "fp32"
    assert json.loads(path.read_text()) == {
        **kept,
        "precision": "fp32",
        "reason": json.loads(path.read_text())["reason"],
    }


def test_another_job_in_the_same_folder_is_measured_anew(rates: Rates, tmp_path: Path, job: Job) -> None:
    run_here(job)
    rates.given = FP32
    assert planned(run_here(dataclasses.replace(job, seed=8)))[0] == "fp32"
    assert planned(run_here(dataclasses.replace(job, seed=8, precision="bf16"))) == ("bf16", "as requested")


def test_a_checkpoint_of_another_precision_is_still_refused(rates: Rates, job: Job) -> None:
    pausing(job, "saved")
    with pytest.raises(CheckpointError, match="plan.precision: bf16 -> fp32"):
        run_here(dataclasses.replace(job, precision="fp32"))


@needs_compiler
def test_a_job_that_only_compiles_and_the_training_after_it_agree(rates: Rates, tmp_path: Path, job: Job) -> None:
    compiled = dataclasses.replace(job, compile="optimizer")
    ahead = dataclasses.replace(compiled, compile_only=True, checkpoint_every_updates=0)
    assert planned(run_here(ahead))[0] == "bf16"
    rates.given = FP32
    assert planned(run_here(compiled))[0] == "bf16"


def test_nothing_is_measured_where_it_decides_nothing(
    rates: Rates, tmp_path: Path, answer_rows: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = dataclasses.replace(job, schedule=ScheduleConfig(steps=0))
    assert planned(run_here(still)) == ("fp32", "auto: the job has no updates")
    tuned = make_job(tmp_path / "tuned", "finetune", answer_rows)
    run_here(tuned)
    settings: Dict[str, Any] = {
        "precision": "auto",
        "init_checkpoint": tuned.output,
        "optimizer": None,
        "schedule": None,
    }
    few = make_job(tmp_path / "few", "predict", answer_rows, **settings)
    assert planned(run_here(few)) == ("fp32", "auto: the prediction takes less time than a measurement")
    assert rates.calls == 0
    monkeypatch.setattr(auto_precision, "SHORT_FLOPS", 1000)
    many = make_job(tmp_path / "many", "predict", answer_rows, **settings)
    assert planned(run_here(many))[0] == "bf16"
    assert rates.calls == 1
    assert not (Path(many.run_folder) / PRECISION.record).exists()


@pytest.mark.soak
def test_two_processes_take_what_the_first_one_recorded(tmp_path: Path, answer_rows: Path) -> None:
    job = make_job(tmp_path / "two", "finetune", answer_rows, precision="auto")
    path = Path(job.run_folder) / PRECISION.record
    value = "bf16"
    for number in range(2):
        first, second = run_two(job)
        assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
        value = planned(first)[0] if number == 0 else value
        assert planned(first)[0] == value
        folders = (Path(job.run_folder), Path(job.run_folder) / "instance-1")
        results = [JobResult.from_json((folder / "result.json").read_text()) for folder in folders]
        assert [result.precision for result in results] == [value, value]
        record = json.loads(path.read_text())
        value = {"fp32": "bf16", "bf16": "fp32"}[value]
        path.write_text(json.dumps({**record, "precision": value}))
        shutil.rmtree(job.output)
