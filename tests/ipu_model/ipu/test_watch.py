"""Compiling is watched: progress in lines, an end to what does not end, and the memory that a profile tells."""

import json
import os
import signal
import sys
import threading
from contextlib import closing
from types import ModuleType, SimpleNamespace

import pytest
from tiny_ipu import ipu_job, ipu_runtime, make_batches
from tiny_jobs import start

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.compile_watch import MB, CompileProfile, compile_timeout, watch_compile

COMPILING = """
import sys, time
from ipu_model.core.progress import Progress
from ipu_model.distributed.process import StopRequest
from ipu_model.ipu.compile_watch import watch_compile
StopRequest().listen()
with watch_compile(Progress(sys.stdout), 60.0):
    print('compiling', flush=True)
    time.sleep(60)
"""


class Events:
    """Takes events and lets a test wait for one."""

    def __init__(self):
        self.seen = []
        self.came = threading.Event()

    def __call__(self, event, **fields):
        self.seen.append({"event": event, **fields})
        self.came.set()


@pytest.mark.parametrize(
    ("bar", "far"), [("\rGraph compilation:  45%|####5     | 45/100 [01:02<01:16]", ", 45 %"), ("", "")]
)
def test_a_line_says_what_is_compiled_for_how_long_and_how_far(bar, far):
    events = Events()
    with watch_compile(events, None, every=0.01, what="the training program"):
        # As tqdm writes PopTorch's bar, which has no public way to hand over its share.
        sys.stderr.write(bar)
        events.came.clear()
        assert events.came.wait(5)
    assert events.seen[-1] == {"event": "message", "text": f"compiling the training program: 0 s{far}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_compilation_at_once(number):
    process = start([sys.executable, "-c", COMPILING])
    assert process.stdout.readline() == "compiling\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number


def test_a_short_compilation_says_nothing_and_leaves_no_thread_and_no_handler():
    events, before, handler = Events(), threading.active_count(), signal.getsignal(signal.SIGTERM)
    with watch_compile(events, 60.0, what="it"):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with pytest.raises(KeyError), watch_compile(events, 60.0):
        raise KeyError("of the compiler")
    assert events.seen == []
    assert (threading.active_count(), signal.getsignal(signal.SIGTERM)) == (before, handler)


def test_the_limit_is_two_hours_unless_the_host_says_otherwise():
    name = "PODIUM_COMPILE_TIMEOUT"
    assert [compile_timeout(x) for x in ({}, {name: "0"}, {name: "1.5"})] == [7200.0, None, 1.5]
    for text in ("1h", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match=f"{name}="):
            compile_timeout({name: text})


def write(folder, at):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "profile.pop"
    path.write_bytes(b"")
    os.utime(str(path), (at, at))


@pytest.fixture
def opened(monkeypatch):
    """The paths that a stand-in for libpva opened: profiles of two IPUs of two tiles."""
    tiles = [SimpleNamespace(memory=SimpleNamespace(total=SimpleNamespace(includingGaps=x * MB))) for x in (1, 2, 3, 4)]
    compilation = SimpleNamespace(target=SimpleNamespace(tilesPerIpu=2), tiles=tiles)
    paths = []

    def open_report(name):
        paths.append(name)
        return SimpleNamespace(compilation=compilation)

    module = ModuleType("pva")
    module.openReport = open_report
    module.__spec__ = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "pva", module)
    return paths


@pytest.mark.parametrize("options", ['{"autoReport.all": "true"}', "{}", "{"])
def test_a_profile_of_another_program_counts_not(options, tmp_path, monkeypatch, opened):
    """It was there before, or no one asked for one."""
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
def test_a_job_reports_the_memory_of_the_newest_profile_of_its_own_program(
    written, tmp_path, monkeypatch, poptorch, opened
):
    options = {"autoReport.directory": str(tmp_path / "profiles"), "autoReport.all": "true"}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(options))
    training = tmp_path / "profiles" / "training"
    for folder, at in ((training / "old", 5), (training, 1), (training.with_name("inference"), 9)):
        write(folder, at)
    compiled = poptorch.PoplarExecutor.compile

    def compile_with_profile(self, *tensors):
        if written is not None:
            write(training / written, 7)
        return compiled(self, *tensors)

    monkeypatch.setattr(poptorch.PoplarExecutor, "compile", compile_with_profile)
    with closing(ipu_runtime(ipu_job(tmp_path, "pretrain"))) as runtime:
        assert runtime.peak_device_memory_mb() is None
        runtime.compile(make_batches("pretrain", 1, 16)[0])
        assert runtime.peak_device_memory_mb() == (None if written is None else 7.0)
    assert opened == ([] if written is None else [str(training / written / "profile.pop")])
