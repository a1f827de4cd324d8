"""Whole jobs and the executable cache of the host: a later process hits, another job misses and says why."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from tiny_ipu import ipu_job, ipu_runtime, make_batches
from tiny_jobs import Finished, finish, make_columns, make_job, run_here, start_job, write_rows

from ipu_model.core.errors import IpuFailure, LoadFailure
from ipu_model.jobs.job import BatchGeometry, Job
from tests.optimizers import optimizer_config


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any) -> Job:
    """Pre-training that is only compiled: two IPUs, two layers, 18 or so micro-batches of one row."""
    monkeypatch.setenv("PODIUM_EXECUTABLE_CACHE", str(tmp_path / "cache"))
    rows = tmp_path / "rows"
    write_rows(rows, "pretrain", make_columns("pretrain", 40))
    config = {"layers_per_ipu": [1, 1], "executable_cache_dir": "elsewhere"}
    compiling = {"geometry": BatchGeometry(36, 1), "compile_only": True, "ipu_config": config}
    return make_job(tmp_path, "pretrain", rows, runtime="ipu", **compiling)


def lines(finished: Finished, word: str) -> List[str]:
    return [x["text"] for x in finished.of("message") if word in x["text"]]


def test_a_second_process_finds_the_program_and_another_micro_batch_does_not(job: Job, tmp_path: Path) -> None:
    first = run_here(job)
    assert lines(first, "PODIUM_EXECUTABLE_CACHE, not executable_cache_dir elsewhere")
    assert lines(first, "miss, no executable yet")
    assert lines(first, "built, 1 file")

    second = finish(start_job(job))
    assert second.code == 0, second.stderr
    assert lines(second, "hit, 1 file")
    assert lines(second, "loaded from the cache, nothing was compiled")

    third = run_here(dataclasses.replace(job, geometry=BatchGeometry(36, 2)))
    assert "micro_batch_size 1 -> 2" in lines(third, "miss")[0]
    assert len(list((tmp_path / "cache").glob("*/*.popef"))) == 2


REASON = "the executable does not fit the gateway mode of this target"
DISCARDED = f"the cached program does not load on the attached IPUs ({REASON})"


@pytest.fixture
def run_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any, record: Any) -> Callable[..., Any]:
    """run_carried(loads, reason): the first update of a job, whose program a compile stage built without IPUs."""
    monkeypatch.delenv("PODIUM_EXECUTABLE_CACHE", raising=False)
    batch = make_batches("question_answering", 1, 16)[0]
    shared = str(tmp_path / "executables" / "squad-finetune")
    job = ipu_job("question_answering", optimizer_config(), tmp_path, 1, 1, executables=shared)
    ahead = ipu_runtime(dataclasses.replace(job, compile_only=True))
    ahead.compile(batch)
    ahead.close()
    shutil.rmtree(str(tmp_path / "executables" / ".live"))
    compile_program = poptorch.PoplarExecutor.compile

    def run(loads: Callable[[Dict[str, Any]], bool], reason: str = REASON) -> Tuple[str, List[str]]:
        """The origin of its program, and what it said; programs load where `loads` their record in the cache."""

        def compile_and_load(self: Any, *inputs: Any) -> None:
            compile_program(self, *inputs)
            if not loads(record()[-1]["cache"]):
                error = poptorch.Error(f"'poplar_runtime_error': {reason}")
                error.type, error.message, error.location = "poplar_runtime_error", reason, "Compiler.cpp"
                raise error

        said: List[str] = []
        runtime = ipu_runtime(job, said)
        with monkeypatch.context() as patched, closing(runtime):
            patched.setattr(poptorch.PoplarExecutor, "compile", compile_and_load)
            runtime.compile(batch)
            assert runtime.train_step(batch, 1e-3).loss > 0
        return runtime.program, [line for line in said if line.startswith("training")]

    return run


def test_a_program_that_the_attached_ipus_do_not_load_is_compiled_once_for_them(run_carried: Any) -> None:
    """PopART finds a program of the offline target by the same key, and poplar::Engine::load raises."""
    program, said = run_carried(lambda cache: not cache["hit"])
    assert program == f"built: {DISCARDED}"
    hit, miss, ready = said
    assert hit.startswith("training: hit, 1 file")
    assert miss == f"training: miss, {DISCARDED}: discarded, to be rebuilt"
    assert "built, 1 file" in ready
    assert "A hit was expected" not in ready
    program, said = run_carried(lambda cache: True)
    assert program == "loaded from the cache"


def test_a_program_that_does_not_load_where_it_was_compiled_names_the_cause(run_carried: Any, record: Any) -> None:
    before = len(record())
    with pytest.raises(LoadFailure, match=f"the attached IPUs do not load it.*firmware.*{REASON}") as failure:
        run_carried(lambda cache: False)
    assert "layers" not in str(failure.value)
    assert [x["cache"]["hit"] for x in record()[before:]] == [True, False]


def test_hardware_that_fails_while_a_program_is_loaded_leaves_the_program(run_carried: Any, record: Any) -> None:
    before = len(record())
    with pytest.raises(IpuFailure, match="lost the connection to the IPU-Machines"):
        run_carried(lambda cache: False, "Fabric error: connection not established: CONNECTION_KILL, device 3")
    assert [x["cache"]["hit"] for x in record()[before:]] == [True]
    assert run_carried(lambda cache: True)[0] == "loaded from the cache"
