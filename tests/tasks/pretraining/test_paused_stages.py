"""A stage that is stopped pauses, and continues on another host: real stages in checkouts of their own, one remote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.stage.errors import PAUSED
from tests.ipu_model.tiny_jobs import make_columns, write_rows
from tests.tasks.trained_checkout import PROJECT

UPDATES = 400


def make_checkout(root: Path, remote: Path | None) -> Path:
    """What `python -m tasks.pretraining.pretrain phase1` needs, of a tiny size."""
    write_rows(root / "data" / "rows" / "phase1", "pretrain", make_columns("pretrain", 32))
    (root / "data" / "tokenizer").mkdir(parents=True)
    (root / "data" / "tokenizer" / "tokenizer.json").write_text("{}")
    verdict = root / "reports" / "validation" / "phase1.json"
    verdict.parent.mkdir(parents=True)
    verdict.write_text(json.dumps({"valid": True}))
    values: dict[str, Any] = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    values["model"].update(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, hidden_dropout=0.1)
    values["pretrain"]["checkpoint_every_updates"] = 20
    values["pretrain"]["phase1"].update(steps=UPDATES, global_batch_size=12, micro_batch_size=4)
    values["checkpoint"]["remote"] = str(remote) if remote is not None else None
    (root / "params.yaml").write_text(yaml.safe_dump(values))
    return root


def start(root: Path, **environment: str) -> subprocess.Popen[str]:
    own = {"PYTHONPATH": str(PROJECT), "PODIUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.pretraining.pretrain", "phase1"],
        cwd=root,
        env={**os.environ, **own},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    return process.communicate(timeout=120)


def wait_for(process: subprocess.Popen[str], pattern: str, folder: Path) -> None:
    until = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, f"no {pattern} in {folder}"
        time.sleep(0.02)


def outs(root: Path) -> dict[str, bytes]:
    model = {path.name: path.read_bytes() for path in (root / "models" / "phase1").iterdir()}
    return {**model, "plot": (root / "plots" / "pretrain-phase1.csv").read_bytes()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_checkout(tmp_path_factory.mktemp("undisturbed"), None)
    process = start(root)
    said = finish(process)
    assert process.returncode == 0, said
    return root


@pytest.mark.soak
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_stage_that_is_stopped_or_whose_host_is_lost_goes_on_elsewhere_and_ends_bit_for_bit_the_same(
    tmp_path: Path, undisturbed: Path, sent: signal.Signals
) -> None:
    remote = tmp_path / "remote"
    first, second = make_checkout(tmp_path / "first", remote), make_checkout(tmp_path / "second", remote)
    process = start(first)
    wait_for(process, "pretrain-phase1/*/step-*/sha256.json", remote)
    process.send_signal(sent)
    _, error = finish(process)
    assert process.returncode == (PAUSED if sent == signal.SIGTERM else -sent), error
    process = start(second)
    said, again = finish(process)
    assert process.returncode == 0, again
    figures = json.loads((second / "measurements" / "pretrain-phase1.json").read_text())
    if sent == signal.SIGTERM:
        step = int(error.splitlines()[-1].partition(" after update ")[2].partition(" ")[0])
        assert figures["resumed_from_step"] == step
        assert f"/step-{step:08d}: fetched\n" in said
        assert not list(remote.rglob("step-*"))
    assert figures["resumed_from_step"] >= 20
    assert outs(second) == outs(undisturbed)


def test_a_host_without_time_pauses_before_the_first_update(tmp_path: Path) -> None:
    process = start(make_checkout(tmp_path / "checkout", None), PODIUM_STOP_AT="2020-01-01T00:00:00Z")
    _, error = finish(process)
    assert process.returncode == PAUSED
    assert "PODIUM_STOP_AT (2020-01-01 00:00:00 UTC), before the first update" in error.splitlines()[-1]
