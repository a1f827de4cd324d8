"""Constants of the estimates for CPU and CUDA, each with where it comes from.

Fitted ones come from `python -m bench.host_estimates`, whose table is docs/host-estimates.md: on configurations that
it calls "fitted", and judged on the others.
"""

from __future__ import annotations

from typing import Dict

MIB = 1 << 20

PROCESS_BYTES: Dict[str, int] = {"cpu": 290 * MIB, "cuda": 1200 * MIB}
"""Resident memory of a device process before it has a model: Python, torch, NumPy and Arrow with their libraries.
cpu: torch 2.13 built for the CPU. cuda: not measured; a torch built for CUDA maps larger libraries."""
KERNEL_BYTES: Dict[str, int] = {"fp32": 40 * MIB, "bf16": 70 * MIB}
"""What oneDNN keeps on a CPU: compiled kernels, and buffers to which products copy their factors."""
SLACK = 1.08
"""Memory that the C library holds per byte in use at the fullest instant of training: holes between tensors of sizes
that change from one micro-batch to the next."""
HIGHEST_OVER_LIKELY, LOWEST_OVER_LIKELY = 1.03, 0.77
"""Ends of the interval around an estimate of memory: a peak was never more than 1.03 times what was foretold."""
CUDA_CONTEXT_BYTES = 600 * MIB
"""Memory of a GPU that the CUDA context and the libraries of products take. Not measured: no GPU was at hand."""
CUDA_SLACK = 1.15
"""As SLACK, of torch's caching allocator on a GPU. Not measured."""
CUDA_LOWEST, CUDA_HIGHEST = 0.6, 1.4
"""Ends of the interval around an estimate of a GPU's memory. Not measured, hence wide."""
PROBE_ERROR = 0.15
"""How far off the time of a run may be after a probe, as a share: what the issue asks for, and the study holds."""
