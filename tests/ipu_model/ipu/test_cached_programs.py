"""Whole jobs and the executable cache of the host: a later process hits, another job misses and says why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List

import pytest
from tiny_jobs import Finished, finish, make_columns, make_job, run_here, start_job, write_rows

from ipu_model.jobs.job import BatchGeometry, Job


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
