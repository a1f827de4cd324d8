"""Weights that an update made NaN are not saved, although its loss was finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import make_job, run_here

from ipu_model.core.errors import NonFiniteWeights
from ipu_model.runtimes.runtime import StepMetrics
from ipu_model.runtimes.torch_device import TorchRuntime


def test_weights_that_are_not_finite_stop_the_run_before_they_are_saved(
    tmp_path: Path, pretrain_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that tells no gradient norm: update 4 breaks a weight, its loss was computed before."""
    real: Any = TorchRuntime.train_step

    def breaking(self: TorchRuntime, batch: Any, learning_rate: float) -> StepMetrics:
        metrics: StepMetrics = real(self, batch, learning_rate)
        calls.append(learning_rate)
        if len(calls) == 4:
            weights = self.state_dict()
            weights["bert.pooler.dense.bias"][3] = float("inf")
            self.load_state_dict(weights)
        return metrics

    calls: list = []
    monkeypatch.setattr(TorchRuntime, "train_step", breaking)
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    with pytest.raises(
        NonFiniteWeights, match=r"after update 4 there are NaN or infinite values in bert\.pooler\.dense\.bias\."
    ):
        run_here(job)
    assert [path.name for path in Path(job.run_folder).glob("step-*")] == ["step-00000002"]
    assert not Path(job.output).exists()
