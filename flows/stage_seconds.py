"""How long stages without a device take, as far as that is known before they run.

What a stage took in the last run of this checkout, else what docs/data-scale.md measured of each MB of text on two
cores: another host may take half of it, or twice as long. Of stages that neither knows nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows import report
from flows.preflight.disk import text_bytes
from flows.run_request import RunRequest
from tasks.preflight.foretelling import Interval
from tasks.project.parallel import worker_count

OTHER_HOST, AGAIN = 2.0, 1.25
"""How many times as long, or as short: on another host; of the same stage on the same host."""
LESS_MB, MORE_MB = 10.0, 1003.0
CPU_SECONDS: dict[str, tuple[float, float]] = {
    "corpus@text": (2.42, 135.2),
    "validate@corpus": (2.19, 15.3),
    "tokenizer": (2.14, 196.8),
    "pretrain_rows@phase1": (4.61, 409.9),
    "validate@phase1": (3.01, 60.31),
    "pretrain_rows@phase2": (4.76, 312.3),
    "validate@phase2": (2.55, 20.71),
}
"""Of one core at LESS_MB and at MORE_MB of text, from the table of docs/data-scale.md."""
SHARED = ("pretrain_rows@phase1", "pretrain_rows@phase2")
"""Stages whose work PODIUM_WORKERS processes share (tasks/preflight/estimate.py measures them, and loads libraries)."""


def stage_seconds(request: RunRequest, stages: Sequence[str]) -> dict[str, Interval]:
    """Seconds of those of these stages of which something is known.

    Args:
        request: the run.
        stages: that will run, and hold no device.
    """
    before = _last(request.project, request.root)
    text_mb = text_bytes(request) / 1e6
    found = {}
    for stage in stages:
        if stage in before:
            found[stage] = within(before[stage], AGAIN)
        elif stage in CPU_SECONDS and text_mb:
            found[stage] = within(_of_text(stage, text_mb), OTHER_HOST)
    return found


def within(likely: float, factor: float) -> Interval:
    """From so many times less to so many times more."""
    return Interval(likely / factor, likely, likely * factor)


def _last(project: Path, root: Path) -> dict[str, float]:
    """Stage -> seconds that it took in the last run of a checkout."""
    run = report.read(project, root)
    return {} if run is None else {one.name: one.seconds for one in run.stages if one.status == "ran"}


def _of_text(stage: str, text_mb: float) -> float:
    """On a straight line through what was measured; not below what the smaller text took, which is start-up."""
    less, more = CPU_SECONDS[stage]
    slope = (more - less) / (MORE_MB - LESS_MB)
    start = max(0.0, less - slope * LESS_MB)
    return start + slope * text_mb / (worker_count() if stage in SHARED else 1)
