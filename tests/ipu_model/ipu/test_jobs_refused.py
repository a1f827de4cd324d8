"""IPU jobs that cannot be run: refused before anything is compiled, with the arithmetic and a setting that works."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import pytest
from ipu_jobs import NUM_IPUS, ipu_job, model_folder, rows_of, run_code
from tiny_jobs import ROOT, finish, result_of, run_here, start_job

from ipu_model.core.errors import ConfigError, DeviceJobError
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from tests.optimizers import optimizer_config

LAMB = optimizer_config(name="lamb", learning_rate=1e-3)
PREDICTING = {"kind": "predict", "inference_execution": "pipelined"}


class Case(NamedTuple):
    """A job that is refused, and what the message says must be changed."""

    name: str
    message: str
    tried: Tuple[Dict[str, Any], Optional[Dict[str, Any]]]
    """The changes, and those with what the message proposes; None where it proposes no value."""
    type_: str = "ConfigError"


def batch(rows: int, micro_batch_size: int = 1, **rest: Any) -> Dict[str, Any]:
    """Rows hold one sequence each here, so the global batch counts rows."""
    return {"geometry": BatchGeometry(rows, micro_batch_size), **rest}


def config(**keys: Any) -> Dict[str, Any]:
    return {"ipu_config": keys}


def scaling(accumulators: str) -> Dict[str, Any]:
    """Automatic loss scaling, with gradients that accumulate in this precision."""
    optimizer = dataclasses.replace(LAMB, accumulator_precision=accumulators)
    return {"precision": "fp16", "optimizer": optimizer, **config(auto_loss_scaling=True)}


CASES = [
    Case(
        "too few micro-batches for the pipeline",
        r"gradient_accumulation_steps=8 cannot fill .* 0-1-2-3-0, 5 forward stages, 2x5-1 = 9 .*global_batch_size 9 ",
        (batch(8), batch(9)),
    ),
    Case(
        "a micro-batch that does not divide the global batch",
        r"micro_batch_size 2 x 1 replicas = 2 rows, 19 / 2 leaves 1\. Set global_batch_size to 18 or 20",
        (batch(19, 2), batch(18, 2)),
    ),
    Case(
        "a factor that does not divide the vocabulary",
        r"embedding_serialization_factor=7 must divide the vocabulary of 60 entries: 60 / 7 leaves 4\. Use 6 or 10$",
        (config(embedding_serialization_factor=7), config(embedding_serialization_factor=6)),
    ),
    Case(
        "IPUs that are not a power of two",
        r"ipus_per_replica=3 is not a power of two.*2 or 4 entries in layers_per_ipu",
        (config(layers_per_ipu=[2, 1, 1]), config(layers_per_ipu=[1, 1, 1, 1])),
    ),
    Case(
        "replicas that are not a power of two",
        r"4 IPUs x 3 replicas = 12 IPUs is not a power of two\. Set replication_factor to 2 or 4",
        (batch(27, **config(replication_factor=3)), batch(18, **config(replication_factor=2))),
    ),
    Case(
        "fewer rows than an update",
        r"has 40 rows .* = 48 rows: use more data, or set global_batch_size to at most 40",
        (batch(48), batch(40)),
        "RowsError",
    ),
    Case(
        "fewer rows than the pipeline needs",
        r"has 40 rows .* = 45 rows: .* 9 x micro_batch_size 5 x replication_factor 1 = 45 rows",
        (batch(45, 5), batch(36, 4)),
        "RowsError",
    ),
    Case(
        "too few iterations for pipelined inference",
        r"inference_device_iterations=3 .* 0-1-2-3, which are 4 stages\. Set inference_device_iterations to at least 4",
        (
            {**PREDICTING, **config(inference_device_iterations=3)},
            {**PREDICTING, **config(inference_device_iterations=4)},
        ),
    ),
    Case(
        "steps that no whole number of calls makes",
        r"steps=5 is not a multiple of the device_iterations=2 updates per call: set steps to 4 or 6",
        (
            {"schedule": ScheduleConfig(steps=5), **config(device_iterations=2)},
            {"schedule": ScheduleConfig(steps=4), **config(device_iterations=2)},
        ),
    ),
    Case(
        "a key that is not known",
        r"layer_per_ipu .*did you mean layers_per_ipu\?",
        (config(layer_per_ipu=[2, 2]), None),
    ),
    Case(
        "layers that do not add up",
        r"layers_per_ipu=\[1, 1, 1, 2\] places 5 encoder layers, the model has 4: .*\[-1, -1, -1, -1\], which is "
        r"\[1, 1, 1, 1\]",
        (config(layers_per_ipu=[1, 1, 1, 2]), config(layers_per_ipu=[-1, -1, -1, -1])),
    ),
    Case(
        "an accumulation that contradicts the global batch",
        r"gradient_accumulation_steps=16 .*global_batch_size 9 / .* = 9\. Remove .* or set global_batch_size to 16",
        (config(gradient_accumulation_steps=16), batch(16, **config(gradient_accumulation_steps=16))),
    ),
    Case(
        "replicas stated twice and differently",
        r"geometry.replication_factor=2 contradicts replication_factor=1",
        ({"geometry": BatchGeometry(18, 1, 2)}, batch(18, **config(replication_factor=2))),
    ),
    Case(
        "lamb with clipping",
        r"max_grad_norm=1 with lamb: .*Set max_grad_norm to null",
        ({"optimizer": dataclasses.replace(LAMB, max_grad_norm=1.0)}, {"optimizer": LAMB}),
    ),
    Case(
        "adamw without bias correction",
        r"bias_correction=false with adamw: the IPU applies bias correction anyway\. Set bias_correction to true",
        ({"optimizer": optimizer_config(bias_correction=False)}, {"optimizer": optimizer_config()}),
    ),
    Case(
        "automatic loss scaling of fp32 gradients",
        r"auto_loss_scaling=true .* in fp32: set optimizer\.accumulator_precision to fp16",
        (scaling("fp32"), scaling("fp16")),
    ),
    Case("bf16", r"IPUs compute in fp16 or fp32", ({"precision": "bf16"}, {"precision": "fp32"})),
]


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    """job_of(folder, **changes): pre-training on 40 rows of one sequence, 9 to an update; or predicting."""
    rows = rows_of(tmp_path / "rows" / "pretrain", "pretrain", 40, packed=False)
    questions = rows_of(tmp_path / "rows" / "squad", "question_answering", 9, packed=False)
    made: List[str] = []

    def make(folder: str, kind: str = "pretrain", **changes: Any) -> Job:
        if kind == "predict":
            if not made:
                made.append(model_folder(tmp_path / "model", questions))
            changes["init_checkpoint"] = made[0]
        return ipu_job(tmp_path / folder, kind, questions if kind == "predict" else rows, **changes)

    return make


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_refused_with_a_setting_that_works(
    case: Case, job_of: Callable[..., Job], record: Callable[[], List[Any]]
) -> None:
    changes, works = case.tried
    job = job_of("refused", **changes)
    with pytest.raises(DeviceJobError, match=case.message) as caught:
        run_here(job)
    assert type(caught.value).__name__ == case.type_
    assert record() == []
    assert not Path(job.output).exists()
    if works is not None:
        run_here(job_of("works", **works, compile_only=True))
        assert len(record()) == 1


def test_a_program_is_compiled_without_ipus_and_found_by_the_job_that_trains(
    job_of: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(cache))
    training, without = job_of("training"), dict.fromkeys(NUM_IPUS, "0")
    with monkeypatch.context() as patched:
        for name, count in without.items():
            patched.setenv(name, count)
        with pytest.raises(ConfigError, match="no IPUs found"):
            run_here(training)
    assert not list(cache.glob("*/*.popef"))
    compiling = job_of("compiling", compile_only=True)
    compiled = finish(start_job(compiling, without))
    assert compiled.code == 0, compiled.stderr
    assert len(list(cache.glob("*/*.popef"))) == 1
    assert not Path(compiling.output).exists()
    assert not list(Path(compiling.run_folder).glob("step-*"))
    result = result_of(compiling)
    assert (result.steps, result.sequences, result.final_loss) == (0, 0, None)
    assert any("nothing was compiled" in x["text"] for x in run_here(training).of("message"))
    assert Path(training.output).is_dir()


def test_without_poptorch_the_sdk_is_named(job_of: Callable[..., Job]) -> None:
    looked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('poptorch') is None)"
    found = run_code(looked, [], PYTHONPATH="")
    if found.code == 0:
        pytest.skip("PopTorch is installed into this Python: it cannot be taken away by PYTHONPATH")
    done = finish(start_job(job_of("job"), {"PYTHONPATH": str(ROOT)}))
    assert done.code == 2, done.stderr
    [error] = done.of("error")
    assert error["type"] == "ConfigError"
    for word in ("PopTorch", "Poplar SDK", "PODIUM_DEVICE_PYTHON", "set device.runtime to cpu"):
        assert word in error["text"]
