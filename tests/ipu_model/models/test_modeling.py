"""The model without pads next to the plain one: its precision, its loss of masked tokens, its recomputation."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_jobs import STEADY, TINY, make_columns, make_job, pausing, result_of, run_here, weights_of, write_rows
from tiny_torch import make_batch, make_model
from torch.nn.functional import cross_entropy

from ipu_model import heads
from ipu_model.models import masked_lm as decoding
from ipu_model.models.flat import flatten
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.masked_lm import ChunkedTokenLoss, MaskedTokenLoss, differentiate_in_place, softmax_gradient
from ipu_model.models.modeling import build_model
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes import torch_device
from ipu_model.runtimes.host import cpu_flags
from ipu_model.runtimes.selection import choose_runtime
from ipu_model.runtimes.torch_device import Device, TorchRuntime
from tests.optimizers import optimizer_config

LEARN = optimizer_config(learning_rate=1e-2, max_grad_norm=1.0)


def make_runtime(head, precision="fp32", seed=5, micro_batch=12, config=STEADY, optimizer=LEARN):
    return TorchRuntime(make_model(head, config), head, micro_batch, precision, optimizer, seed)


@pytest.mark.parametrize(("head", "micro_batch"), [("pretraining", 4), ("question_answering", 12)])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "adam", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_runtime_state_gives_the_same_update_bit_for_bit(tmp_path, precision, optimizer, micro_batch, head):
    """Dropout on."""
    batch = make_batch(tmp_path / "rows", head)
    learning = dataclasses.replace(LEARN, name=optimizer, max_grad_norm=0.5)
    settings = {"precision": precision, "micro_batch": micro_batch, "config": TINY, "optimizer": learning}
    first, second = (make_runtime(head, seed=seed, **settings) for seed in (5, 6))
    first.train_step(batch, 1e-2)
    second.load_state_dict(first.state_dict())
    second.load_optimizer_state(first.optimizer_state())
    second.load_rng_state(first.rng_state())
    rng = first.rng_state()
    expected = first.train_step(batch, 1e-2)
    second.load_rng_state(rng)  # torch has one CPU generator, which both runtimes draw from
    assert second.train_step(batch, 1e-2) == expected
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_bf16_agrees_with_fp32_within_its_rounding(tmp_path):
    batch = make_batch(tmp_path / "rows", "pretraining")
    fp32, bf16 = make_runtime("pretraining"), make_runtime("pretraining", "bf16")
    for _ in range(5):
        exact, low = fp32.train_step(batch, 1e-3), bf16.train_step(batch, 1e-3)
        assert low.loss == pytest.approx(exact.loss, rel=0.02)  # bf16 keeps 8 bits: 2^-8 per product
    assert all(x.dtype == torch.float32 for x in bf16.state_dict().values())
    assert bf16.optimizer_state()["bert.pooler.dense.weight/exp_avg"].dtype == torch.float32


def test_what_linux_says_of_the_cpu(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nmodel name\t: A  CPU 9\nflags : fpu avx2 avx512_bf16\nprocessor : 1\nflags : fpu\n"
    )
    assert cpu_flags(cpuinfo) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "absent") == set()


def test_auto_takes_the_cpu_where_there_is_no_other_device_and_says_why(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("POPLAR_SDK_ENABLED", raising=False)
    monkeypatch.setattr("ipu_model.runtimes.cuda.find_gpu", lambda: (False, "no GPU"))
    chosen = choose_runtime("auto")
    assert (chosen.value, "no GPU" in chosen.reason) == ("cpu", True)
    monkeypatch.setattr("ipu_model.runtimes.cuda.find_gpu", lambda: (True, "a GPU"))
    assert choose_runtime("auto").value == "cuda"


def test_every_factor_of_a_product_has_a_low_precision_copy_whose_gradients_are_added_in_fp32():
    model = build_model("pretraining", TINY)
    copies = LowPrecisionCopies(model, torch.bfloat16)
    copied = {id(weight) for weight, _ in copies.pairs}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in copied}
    matrices = {name for name, parameter in model.named_parameters() if parameter.dim() == 2}
    decoder = "bert.embeddings.word_embeddings.weight"
    assert names == {name for name in matrices if "embeddings" not in name} | {decoder}
    weight, copy = copies.pairs[0]
    for value in (256.0, 1.0, 1.0):  # 256 + 1 is 256 in bf16
        copy.grad = torch.full_like(copy, value)
        copies.collect_gradients()
    assert (weight.grad.dtype, weight.grad.unique().tolist(), copy.grad) == (torch.float32, [258.0], None)


@pytest.mark.parametrize("tokens_per_pass", [1, 40, 4096])
def test_passes_hold_all_tokens_in_order_in_few_shapes_and_give_the_logits_of_the_whole(
    tmp_path, monkeypatch, tokens_per_pass
):
    monkeypatch.setattr(torch_device, "TOKENS_PER_PASS", tokens_per_pass)
    monkeypatch.setattr(torch_device, "ROUND_TO", 8)
    flat = flatten(make_batch(tmp_path / "rows", "question_answering", 30))
    passes = list(Device().split_passes(flat))
    if tokens_per_pass == 1:  # a sequence longer than a pass has one of its own
        assert [count for count, _, _ in passes] == flat.lengths.tolist()
    else:
        assert all(count <= tokens_per_pass for count, _, _ in passes)
    assert all(len(tokens.input_ids) == -(-count // 8) * 8 for count, tokens, _ in passes)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        parts = [getattr(tokens, name)[:count] for count, tokens, _ in passes]
        assert torch.equal(torch.cat(parts), getattr(flat.tokens, name)[: flat.real_tokens])
    assert all((tokens.position_ids[starts] == 0).all() for _, tokens, starts in passes)
    assert sum(len(starts) for _, _, starts in passes) == len(flat.lengths)
    model = make_model("question_answering").eval()
    with torch.no_grad():
        cut = torch.cat([model(tokens)[:count] for count, tokens, _ in passes])
        torch.testing.assert_close(cut, model(flat.tokens)[: flat.real_tokens], rtol=1e-5, atol=1e-6)


LABELS = torch.tensor([3, -100, 0, 7, 7])


def make_leaves(dtype):
    """hidden [5, 4], words [8, 4] and bias [8], which is at least fp32."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    hidden, words, bias = torch.randn(5, 4), torch.randn(8, 4), torch.randn(8)
    return [x.to(kind).requires_grad_() for x, kind in ((hidden, dtype), (words, dtype), (bias, wide))]


