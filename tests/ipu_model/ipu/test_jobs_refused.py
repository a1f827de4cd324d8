"""IPU jobs that cannot be run: refused before anything is compiled, with the arithmetic and a setting that works."""

import dataclasses
from pathlib import Path

import pytest
from tiny_ipu import FOUR_LAYERS, LAMB, ipu_job, rows_of, run_code
from tiny_jobs import ROOT, finish, make_job, result_of, run_here, start_job

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import BatchGeometry, ScheduleConfig

NUM_IPUS = ("PODIUM_DOUBLE_IPUS", "POPTORCH_STANDIN_NUM_IPUS")
"""Environment variables that say how many IPUs the double, and an emulated core, have."""


def batch(rows, micro_batch_size=1, replicas=1):
    """Rows hold one sequence each here, so the global batch counts rows."""
    return {"geometry": BatchGeometry(rows, micro_batch_size, replicas)}


def config(**keys):
    return {"ipu_config": keys}


def layers(*counts):
    return config(layers_per_ipu=list(counts))


def predicting(iterations):
    return {"kind": "predict", "inference_execution": "pipelined", **config(inference_device_iterations=iterations)}


def scaling(accumulators):
    """Automatic loss scaling, with gradients that accumulate in this precision."""
    optimizer = dataclasses.replace(LAMB, accumulator_precision=accumulators)
    return {"precision": "fp16", "optimizer": optimizer, **config(auto_loss_scaling=True)}


def steps(number):
    return {"schedule": ScheduleConfig(steps=number), **config(device_iterations=2)}


SIXTEEN = config(gradient_accumulation_steps=16)
CASES = [
    ("2x5-1 = 9 .*global_batch_size 9 ", batch(8), batch(9)),
    ("global_batch_size to 18 or 20", batch(19, 2), batch(18, 2)),
    ("factor=7 .*Use 6 or 10$", config(embedding_serialization_factor=7), config(embedding_serialization_factor=6)),
    ("ipus_per_replica=3 .*2 or 4 entries in layers_per_ipu", layers(2, 1, 1), layers(1, 1, 1, 1)),
    ("global_batch_size to at most 40", batch(48), batch(40)),
    ("9 x micro_batch_size 5 .* = 45 rows", batch(45, 5), batch(36, 4)),
    ("inference_device_iterations to at least 4", predicting(3), predicting(4)),
    ("set steps to 4 or 6", steps(5), steps(4)),
    (r"places 5 .* has 4: .*\[-1, -1, -1, -1\]", layers(1, 1, 1, 2), layers(-1, -1, -1, -1)),
    ("accumulation_steps=16 .*global_batch_size to 16", SIXTEEN, {**batch(16), **SIXTEEN}),
    ("replication_factor=2 contradicts", batch(18, 1, 2), {**batch(18), **config(replication_factor=2)}),
    ("optimizer.accumulator_precision to fp16", scaling("fp32"), scaling("fp16")),
    ("fp16 or fp32", {"precision": "bf16"}, {"precision": "fp32"}),
]
"""Words of the refusal; the changes of a job that is refused, and those with what the message proposes."""


@pytest.fixture
def job_of(tmp_path):
    """job_of(folder, **changes): pre-training on 40 rows of one sequence, 9 to an update; or predicting."""
    rows = rows_of(tmp_path / "rows", "pretrain", 40, packed=False)

    def make(folder, kind="pretrain", **changes):
        if kind == "pretrain":
            return ipu_job(tmp_path / folder, kind, rows, 9, **changes)
        questions = rows_of(tmp_path / folder / "rows", "question_answering", 9, packed=False)
        still = {"schedule": ScheduleConfig(steps=0), "geometry": BatchGeometry(2)}
        model = make_job(tmp_path / folder / "model", "finetune", questions, model=FOUR_LAYERS, **still)
        run_here(model)
        return ipu_job(tmp_path / folder, kind, questions, 9, init_checkpoint=model.output, **changes)

    return make


@pytest.mark.parametrize(("message", "changes", "works"), CASES, ids=[case[0] for case in CASES])
def test_it_is_refused_with_a_setting_that_works(message, changes, works, job_of, record):
    job = job_of("refused", **changes)
    with pytest.raises(RowsError if message.endswith(("40", "rows")) else ConfigError, match=message):
        run_here(job)
    assert record() == []
    assert not Path(job.output).exists()
    run_here(job_of("works", **works, compile_only=True))
    assert len(record()) == 1


def test_a_program_is_compiled_without_ipus_and_found_by_the_job_that_trains(job_of, tmp_path, monkeypatch, poptorch):
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


def test_without_poptorch_the_sdk_is_named(job_of):
    looked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('poptorch') is None)"
    if run_code(looked, [], PYTHONPATH="").code == 0:
        pytest.skip("PopTorch is installed into this Python: it cannot be taken away by PYTHONPATH")
    done = finish(start_job(job_of("job"), {"PYTHONPATH": str(ROOT)}))
    assert done.code == 2, done.stderr
    [error] = done.of("error")
    assert error["type"] == "ConfigError"
    for word in ("PopTorch", "Poplar SDK", "PODIUM_DEVICE_PYTHON", "device.runtime"):
        assert word in error["text"]
