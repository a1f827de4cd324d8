"""How many stages this host has room for at once."""

from __future__ import annotations

import os

from ipu_model.memory import free_memory
from tasks.project.errors import ParamsError

STAGES_AT_ONCE = "PODIUM_STAGES_AT_ONCE"
MOST = 4
"""More branches than that are rare, and each stage has processes of its own (PODIUM_WORKERS)."""
BYTES_OF_A_STAGE = 4e9
"""What a stage without a device may take of memory, all its processes together: half of it in docs/data-scale.md."""


def stages_at_once() -> int:
    """Stages without a device that run at the same time here: PODIUM_STAGES_AT_ONCE, or what cores and memory allow.

    It belongs to the host, and changes no result.

    Raises:
        ParamsError: PODIUM_STAGES_AT_ONCE is no whole number of at least 1.
    """
    text = os.environ.get(STAGES_AT_ONCE, "").strip()
    if not text:
        free = free_memory()
        room = MOST if free is None else int(free / BYTES_OF_A_STAGE)
        return max(1, min(MOST, len(os.sched_getaffinity(0)), room))
    if not text.isdecimal() or int(text) < 1:
        raise ParamsError(f"{STAGES_AT_ONCE}={text!r} must be a whole number of stages, at least 1 (or unset)")
    return int(text)
