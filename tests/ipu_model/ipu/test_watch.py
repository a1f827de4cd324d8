"""Compiling is watched: progress in lines, an end to what does not end, and the memory that a profile tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest
from tiny_ipu import ipu_job, ipu_runtime, make_batches
from tiny_jobs import ROOT, start

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.compile_watch import MB, CompileProfile, compile_timeout, watch_compile
from tests.optimizers import optimizer_config

HEAD = """
import sys, time
from ipu_model.ipu.compile_watch import watch_compile
from ipu_model.core.progress import Progress
"""


def child(body: str) -> subprocess.Popen[str]:
    return start([sys.executable, "-c", HEAD + body], {**os.environ, "PYTHONPATH": str(ROOT)})


class Events:
    """Takes events and lets a test wait for one."""

    def __init__(self) -> None:
        self.seen: List[Dict[str, Any]] = []
        self.came = threading.Event()

    def __call__(self, event: str, **fields: Any) -> None:
        self.seen.append({"event": event, **fields})
        self.came.set()


@pytest.mark.parametrize(
    ("bar", "far"), [("\rGraph compilation:  45%|####5     | 45/100 [01:02<01:16]", ", 45 %"), ("", "")]
)
def test_a_line_says_what_is_compiled_for_how_long_and_how_far(bar: str, far: str) -> None:
    events = Events()
    with watch_compile(events, None, every=0.01, what="the training program"):
        # As tqdm writes PopTorch's bar, which has no public way to hand over its share.
        sys.stderr.write(bar)
        events.came.clear()
        assert events.came.wait(5)
    assert events.seen[-1] == {"event": "message", "text": f"compiling the training program: 0 s{far}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_compilation_at_once(number: signal.Signals) -> None:
    process = child(
        "from ipu_model.distributed.process import StopRequest\n"
        "StopRequest().listen()\n"
        "with watch_compile(Progress(sys.stdout), 60.0):\n"
        "    print('compiling', flush=True)\n"
        "    time.sleep(60)\n"
    )
    assert process.stdout.readline() == "compiling\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number


def test_a_short_compilation_says_nothing_and_leaves_no_thread_and_no_handler() -> None:
    events, before, handler = Events(), threading.active_count(), signal.getsignal(signal.SIGTERM)
    with watch_compile(events, 60.0, what="it"):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with pytest.raises(KeyError), watch_compile(events, 60.0):
        raise KeyError("of the compiler")
    assert events.seen == []
    assert (threading.active_count(), signal.getsignal(signal.SIGTERM)) == (before, handler)


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        (None, 7200.0),
        ("0", None),
        ("1.5", 1.5),
        *((text, ConfigError) for text in ("1h", "-1", "nan", "inf")),
    ],
)
def test_the_limit_is_two_hours_unless_the_host_says_otherwise(stated: Optional[str], seconds: Any) -> None:
    environ = {} if stated is None else {"PODIUM_COMPILE_TIMEOUT": stated}
    if seconds is not ConfigError:
        assert compile_timeout(environ) == seconds
        return
    with pytest.raises(ConfigError, match="PODIUM_COMPILE_TIMEOUT="):
        compile_timeout(environ)


def asking(folder: Path, **more: str) -> Dict[str, str]:
    return {"POPLAR_ENGINE_OPTIONS": json.dumps({"autoReport.directory": str(folder), **more})}


def write(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "profile.pop"
    path.write_bytes(b"")
    os.utime(str(path), (at, at))
    return path


def stand_in_for_pva(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Two IPUs of two tiles; returns the paths that were opened."""
    tiles = [SimpleNamespace(memory=SimpleNamespace(total=SimpleNamespace(includingGaps=x * MB))) for x in (1, 2, 3, 4)]
    compilation = SimpleNamespace(target=SimpleNamespace(tilesPerIpu=2), tiles=tiles)
    opened: List[str] = []

    def open_report(name: str) -> Any:
        opened.append(name)
        return SimpleNamespace(compilation=compilation)

    module = ModuleType("pva")
    module.openReport = open_report  # type: ignore[attr-defined]
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "pva", module)
    return opened


@pytest.mark.parametrize("options", ['{"autoReport.all": "true"}', "{}", "{"])
def test_a_profile_of_another_program_counts_not(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there before, or no one asked for one."""
    opened = stand_in_for_pva(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "training", 1)
    profile = CompileProfile({"POPLAR_ENGINE_OPTIONS": options}, training=True)
    if "autoReport" not in options:
        write(tmp_path / "training", 2)
    profile.find()
    assert profile.fullest_ipu_mb() is None
    assert opened == []


@pytest.mark.ipu
@pytest.mark.parametrize("written", ["own", "", None], ids=["new", "written over", "from the cache"])
def test_a_job_states_the_memory_of_the_newest_profile_of_its_own_program(
    written: Optional[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    opened = stand_in_for_pva(monkeypatch)
    for name, value in asking(tmp_path / "profiles", **{"autoReport.all": "true"}).items():
        monkeypatch.setenv(name, value)
    training = tmp_path / "profiles" / "training"
    for folder, at in ((training / "old", 5), (training, 1), (training.with_name("inference"), 9)):
        write(folder, at)
    runtime = ipu_runtime(ipu_job("pretraining", optimizer_config(name="lamb", learning_rate=1e-3), tmp_path, 1, 1))
    compiled = poptorch.PoplarExecutor.compile

    def compile_with_profile(self: Any, *tensors: Any) -> Any:
        if written is not None:
            write(training / written, 7)
        return compiled(self, *tensors)

    monkeypatch.setattr(poptorch.PoplarExecutor, "compile", compile_with_profile)
    assert runtime.peak_device_memory_mb() is None
    runtime.compile(make_batches("pretraining", 1, 16)[0])
    assert runtime.peak_device_memory_mb() == (None if written is None else 7.0)
    assert opened == ([] if written is None else [str(training / written / "profile.pop")])
    runtime.close()
