"""A compiled update: the same numbers, found again by the next process, refused where it cannot be made."""

import pytest
import torch
from tiny_jobs import TINY, finish, make_columns, make_job, start_job, weights_of, write_rows
from tiny_torch import needs_compiler

from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.runtimes.compilation import check_compiler
from ipu_model.runtimes.selection import plan_device
from tests.optimizers import optimizer_config


def train(folder, **changes):
    """Weights, messages, losses and imported modules of a job of a few updates."""
    optimizer = optimizer_config(name="lamb", learning_rate=1e-2, max_grad_norm=1.0)
    settings = {"log_every_updates": 1, "optimizer": optimizer, "precision": "bf16", **changes}
    job = make_job(folder, "pretrain", folder.parent / "rows", **settings)
    environment = {"PODIUM_EXECUTABLE_CACHE": str(folder.parent / "cache"), "PYTHONPROFILEIMPORTTIME": "1"}
    done = finish(start_job(job, environment))
    assert done.code == 0, done.stderr
    losses = [event["loss"] for event in done.of("step")]
    return weights_of(job), " ".join(event["text"] for event in done.of("message")), losses, done.stderr


@needs_compiler
@pytest.mark.soak
def test_a_compiled_run_trains_as_the_plain_one_and_the_next_finds_its_libraries_unless_damaged(tmp_path):
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 24))
    plain, messages, losses, _ = train(tmp_path / "plain")
    assert "compil" not in messages
    first, messages, first_losses, imported = train(tmp_path / "first", compile="optimizer")
    # Gradients come in fp32 and bf16; each library is for tensors of any length.
    assert messages.count("advance_lamb: absent, compiled in") == 2
    assert "torch._inductor" in imported
    # Dropout is on (0.1): the masks are those of the plain run, so the losses are.
    assert first_losses == pytest.approx(losses, rel=2e-3)
    torch.testing.assert_close(first, plain, rtol=1e-2, atol=5e-3)
    again, messages, _, imported = train(tmp_path / "again", compile="optimizer")
    assert messages.count("advance_lamb: loaded in") == 2
    assert "torch._inductor" not in imported, "another process loads it without the compiler"
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir()) == ["advance_lamb"] * 4
    library = sorted((tmp_path / "cache").glob("*.so"))[0]
    library.write_bytes(library.read_bytes()[:-100])
    third, messages, _, _ = train(tmp_path / "third", compile="optimizer")
    assert [messages.count(f"advance_lamb: {found} in") for found in ("damaged, compiled", "loaded")] == [1, 1]
    for weights in (again, third):
        torch.testing.assert_close(weights, first, rtol=0, atol=0)


def test_an_old_torch_and_a_host_without_a_compiler_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"torch 2.4 or newer, found 2.0.1\+cpu.*device.compile"):
        check_compiler("cpu", {}, "2.0.1+cpu")
    monkeypatch.setenv("PATH", "/nowhere")
    for environment in ({}, {"CXX": "no-such-compiler"}):
        with pytest.raises(ConfigError, match="install g.."):
            check_compiler("cpu", environment, "2.13.0")
    check_compiler("cuda", {}, "2.13.0")


def test_what_a_runtime_does_not_compile_or_recompute_is_refused(tmp_path):
    manifest = write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 8))
    for runtime, changes, message in (
        ("cpu", {"compile_only": True}, "device.compile"),
        ("ipu", {"recompute": True}, "recompute_checkpoint_every_layer"),
    ):
        job = make_job(tmp_path, "pretrain", tmp_path / "rows", **changes)
        with pytest.raises(ConfigError, match=message):
            plan_device(job, manifest, TINY, runtime, "fp32", Instances(), lambda event, **fields: None)
