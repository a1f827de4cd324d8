"""What a probe found: a few updates of a job, on its rows, on its device (train/probing.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional


@dataclass(frozen=True)
class Probed:
    """Seconds of CPU time of all threads, and of the clock, in the parts that an update is made of."""

    runtime: str
    precision: str
    precision_reason: str
    threads: int
    """Of this process."""
    micro_batches: int
    """That were timed."""
    tokens: float
    """Real tokens of one of them on average."""
    cpu_seconds_of_micro_batch: float
    """Forward and backward, reading included."""
    cpu_seconds_of_update: float
    """What an update takes beside its micro-batches: clipping and the optimizer."""
    seconds_of_micro_batch: float
    seconds_of_update: float
    peak_memory_mb: float
    """Of this process, MB of 2**20 bytes."""
    peak_device_memory_mb: Optional[float] = None
    """Of tensors on the GPU, where there is one."""
    device_memory_mb: Optional[float] = None
    """All that the GPU has."""
    shapes: Optional[Dict[str, Any]] = None
    """Of some micro-batches of the job: estimates.host_shapes.Shapes as plain data."""
