"""Current matrix peak of this host: the fastest of several large matrix products."""

from __future__ import annotations

from typing import Any

import torch

from bench.protocol import Sample, Session, Stopwatch

SHAPES = ((1024, 768, 3072), (4096, 768, 3072), (4096, 3072, 768), (2048, 2048, 2048), (4096, 4096, 4096))
"""[M, K] x [K, N]: products of a base-size layer, and square ones."""
REPEATS = 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure(spec: dict[str, Any], session: Session) -> None:
    """Report one sample per round, of its fastest product; units are GFLOP."""
    torch.set_num_threads(spec["threads"])
    dtype = DTYPES[spec["settings"]["precision"]]
    shapes = spec.get("shapes", SHAPES)
    pairs = [(torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)) for m, k, n in shapes]
    best_of_round(pairs[:1])
    while session.next_round():
        session.report([best_of_round(pairs)])


def best_of_round(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Sample:
    """Return the sample with most operations per second; a product is x W^T, as in a linear layer."""
    samples = []
    watch = Stopwatch()
    for left, right in pairs:
        gflop = 2e-9 * left.shape[0] * left.shape[1] * right.shape[0]
        for _ in range(REPEATS):
            watch.start()
            torch.nn.functional.linear(left, right)
            samples.append(watch.sample(gflop))
    return max(samples, key=lambda sample: sample.units / sample.wall)
