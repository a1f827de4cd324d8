"""A compiled update: the same numbers, found again by the next process, refused where it cannot be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import torch
from tiny_jobs import finish, make_columns, make_job, start_job, write_rows
from tiny_torch import needs_compiler

from ipu_model.core.errors import ConfigError
from ipu_model.runtimes.compilation import check_compiler
from ipu_model.runtimes.selection import plan_device
from tests.optimizers import optimizer_config


def train(folder: Path, cache: Path, **changes: Any) -> Tuple[Dict[str, torch.Tensor], List[str], List[float]]:
    """Weights, messages and losses of a job of a few updates."""
    from ipu_model.models.model_folder import read_model

    optimizer = optimizer_config(name="lamb", learning_rate=1e-2, max_grad_norm=1.0)
    rows = folder.parent / "rows"
    job = make_job(folder, "pretrain", rows, log_every_updates=1, optimizer=optimizer, precision="bf16", **changes)
    finished = finish(start_job(job, {"PODIUM_EXECUTABLE_CACHE": str(cache)}))
    assert finished.code == 0, finished.stderr
    losses = [event["loss"] for event in finished.of("step")]
    return read_model(Path(job.output)).state, [e["text"] for e in finished.of("message")], losses


@needs_compiler
@pytest.mark.soak
def test_a_compiled_run_trains_as_the_plain_one_and_the_next_finds_its_libraries(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 24))
    cache = tmp_path / "cache"
    plain, said, losses = train(tmp_path / "plain", cache)
    assert not any("compil" in text for text in said)
    first, said, first_losses = train(tmp_path / "first", cache, compile="optimizer")
    assert sum("advance_lamb: absent, compiled in" in text for text in said) == 2, "gradients come in fp32 and bf16"
    again, said, _ = train(tmp_path / "again", cache, compile="optimizer")
    assert sum("advance_lamb: loaded in" in text for text in said) == 2, said
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["advance_lamb"] * 4
    # Dropout is on (0.1): the masks are those of the plain run, so the losses are.
    assert first_losses == pytest.approx(losses, rel=2e-3)
    assert all(torch.equal(again[name], first[name]) for name in first)
    for name, weight in plain.items():
        torch.testing.assert_close(first[name], weight, rtol=1e-2, atol=5e-3, msg=name)


def test_an_old_torch_and_a_host_without_a_compiler_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"torch 2.4 or newer, found 2.0.1\+cpu.*device.compile"):
        check_compiler("cpu", {}, "2.0.1+cpu")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="install g.., set CXX to one"):
        check_compiler("cpu", {}, "2.13.0")
    with pytest.raises(ConfigError, match="install g.."):
        check_compiler("cpu", {"CXX": "no-such-compiler"}, "2.13.0")
    check_compiler("cuda", {}, "2.13.0")


def test_compile_only_needs_something_to_compile(tmp_path: Path) -> None:
    from tiny_jobs import TINY

    from ipu_model.distributed.instances import Instances

    manifest = write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 8))
    job = make_job(tmp_path, "pretrain", tmp_path / "rows", compile_only=True)
    with pytest.raises(ConfigError, match="the cpu runtime does not compile; set device.compile"):
        plan_device(job, manifest, TINY, "cpu", "fp32", Instances(), lambda event, **fields: None)
