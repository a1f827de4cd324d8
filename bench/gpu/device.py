"""The device that is measured: a GPU, or the CPU in its place in the command's own test."""

from __future__ import annotations

import time

import torch

from bench.gpu.cases import CPU

SIZES = (4096, 8192)
TEST_SIZES = (64,)
REPEATS = 10


def read_clock(device: str) -> float:
    """Return the seconds of a clock, once all work of the device has ended."""
    if device != CPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def read_peak_memory_mb(device: str) -> float:
    """Return the peak memory of this process on the device in MB of 2**20 bytes, and start again; 0 on a CPU."""
    if device == CPU:
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return peak


def describe_device(device: str) -> dict[str, str]:
    """Return name, driver and versions."""
    facts = {"device": "a CPU in place of a GPU", "torch": torch.__version__}
    if device != CPU:
        capability = "{}.{}".format(*torch.cuda.get_device_capability())
        facts |= {"device": torch.cuda.get_device_name(), "compute capability": capability}
        facts |= {"cuda": str(torch.version.cuda), "memory": f"{torch.cuda.mem_get_info()[1] / 2**30:.0f} GiB"}
    return facts


def measure_matrix_peak(device: str) -> float:
    """Return the operations per second of the fastest of several large bf16 products."""
    best = 0.0
    for size in TEST_SIZES if device == CPU else SIZES:
        left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
        torch.mm(left, right)
        for _ in range(REPEATS):
            began = read_clock(device)
            torch.mm(left, right)
            best = max(best, 2 * size**3 / (read_clock(device) - began))
    return best