def test_logits_as_large_as_they_come_do_not_overflow():
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    words = torch.tensor([[1.0], [0.0], [-1.0]])
    loss = MaskedTokenLoss.apply(hidden, words, torch.zeros(3), torch.tensor([0, 0]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(600.0)  # sure and right: 0; sure and wrong: the distance
    assert hidden.grad.tolist() == [[0.0], [-2.0]]


FORMS = {
    "whole": MaskedTokenLoss.apply,
    "chunks": lambda *x: ChunkedTokenLoss.apply(*x, differentiate_in_place),
    "one pass": lambda *x: ChunkedTokenLoss.apply(*x, softmax_gradient),
}


@pytest.mark.parametrize("numbers", [1, 20, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.03)], ids=str)
@pytest.mark.parametrize("labels", [LABELS, torch.full((5,), -100)], ids=["some", "none"])
@pytest.mark.parametrize("form", FORMS)
def test_the_loss_is_the_cross_entropy_of_real_labels_however_many_rows_are_made_at_once(
    form, labels, dtype, tolerance, numbers, monkeypatch
):
    """In bf16, products alone are rounded: softmax and bias are fp32."""
    for limit in ("LOGITS_IN_CACHE", "LOGITS_PER_CHUNK"):
        monkeypatch.setattr(decoding, limit, numbers)
    ours, exact = make_leaves(dtype), make_leaves(torch.float64 if dtype == torch.float64 else torch.float32)
    hidden, words, bias = exact
    loss = FORMS[form](*ours, labels)
    plain = cross_entropy(hidden @ words.t() + bias, labels, ignore_index=-100, reduction="sum")
    for each in (loss, plain):
        (each * 0.3).backward()
    assert loss.item() == pytest.approx(plain.item(), rel=tolerance)
    for mine, other in zip(ours, exact):
        assert mine.grad.dtype == mine.dtype
        torch.testing.assert_close(mine.grad, other.grad, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize(
    ("kind", "precision"), [("pretrain", "fp32"), ("pretrain", "bf16"), ("question_answering", "bf16")]
)
def test_a_run_goes_on_recomputing_and_ends_with_the_same_weights(tmp_path, kind, precision):
    write_rows(tmp_path / "rows", kind, make_columns(kind, 24))
    job_kind = "pretrain" if kind == "pretrain" else "finetune"
    whole, stopped = (make_job(tmp_path / name, job_kind, tmp_path / "rows", precision=precision) for name in "ab")
    run_here(whole)
    pausing(stopped, "saved")
    run_here(dataclasses.replace(stopped, recompute=True))
    assert result_of(stopped).resumed_from_step > 0
    torch.testing.assert_close(weights_of(whole), weights_of(stopped), rtol=0, atol=0)


def test_less_is_kept_for_the_way_back():
    model = make_model("question_answering", dataclasses.replace(TINY, num_layers=6))
    head = heads.get_head("question_answering")
    batch = Batch(np.arange(8), make_columns("question_answering", 8))
    flat, counts = flatten(batch, head.flat_labels), head.label_counts(batch)
    kept = [0, 0]
    for recompute in (False, True):
        model.bert.recompute = recompute

        def pack(tensor, recompute=recompute):
            kept[recompute] += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            head.loss(model, flat, counts)[0].backward()
    assert kept[1] < kept[0] / 4, kept
