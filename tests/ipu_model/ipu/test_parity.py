"""The IPU runtime against the CPU runtime on the same rows: losses and every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from tiny_ipu import train

from ipu_model.job import OptimizerConfig

CASES = [
    (name, head, replicas, iterations, packed)
    for name in ("lamb", "adamw")
    for head in ("pretraining", "question_answering")
    for replicas in (2, 4)
    for iterations in (1, 2)
    for packed in (True, False)
]


def optimizer_of(name: str, **changes: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"name": name, "learning_rate": 1e-2, "weight_decay": 0.01, **changes})


def largest_difference(ours: Dict[str, torch.Tensor], theirs: Dict[str, torch.Tensor]) -> float:
    assert sorted(ours) == sorted(theirs)
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


@pytest.mark.ipu
@pytest.mark.parametrize(("name", "head", "replicas", "iterations", "packed"), CASES)
def test_ten_updates_on_ipus_follow_the_cpu(
    name: str, head: str, replicas: int, iterations: int, packed: bool, tmp_path: Path
) -> None:
    """Four-IPU pipeline, accumulation 16, fp32: 1e-5 on every loss and weight."""
    losses: Dict[str, List[Tuple[float, ...]]] = {}
    weights: Dict[str, Dict[str, torch.Tensor]] = {}
    for runtime in ("cpu", "ipu"):
        losses[runtime], weights[runtime] = train(
            runtime, head, optimizer_of(name), replicas=replicas, iterations=iterations, packed=packed, folder=tmp_path
        )
    assert len(losses["ipu"]) == 10 // iterations
    np.testing.assert_allclose(losses["ipu"], losses["cpu"], rtol=0, atol=1e-5)
    assert largest_difference(weights["ipu"], weights["cpu"]) < 1e-5
