"""Checkpoints: newest by number, damaged ones left out and named, another run refused with the difference."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import FINGERPRINT, Told, state_at

from ipu_model.core.errors import CheckpointError
from ipu_model.train.checkpoint import Checkpoint, Checkpoints


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def checkpoints(tmp_path: Path, told: Told) -> Checkpoints:
    return Checkpoints(tmp_path, FINGERPRINT, told)


def newest(checkpoints: Checkpoints) -> Checkpoint:
    found = checkpoints.load_latest()
    assert found is not None
    return found


def test_what_was_saved_comes_back_exactly(checkpoints: Checkpoints) -> None:
    random.seed(1)
    np.random.seed(1)
    checkpoints.save(state_at(4))
    expected = random.random(), float(np.random.random())
    found = newest(checkpoints)
    assert (random.random(), float(np.random.random())) == expected
    assert found.step == 4
    assert found.model["w"].tolist() == [4.0] * 3
    assert found.optimizer["w/step"].shape == ()
    assert found.device_rng["torch"].tolist() == [0, 1, 2, 3, 4]
    assert found.history == state_at(4).history


def test_the_newest_is_by_number_and_two_are_kept(tmp_path: Path, checkpoints: Checkpoints) -> None:
    for step in (2, 99999999, 100000000):  # as text, the second sorts last
        checkpoints.save(state_at(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-100000000", "step-99999999"]
    assert newest(checkpoints).step == 100000000


@pytest.mark.parametrize("damaged", ["model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    tmp_path: Path, checkpoints: Checkpoints, told: Told, damaged: str, how: str
) -> None:
    checkpoints.save(state_at(2))
    path = checkpoints.save(state_at(4)) / damaged
    half = tmp_path / "step-00000006.123.partial"
    half.mkdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes(content) if how == "flip" else bytes(content[:-5]))
    assert newest(checkpoints).step == 2
    assert not half.exists()
    assert [any(name in text for text in told.texts) for name in (half.name, "step-00000004")] == [True, True]


def test_a_failed_save_leaves_the_ones_before(
    tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(state_at(2))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ipu_model.train.checkpoint.write_json", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(state_at(4))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_another_run_is_refused_with_the_difference(tmp_path: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(state_at(2))
    other = {"seed": 8, "plan.rows_per_update": 6, "optimizer.name": "lamb"}
    with pytest.raises(CheckpointError, match="optimizer.name: absent -> lamb; seed: 7 -> 8") as caught:
        Checkpoints(tmp_path, other, Told()).load_latest()
    assert "rows_per_update" not in str(caught.value)
