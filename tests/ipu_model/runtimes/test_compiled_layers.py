"""Compiled layers: the numbers of plain ones, and how often they are compiled."""

import dataclasses
import os
import stat
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_jobs import STILL, TINY
from tiny_torch import VERSION, WIDE, Elsewhere, make_batch, make_model, needs_gpu

from ipu_model.core.errors import ConfigError
from ipu_model.models.encoder import call_layer
from ipu_model.models.masked_lm import softmax_gradient
from ipu_model.runtimes import compiled_layers
from ipu_model.runtimes.compiled_layers import CACHES, OLDEST, CompiledLayers, compile_model, prepare_cache
from ipu_model.runtimes.cuda import PaddedAttention, VarlenAttention, choose_attention
from ipu_model.runtimes.selection import plan_compilation
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train import auto_compile
from ipu_model.train.auto_compile import LayerTrial, describe_short_job, try_compiled
from tests.optimizers import optimizer_config

needs_new_torch = pytest.mark.skipif(VERSION < OLDEST, reason="compiled layers need torch 2.6")
HEADS = ("pretraining", "question_answering", "sequence_classification", "token_classification")


@pytest.fixture(scope="module")
def kernels():
    """Attention for the CPU, where the operator has none."""
    attend, backward = compiled_layers.load_operators()

    @attend.register_kernel("cpu")
    def _forward(query, key, value, offsets, longest, heads, drop):
        assert drop == 0
        context = PaddedAttention(offsets, longest)(query, key, value, heads, 0.0)
        sums = torch.zeros(heads, len(query))
        return context, sums, torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)

    @backward.register_kernel("cpu")
    def _backward(d_context, query, key, value, *rest):
        """Autograd stops above kernels, so this is the formula: P = softmax(q k^T / sqrt(D)) of each sequence."""
        _, _, offsets, _, heads, *_ = rest
        gradients = [torch.empty_like(x) for x in (query, key, value)]
        for begin, end in zip(offsets.tolist(), offsets.tolist()[1:]):
            parts = (x[begin:end].unflatten(1, (heads, -1)).transpose(0, 1) for x in (d_context, query, key, value))
            d_c, q, k, v = parts  # [A, n, D]
            scale = q.shape[-1] ** -0.5
            shares = torch.softmax(q @ k.transpose(1, 2) * scale, -1)
            d_shares = d_c @ v.transpose(1, 2)
            d_scores = shares * (d_shares - (d_shares * shares).sum(-1, keepdim=True)) * scale
            results = d_scores @ k, d_scores.transpose(1, 2) @ q, shares.transpose(1, 2) @ d_c
            for gradient, result in zip(gradients, results):
                gradient[begin:end] = result.transpose(0, 1).flatten(1)
        return tuple(gradients)


class Attending(PaddedAttention):
    def __init__(self, offsets, longest):
        super().__init__(offsets, longest)
        self.offsets, self.longest = offsets, longest


class Nearby(Elsewhere):
    """A device whose attention can be compiled."""

    def __init__(self):
        super().__init__()
        self._attention = Attending


def make_runtime(head, precision, compiled, optimizer=True):
    model = make_model(head, STILL)
    if compiled is not None:
        compile_model(model, compiled)
    config = optimizer_config(name="adamw", learning_rate=1e-3) if optimizer else None
    return TorchRuntime(model, head, 6, precision, config, seed=5, device=Nearby())


@needs_new_torch
@pytest.mark.parametrize(
    ("head", "precision", "tolerance"), [*((head, "fp32", 1e-5) for head in HEADS), ("pretraining", "bf16", 2e-2)]
)
def test_compiled_updates_are_those_of_plain_layers(kernels, tmp_path, head, precision, tolerance):
    batch = make_batch(tmp_path / "rows", head)
    plain, compiled = (make_runtime(head, precision, backend) for backend in (None, "aot_eager"))
    for _ in range(3):
        expected, step = (runtime.train_step(runtime.prepare(batch), 1e-3) for runtime in (plain, compiled))
        assert step.loss == pytest.approx(expected.loss, rel=tolerance)
        assert step.gradient_norm == pytest.approx(expected.gradient_norm, rel=10 * tolerance)
    torch.testing.assert_close(compiled.state_dict(), plain.state_dict(), rtol=0, atol=tolerance)


@needs_new_torch
@pytest.mark.parametrize("trains", [True, False])
def test_a_model_is_compiled_for_its_first_lengths_only(kernels, tmp_path, trains):
    graphs, counts = [], []

    def compile_graph(graph, inputs):
        graphs.append(graph)
        return graph.forward

    batch = make_batch(tmp_path / "rows", "question_answering", 24)
    runtime = make_runtime("question_answering", "fp32", compile_graph, optimizer=trains)
    for first in range(14):
        part = batch.part(first, first + 6)
        if trains:
            runtime.train_step(part, 1e-3)
        else:
            runtime.predict(part)
        counts.append(len(graphs))
    assert counts[1:] == [counts[1]] * 13
    assert counts[1] > 0


