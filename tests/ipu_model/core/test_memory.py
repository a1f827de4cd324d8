"""The memory that a host and its limits allow, from made-up files of the kernel."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from tiny_jobs import ROOT, make_job

from ipu_model.core import memory
from ipu_model.core.memory import memory_limit, reserve_memory
from ipu_model.distributed.process import StopRequest, Terminated
from ipu_model.train.job_runner import run_job

HOLD = """
import sys
from pathlib import Path
from ipu_model.core.memory import reserve_memory
with reserve_memory(600, exit, Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
"""

MEMINFO = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  4000 kB\n"}
CGROUP = {
    "proc/self/cgroup": "0::/pod/job\n",
    "sys/fs/cgroup/pod/job/memory.max": "max\n",
    "sys/fs/cgroup/pod/memory.max": "2000000\n",
}
OLD_CGROUP = {"proc/self/cgroup": "4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000\n"}


@pytest.mark.parametrize(
    ("files", "limit", "found"),
    [
        ({}, None, None),
        (MEMINFO, None, 8192000),
        ({**MEMINFO, **CGROUP}, None, 2000000),
        ({**MEMINFO, **OLD_CGROUP}, None, 3000000),
        (MEMINFO, 5000000, 5000000),
        ({}, 5000000, 5000000),
    ],
)
def test_the_least_of_host_cgroups_and_limits_counts(
    files: Dict[str, str], limit: Optional[int], found: Optional[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    bound = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda which: (bound, bound))
    assert memory_limit(tmp_path) == found
    if found is not None:
        assert memory_limit(tmp_path, others=1000) == (found if found == limit else found - 1000)


@contextlib.contextmanager
def other_job(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds 600 bytes."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def refuse() -> None:
    raise AssertionError("it waited")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    monkeypatch.setattr(memory, "POLL_SECONDS", 0.05)


@pytest.mark.usefixtures("limit")
def test_a_job_begins_when_what_others_hold_leaves_it_room(tmp_path: Path) -> None:
    waited: List[int] = []
    with other_job(tmp_path) as other:

        def wait() -> None:
            waited.append(len(list(tmp_path.glob("job-*"))))
            other.kill()
            other.wait()

        with reserve_memory(400, refuse, tmp_path):
            assert len(list(tmp_path.glob("job-*"))) == 2
        assert len(list(tmp_path.glob("job-*"))) == 1
        with reserve_memory(401, wait, tmp_path):
            assert len(list(tmp_path.glob("job-*"))) == 1  # what the killed one left is gone
    assert waited == [1]
    with reserve_memory(5000, refuse, tmp_path):  # alone, it may try
        pass
    assert not list(tmp_path.glob("job-*"))


def test_a_job_needs_no_folder_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with reserve_memory(1, refuse, tmp_path / "file" / "folder"):
        pass


@pytest.mark.usefixtures("limit")
def test_a_training_that_waits_for_memory_says_so_once_and_stops_on_request(
    pretrain_rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"podium-memory-{os.getuid()}"
    folder.mkdir()
    stop, said, looks = StopRequest(), [], []

    def emit(event: str, **fields: Any) -> None:
        said.extend(text for text in [fields.get("text", "")] if "waiting for" in text)

    def time_is_up(seconds_needed: float) -> bool:
        looks.append(seconds_needed)
        stop.requested = len(looks) == 3
        return stop.requested

    monkeypatch.setattr(stop, "time_is_up", time_is_up)
    with other_job(folder), pytest.raises(Terminated):
        run_job(make_job(tmp_path / "job", "pretrain", pretrain_rows), emit, stop)
    assert len(looks) == 3
    (text,) = said
    assert text.endswith("of memory that other jobs on this host reserve")
    assert not list((tmp_path / "job").rglob("model.safetensors"))
