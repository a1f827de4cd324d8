"""The IPU runtime against the CPU runtime on the same rows: losses and every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest
import torch
from tiny_ipu import FOUR_LAYERS, RATES, ipu_job, ipu_runtime, largest_differences, make_model, optimizer_of, train
from tiny_jobs import make_columns, write_rows

from ipu_model.rows.row_folder import NO_ROW, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime

CASES = [
    (name, head, replicas, iterations, packed)
    for name in ("lamb", "adamw")
    for head in ("pretraining", "question_answering")
    for replicas in (2, 4)
    for iterations in (1, 2)
    for packed in (True, False)
]
CASES += [
    (name, f"sequence_{kind}" if kind != "tokens" else "token_classification", 2, iterations, packed)
    for kind in ("classification", "multilabel", "regression", "tokens")
    for name, iterations, packed in (("adamw", 1, True), ("lamb", 2, False))
]


@pytest.mark.ipu
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
@pytest.mark.parametrize("rows", [5, 19])
def test_an_update_filled_up_with_empty_rows_is_the_update_of_its_rows(head: str, rows: int, tmp_path: Path) -> None:
    """Loss, its parts and every weight: on IPUs of 32 rows with 2 replicas, on a CPU of the rows alone."""
    kind = "pretrain" if head == "pretraining" else head
    write_rows(tmp_path / "rows", kind, make_columns(kind, 40))
    numbers = np.array([*range(rows), *[NO_ROW] * (32 - rows)])
    filled = RowFolder(tmp_path / "rows", kind, FOUR_LAYERS).take(numbers)
    optimizer = optimizer_of("adamw")
    cpu = TorchRuntime(make_model(head), head, 8, "fp32", optimizer, seed=7)
    ipu = ipu_runtime(ipu_job(head, optimizer, tmp_path, replicas=2, iterations=1), model=make_model(head))
    try:
        ipu.compile(filled)
        found, expected = ipu.train_step(filled, RATES[0]), cpu.train_step(filled.part(0, rows), RATES[0])
        assert (found.sequences, found.real_tokens) == (expected.sequences, expected.real_tokens)
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        assert found.parts == pytest.approx(expected.parts, abs=1e-5)
        learned, _ = largest_differences(ipu.state_dict(), cpu.state_dict())
        assert learned < 1e-5
    finally:
        ipu.close()


@pytest.mark.ipu
@pytest.mark.parametrize(("name", "head", "replicas", "iterations", "packed"), CASES)
def test_ten_updates_on_ipus_follow_the_cpu(
    name: str, head: str, replicas: int, iterations: int, packed: bool, tmp_path: Path
) -> None:
    """Four-IPU pipeline, accumulation 16, fp32: 1e-5 on every loss and every weight that learns."""
    losses: Dict[str, List[Tuple[float, ...]]] = {}
    weights: Dict[str, Dict[str, torch.Tensor]] = {}
    for runtime in ("cpu", "ipu"):
        losses[runtime], weights[runtime] = train(
            runtime, head, optimizer_of(name), replicas=replicas, iterations=iterations, packed=packed, folder=tmp_path
        )
    assert len(losses["ipu"]) == 10 // iterations
    np.testing.assert_allclose(
        losses["ipu"], losses["cpu"], rtol=1e-5 if "_" in head and head != "question_answering" else 0, atol=1e-5
    )
    learned, idle = largest_differences(weights["ipu"], weights["cpu"])
    assert learned < 1e-5
    assert idle < 1e-4