def make_trial(clock=None):
    """A trial on a clock by which every look takes a second."""
    clock = clock or count(0.0).__next__
    return LayerTrial(TINY, torch.float32, [9, 7, 5, 5], True, torch.device("cpu"), Attending, clock)


def test_a_compilation_that_fails_or_a_wrong_loss_leaves_the_layers_plain():
    def fail(*_):
        raise RuntimeError("Cannot find a working triton installation\nmore")

    def turn(logits, bias, labels):
        loss, gradient = softmax_gradient(logits, bias, labels)
        return loss, gradient + 0.5

    choice = try_compiled(make_trial(), fail, "auto")
    assert (choice.value, "(Cannot find a working triton installation)" in choice.reason) == ("none", True)
    assert try_compiled(make_trial(), call_layer, "model", turn).value == "none"
    assert try_compiled(make_trial(), call_layer, "model", softmax_gradient).value == "model"


@pytest.mark.parametrize(
    ("requested", "plain", "compiled", "offset", "value", "reason"),
    [
        ("auto", 2.0, 1.0, 0.0, "model", "26 tokens/s per layer compiled and 13 plain"),
        ("auto", 1.0, 0.97, 0.0, "none", "a gain below 5%"),
        ("model", 1.0, 2.0, 0.0, "model", "13 tokens/s per layer compiled and 26 plain"),
        ("model", 2.0, 1.0, float("nan"), "none", "different results"),
    ],
)
def test_a_compiled_layer_is_taken_where_it_is_right_and_faster(
    monkeypatch, requested, plain, compiled, offset, value, reason
):
    passed = [0.0]

    def make_call(seconds, added):
        def call(*arguments):
            passed.append(passed[-1] + seconds)
            return call_layer(*arguments) + added

        return call

    monkeypatch.setattr(auto_compile, "call_layer", make_call(plain, 0.0))
    trial = dataclasses.replace(make_trial(lambda: passed[-1]), precision=torch.bfloat16)
    choice = try_compiled(trial, make_call(compiled, offset), requested)
    assert choice.value == value
    assert reason in choice.reason


def test_short_jobs_are_not_compiled():
    """A pass takes a second of this clock, and the model has two layers."""
    sizes = {"gradient_accumulation_steps": 1, "rows": 300, "micro_batch_size": 6}
    short, long = (
        describe_short_job(SimpleNamespace(kind="pretrain", updates=updates, **sizes), make_trial())
        for updates in (4, 30)
    )
    assert "8 s in all" in short
    assert long is None


@needs_gpu
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_compiled_for_cuda_has_the_numbers_of_a_plain_one(training):
    device = torch.device("cuda")
    config = dataclasses.replace(WIDE, hidden_dropout=0.1, attention_dropout=0.1)
    attention, reason = choose_attention(device, torch.bfloat16, config.num_heads, config.hidden_size)
    assert attention is VarlenAttention, reason

    def clock():
        torch.cuda.synchronize()
        return time.perf_counter()

    trial = LayerTrial(config, torch.bfloat16, [90, 70, 40, 9], training, device, attention, clock)
    choice = try_compiled(trial, CompiledLayers(), "model")
    assert choice.value == "model", choice.reason


def test_compilation_is_for_gpus():
    plans = {("auto", "cpu"): "none", ("auto", "cuda"): "auto", ("model", "cuda"): "auto", ("none", "cuda"): "none"}
    for (requested, runtime), planned in {**plans, ("optimizer", "cpu"): "optimizer", ("auto", "ipu"): "none"}.items():
        assert plan_compilation(requested, runtime).value == planned
    for runtime in ("cpu", "ipu"):
        with pytest.raises(ConfigError, match=r"device\.compile to auto or none"):
            plan_compilation("model", runtime)


def test_kernels_are_cached_in_a_folder_of_the_user_alone(tmp_path, monkeypatch):
    messages, environ, without = [], {"PODIUM_EXECUTABLE_CACHE": str(tmp_path / "cache")}, {}
    folder = tmp_path / "cache" / "compiled"
    prepare_cache(environ, messages.append)
    assert stat.S_IMODE(os.stat(str(folder)).st_mode) == 0o700
    assert all(environ[variable].startswith(str(folder)) for variable in CACHES)
    assert not messages
    prepare_cache(without, messages.append)
    temporary = Path(without["TORCHINDUCTOR_CACHE_DIR"]).parent
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    assert "PODIUM_EXECUTABLE_CACHE" in messages[0]
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(ConfigError, match="another user.*PODIUM_EXECUTABLE_CACHE"):
        prepare_cache({"PODIUM_EXECUTABLE_CACHE": str(tmp_path)}, print)
