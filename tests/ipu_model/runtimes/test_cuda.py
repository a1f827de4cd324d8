"""The CUDA runtime: what a host without a GPU can tell, then, where there is one, the same numbers as the CPU."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_jobs import STILL, make_job, pausing, result_of, run_here, weights_of
from tiny_torch import WIDE, Elsewhere, make_batch, make_model, needs_gpu

from ipu_model.core.errors import ConfigError
from ipu_model.models.modeling import build_model
from ipu_model.runtimes.cuda import CudaDevice, VarlenAttention, fastest_precision
from ipu_model.runtimes.selection import choose_precision, choose_runtime
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), "bf16"), ((7, 5), "fp32")])
def test_auto_takes_bf16_from_compute_capability_8(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_precision("auto", "cuda").value == expected
    assert "{}.{}".format(*capability) in fastest_precision().reason
    assert choose_precision("fp32", "cuda").value == "fp32"


@pytest.mark.parametrize(
    ("head", "max_norm"), [("pretraining", 0.05), ("pretraining", None), ("question_answering", 100.0)]
)
def test_placed_batches_and_clipping_without_the_host_change_no_number(tmp_path, head, max_norm):
    batch = make_batch(tmp_path / "rows", head)
    runtimes = []
    for device in (None, Elsewhere()):
        model = make_model(head, STILL)
        config = optimizer_config(name="lamb", learning_rate=1e-3, max_grad_norm=max_norm)
        runtimes.append(TorchRuntime(model, head, 5, "fp32", config, seed=5, device=device))
    for _ in range(3):
        plain, placed = (runtime.train_step(runtime.prepare(batch), 1e-3) for runtime in runtimes)
        assert placed.loss == pytest.approx(plain.loss, abs=1e-5)
        assert placed.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-4)
    torch.testing.assert_close(runtimes[1].state_dict(), runtimes[0].state_dict(), rtol=0, atol=1e-5)


def test_too_little_memory_names_the_knob(tmp_path, monkeypatch):
    batch = make_batch(tmp_path / "rows", "question_answering")
    model = build_model("question_answering", STILL)
    runtime = TorchRuntime(model, "question_answering", 4, "fp32", optimizer_config(), seed=5, device=Elsewhere())

    def full(tokens):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free.")

    monkeypatch.setattr(model, "forward", full)
    for step in (lambda: runtime.train_step(batch, 1e-3), lambda: runtime.predict(batch)):
        with pytest.raises(ConfigError, match=r"\(CUDA out of memory\): lower device\.micro_batch_size"):
            step()


def pair(head, precision, config, optimizer="adamw"):
    """The same model on the CPU in fp32 and on the GPU."""
    runtimes = []
    for where in ("cpu", "cuda"):
        model = make_model(head, config)
        device = CudaDevice(0, precision, config.num_heads, config.hidden_size) if where == "cuda" else None
        learn = optimizer_config(name=optimizer, learning_rate=1e-3, max_grad_norm=1.0)
        runtimes.append(TorchRuntime(model, head, 5, precision if device else "fp32", learn, seed=5, device=device))
    return runtimes


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
def test_cuda_trains_and_predicts_as_the_cpu_in_fp32(tmp_path, head, optimizer):
    batch = make_batch(tmp_path / "rows", head)
    config = dataclasses.replace(STILL, initializer_range=0.2)
    cpu, gpu = pair(head, "fp32", config, optimizer)
    for step in range(10):
        expected, metrics = (runtime.train_step(batch, 1e-4) for runtime in (cpu, gpu))
        assert metrics.loss == pytest.approx(expected.loss, abs=1e-5), step
        assert metrics.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    weights = gpu.state_dict()
    for name, expected_weight in cpu.state_dict().items():
        if not name.endswith("key.bias"):  # its true gradient is 0: Adam makes steps of rounding
            torch.testing.assert_close(weights[name], expected_weight, rtol=0, atol=1e-5)
    if head == "question_answering":
        for theirs, ours in zip(cpu.predict(batch), gpu.predict(batch)):
            np.testing.assert_allclose(ours.columns["start_logits"], theirs.columns["start_logits"], rtol=0, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
def test_cuda_in_bf16_stays_within_its_rounding(tmp_path, head):
    batch = make_batch(tmp_path / "rows", head)
    cpu, gpu = pair(head, "bf16", dataclasses.replace(WIDE, hidden_dropout=0.0, attention_dropout=0.0))
    for _ in range(10):
        expected, metrics = (runtime.train_step(batch, 1e-3) for runtime in (cpu, gpu))
        assert metrics.loss == pytest.approx(expected.loss, rel=0.02)
    assert all(x.dtype == torch.float32 for x in gpu.state_dict().values())


@needs_gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0),
    reason="flash attention needs a GPU of compute capability 8.0",
)
def test_cuda_takes_flash_attention_and_it_equals_the_padded_form_and_drops_at_its_rate():
    device = CudaDevice(0, "bf16", heads=2, hidden=128)
    assert device._attention is VarlenAttention, device.reason
    count, length = 400, 64
    offsets = torch.arange(0, (count + 1) * length, length, dtype=torch.int32, device="cuda")
    zeros = torch.zeros(count * length, 128, device="cuda", dtype=torch.bfloat16)
    kept = VarlenAttention(offsets, length)(zeros, zeros, torch.ones_like(zeros), 2, 0.1).float()
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.005)  # kept / (1 - p), over 51,200 rows of 64 keys
    assert float(kept.var()) == pytest.approx(0.1 / 0.9 / length, rel=0.1)
    torch.manual_seed(1)
    first = VarlenAttention(offsets, length)(zeros, zeros, torch.ones_like(zeros), 2, 0.1)
    torch.manual_seed(1)
    assert torch.equal(first, VarlenAttention(offsets, length)(zeros, zeros, torch.ones_like(zeros), 2, 0.1))


@needs_gpu
def test_a_cuda_run_stopped_and_continued_ends_as_one_that_was_not(tmp_path, pretrain_rows):
    """Within rounding: some kernels add up in an order of their own. Another dropout moves most weights by 1e-2."""
    model = dataclasses.replace(WIDE, hidden_dropout=0.3)
    settings = {"runtime": "cuda", "precision": "auto", "model": model}
    straight = make_job(tmp_path / "a", "pretrain", pretrain_rows, **settings)
    run_here(straight)
    stopped = make_job(tmp_path / "b", "pretrain", pretrain_rows, **settings)
    pausing(stopped, "plan")
    run_here(stopped)
    result = result_of(stopped)
    assert (result.runtime, result.resumed_from_step) == ("cuda", 1)
    assert result.peak_device_memory_mb is not None
    assert result.peak_device_memory_mb > 1
    assert result.versions["gpu"] == torch.cuda.get_device_name()
    first, second = (weights_of(job) for job in (straight, stopped))
    for name, expected in first.items():
        if not name.endswith("key.bias"):  # its true gradient is 0: Adam makes steps of rounding
            assert float((second[name] - expected).abs().mean()) < 2e-4, name


@needs_gpu
def test_a_step_on_cuda_waits_for_nothing_before_its_end(tmp_path):
    """torch raises where the host would wait; the one read at the end is allowed."""
    batch = make_batch(tmp_path / "rows", "pretraining")
    runtime = pair("pretraining", "bf16", WIDE)[1]
    runtime.train_step(batch, 1e-3)  # sets up what is made once
    prepared = runtime.prepare(batch)
    real = runtime._update

    def update(learning_rate):
        real(learning_rate)
        torch.cuda.set_sync_debug_mode("default")

    runtime._update = update
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert np.isfinite(runtime.train_step(prepared, 1e-3).loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_job_that_cannot_run_is_refused_with_what_to_do(monkeypatch):
    with pytest.raises(ConfigError, match="fp16.*device.precision"):
        choose_precision("fp16", "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="process 2 of this host.*2 GPUs"):
        CudaDevice(2, "bf16", heads=2, hidden=128)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(ConfigError, match=r"without CUDA.*device\.runtime"):
        choose_runtime("cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        choose_runtime("cuda")
