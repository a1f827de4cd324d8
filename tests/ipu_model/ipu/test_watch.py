"""Compiling is watched: progress in lines, and an end to what does not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Dict, List, Optional

import pytest
from tiny_jobs import ROOT, start

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.compile_watch import compile_timeout, watch_compile

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
