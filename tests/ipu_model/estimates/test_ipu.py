"""The door to the estimates of IPUs: jobs as they are, and no torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, Dict

import pytest
from tiny_jobs import ROOT

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.estimates.ipu import estimate_ipus, moment_bytes, plan_for_estimate
from ipu_model.estimates.ipu_constants import BOW, FITTED
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from tests.optimizers import optimizer_config

BASE = ModelConfig(vocab_size=30522)
ROWS = Manifest("pretrain", 128, 1, 20, 30522, "0", 0, 1_000_000, 1_000_000, 100_000_000, {})
CONFIG: Dict[str, Any] = {
    "layers_per_ipu": [0, 4, 4, 4],
    "replication_factor": 4,
    "inference_replication_factor": 2,
    "inference_device_iterations": 5,
    "matmul_proportion": 0.25,
    "optimizer_state_offchip": True,
    "recompute_checkpoint_every_layer": True,
}


def job_of(**changes: Any) -> Job:
    """Phase 1 of BERT base on a POD16, 10 updates."""
    values: Dict[str, Any] = {
        "kind": "pretrain",
        "head": "pretraining",
        "geometry": BatchGeometry(65536, 32),
        "runtime": "ipu",
        "model": BASE,
        "optimizer": optimizer_config("lamb"),
        "schedule": ScheduleConfig(steps=10),
        "ipu_config": CONFIG,
    }
    return Job(rows="", output="", run_folder="", **{**values, **changes})


def test_a_training_by_its_job() -> None:
    plan = plan_for_estimate(job_of(), BASE, ROWS)
    assert (plan.accumulation, plan.replicas, plan.placement.forward_stages, plan.half) == (512, 4, 5, True)
    found = estimate_ipus(job_of(), BASE, ROWS)
    assert found.device == "16 IPUs Mk2, 4 replicas of 4"
    assert sorted(memory.where for memory in found.memory) == [f"IPU {ipu} of 4" for ipu in range(4)]
    time = found.time
    assert time is not None
    assert time.updates == 10
    assert time.update_seconds.likely == pytest.approx(sum(term.amount for term in time.terms))
    assert time.sequences_per_second.likely == pytest.approx(65536 / time.update_seconds.likely)
    assert time.sequences_per_second.low < 11700 < time.sequences_per_second.high, "Paddle's"
    assert "IPU 1" in time.largest.name


def test_packed_rows_hold_more_sequences_and_a_bow_is_faster() -> None:
    packed = dataclasses.replace(ROWS, max_sequences=3, sequences=1_170_000)
    one, more, bow = (
        estimate_ipus(job_of(), BASE, rows, *generation).time for rows, *generation in ((ROWS,), (packed,), (ROWS, BOW))
    )
    assert one is not None
    assert more is not None
    assert bow is not None
    assert more.update_seconds.likely < one.update_seconds.likely, "fewer rows for as many sequences"
    assert more.sequences_per_second.likely > one.sequences_per_second.likely
    assert bow.update_seconds.likely < one.update_seconds.likely
    assert estimate_ipus(job_of(), BASE, ROWS, BOW).memory == estimate_ipus(job_of(), BASE, ROWS).memory


@pytest.mark.parametrize(
    ("iterations", "largest", "advice"),
    [
        (5, "host between calls", "inference_device_iterations"),
        (5000, "forward pass of a call", "inference_replication_factor"),
    ],
)
def test_a_prediction_is_told_in_calls_and_advises_on_the_larger_share(
    iterations: int, largest: str, advice: str
) -> None:
    """2 replicas x 5 iterations x 8 rows are a call of 80: 1,000,000 rows take 12,500."""
    config = {**CONFIG, "inference_device_iterations": iterations}
    values: Dict[str, Any] = {"optimizer": None, "schedule": None, "ipu_config": config}
    predict = job_of(kind="predict", head="question_answering", geometry=BatchGeometry(8, 8), **values)
    rows = dataclasses.replace(ROWS, max_predictions=0, kind="question_answering")
    found = estimate_ipus(predict, BASE, rows)
    assert found.device == "8 IPUs Mk2, 2 replicas of 4"
    time = found.time
    assert time is not None
    assert time.updates == -(-1_000_000 // (16 * iterations))
    assert time.sequences_per_second.likely == pytest.approx(16 * iterations / time.update_seconds.likely)
    shares = {term.name: term.amount for term in time.terms}
    assert shares["host between calls"] == FITTED.host
    assert sum(shares.values()) == pytest.approx(time.update_seconds.likely)
    assert (time.largest.name, time.largest.knob.partition(":")[0]) == (largest, advice)
    assert found.memory[0].total.likely < estimate_ipus(job_of(), BASE, ROWS).memory[0].total.likely


def test_precisions_decide_the_bytes() -> None:
    half, whole = (estimate_ipus(job_of(precision=precision), BASE, ROWS).memory for precision in ("fp16", "fp32"))
    weights = [next(term.amount for term in memory[0].terms if term.name == "weights") for memory in (half, whole)]
    assert weights[1] == 2 * weights[0]
    lamb, sgd = optimizer_config("lamb"), optimizer_config("sgd")
    assert [moment_bytes(x, True) for x in (lamb, sgd, None)] == [6.0, 2.0, 0.0]
    assert moment_bytes(dataclasses.replace(lamb, first_moment_precision="fp32"), True) == 8.0


def test_what_cannot_run_is_refused_with_the_arithmetic_of_planning() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=100 cannot be cut"):
        estimate_ipus(job_of(geometry=BatchGeometry(100, 32)), BASE, ROWS)
    with pytest.raises(RowsError, match="one update needs"):
        estimate_ipus(job_of(), BASE, dataclasses.replace(ROWS, rows=5, sequences=5))


def test_neither_torch_nor_poptorch_is_imported() -> None:
    code = "import sys, ipu_model.estimates.ipu; print(sorted({'torch', 'poptorch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
    assert done.stdout.strip() == b"[]"
