"""Time of an update by kernel of the device, and the gaps between them."""

from __future__ import annotations

import re
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.gpu.cases import CPU, GpuCase, HeldRows
from bench.gpu.device import read_clock
from bench.gpu.ours import RATE, start_updates

WARMUP, UPDATES, HEAVIEST = 4, 3, 10
GROUPS = (
    ("attention", re.compile(r"flash|fmha|attention", re.I)),
    ("products", re.compile(r"gemm|cutlass|cublas|xmma|wgmma|\bb?mm\b|addmm|nvjet", re.I)),
    ("copies", re.compile(r"memcpy|memset|copy_", re.I)),
)
"""Group of kernels -> its names; all others are passes over memory."""
PASSES, GAPS = "passes over memory", "gaps"


def find_group(kernel: str) -> str:
    """Return the group of a kernel by its name."""
    return next((name for name, pattern in GROUPS if pattern.search(kernel)), PASSES)


def profile_updates(case: GpuCase, device: str) -> dict[str, Any]:
    """Return the share of each group of kernels in the time of an update, and the heaviest kernels."""
    rows = HeldRows(case)
    job = case.make_job(device, WARMUP + UPDATES)
    on_gpu = device != CPU
    with start_updates(job, rows, WARMUP) as (runtime, _, batches):
        prepared = list(batches)
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiled:
            began = read_clock(device)
            for batch in prepared:
                runtime.train_step(batch, RATE)
            seconds = read_clock(device) - began
    attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    kernels = sorted((getattr(one, attribute) * 1e-6, one.key, one.count) for one in profiled.key_averages())[::-1]
    shares: dict[str, float] = {}
    for spent, kernel, _ in kernels:
        group = find_group(kernel)
        shares[group] = shares.get(group, 0.0) + spent / seconds
    shares[GAPS] = max(0.0, 1.0 - sum(shares.values()))
    heaviest = [
        {"kernel": kernel, "group": find_group(kernel), "share": spent / seconds, "calls": count / UPDATES}
        for spent, kernel, count in kernels[:HEAVIEST]
    ]
    return {"case": case.name, "seconds": seconds / UPDATES, "shares": shares, "heaviest": heaviest}
