"""Constants of the estimates for CPU and CUDA, each with where it comes from.

Fitted ones come from `python -m bench.host_estimates`, whose table is docs/host-estimates.md: on configurations that
it says "fit" of, and judged on the others.
"""

from __future__ import annotations

from typing import Dict

MIB = 1 << 20

PROCESS_BYTES = 348 * MIB
"""Resident memory of a device process on a CPU before it has a model, and its kernels. Python 3.11 and torch 2.13 built
for the CPU take 219 MB when they are imported."""
COMPILER_BYTES = 71 * MIB
"""Resident memory that importing torch._dynamo adds to torch 2.13 built for the CPU, Python 3.11, measured."""
HOLES_OF_TABLE = 2.0
"""Bytes that the C library holds between tensors for each byte of the word table in fp32, the largest tensor of a
model: a hole as large is taken by smaller ones before it is needed again."""
HOLES_OF_LOGITS = 0.69
"""The same for each byte of vocabulary logits."""
HOLES_OF_PASSES: Dict[str, float] = {"fp32": 0.0, "bf16": 0.55}
"""The same for each byte of what a micro-batch needs. In bf16 oneDNN builds kernels on the way, which come to lie
between the tensors of a step and stay, so that the next step finds less room in one piece."""
HOLES_OF_EVALUATION = 0.44
"""The same for each byte of the vocabulary logits that an evaluation computes at once."""
MARGIN = 1.12
"""What is foretold over what was fitted, so that a peak lies below it."""
HIGHEST_OVER_LIKELY, LOWEST_OVER_LIKELY = 1.03, 0.73
"""Ends of the interval around an estimate of memory: no peak was more than 1.03 times what was foretold; that of the
demo's fine-tuning, of a model smaller than those of the study, was 0.74 times."""
CUDA_CONTEXT_BYTES = 600 * MIB
"""Memory of a GPU that the CUDA context and the libraries of products take. Not measured: no GPU was at hand."""
CUDA_SLACK = 1.15
"""Memory that torch's caching allocator holds per byte of what a micro-batch needs. Not measured."""
CUDA_LOWEST, CUDA_HIGHEST = 0.6, 1.4
"""Ends of the interval around an estimate of a GPU's memory. Not measured, hence wide."""
PROBE_ERROR = 0.15
"""How far off the time of a run may be after a probe, as a share: what the issue asks for, and the study holds."""
