"""Checkpoints: newest by number, damaged ones left out and named, another run refused with the difference."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import FINGERPRINT, Told, state_at

from ipu_model.core.errors import CheckpointError
from ipu_model.train.checkpoint import Checkpoints


def test_what_was_saved_comes_back_exactly(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, Told())
    random.seed(1)
    np.random.seed(1)
    checkpoints.save(state_at(4))
    expected = random.random(), float(np.random.random())
    found = checkpoints.load_latest()
    assert found is not None
    assert (random.random(), float(np.random.random())) == expected
    assert found.step == 4
    assert found.model["w"].tolist() == [4.0] * 3
    assert found.optimizer["w/step"].shape == ()
    assert found.device_rng["torch"].tolist() == [0, 1, 2, 3, 4]
    assert found.history == state_at(4).history


def test_the_newest_is_by_number_and_two_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, Told())
    for step in (2, 99999999, 100000000):  # as text, the second sorts last
        checkpoints.save(state_at(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-100000000", "step-99999999"]
    found = checkpoints.load_latest()
    assert found is not None
    assert found.step == 100000000


@pytest.mark.parametrize("damaged", ["model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path: Path, damaged: str, how: str) -> None:
    told = Told()
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, told)
    checkpoints.save(state_at(2))
    path = checkpoints.save(state_at(4)) / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes(content) if how == "flip" else bytes(content[:-5]))
    found = checkpoints.load_latest()
    assert found is not None
    assert found.step == 2
    assert len(told.texts) == 1
    assert "step-00000004" in told.texts[0]


def test_a_half_written_one_is_named_and_removed(tmp_path: Path) -> None:
    told = Told()
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, told)
    checkpoints.save(state_at(2))
    half = tmp_path / "step-00000004.123.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    found = checkpoints.load_latest()
    assert found is not None
    assert found.step == 2
    assert not half.exists()
    assert "step-00000004.123.partial is incomplete" in told.texts[0]


def test_a_failed_save_leaves_the_ones_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, FINGERPRINT, Told())
    checkpoints.save(state_at(2))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ipu_model.train.checkpoint.write_json", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(state_at(4))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    Checkpoints(tmp_path, FINGERPRINT, Told()).save(state_at(2))
    other = {"seed": 8, "plan.rows_per_update": 6, "optimizer.name": "lamb"}
    with pytest.raises(CheckpointError, match="optimizer.name: absent -> lamb; seed: 7 -> 8") as caught:
        Checkpoints(tmp_path, other, Told()).load_latest()
    assert str(tmp_path) in str(caught.value)
    assert "rows_per_update" not in str(caught.value)
