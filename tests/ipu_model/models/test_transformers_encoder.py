"""Encoders of transformers as models of our heads: the same logits, updates and folders; what is refused, by name."""

import dataclasses
import importlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_jobs import LABELS, labels_of, make_columns, make_job, result_of, run_here, weights_of, write_rows
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from ipu_model import heads
from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.jobs.job import BatchGeometry, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.models.flat import flatten
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import read_model
from ipu_model.models.modeling import build_model
from ipu_model.models.transformers_encoder import CALL_TOKENS, group_lengths
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

transformers = pytest.importorskip("transformers", reason="computes these encoders")

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES.update(intermediate_size=32, max_position_embeddings=34)
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DEBERTA_V3 = {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
DEBERTA_V3.update(pos_att_type=["p2c", "c2p"], type_vocab_size=0, position_biased_input=False, pooler_dropout=0.0)
CONFIGS = {
    "deberta-v2": {**SIZES, **STILL, **DEBERTA_V3},
    "mpnet": {**SIZES, **STILL, "pad_token_id": 1},
    "albert": {**SIZES, **STILL, "embedding_size": 8, "classifier_dropout_prob": 0.0},
}
HEADS = ("sequence_classification", "token_classification", "question_answering")
TYPES = pytest.mark.parametrize("model_type", CONFIGS)


def make_theirs(model_type, suffix):
    """A random model of transformers; its biases and norms are also random."""
    if model_type not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    torch.manual_seed(3)
    values = {**CONFIGS[model_type], "initializer_range": 0.2}
    config = transformers.AutoConfig.for_model(model_type, **values)
    if "Classification" in suffix:
        config.id2label, config.label2id = dict(enumerate(LABELS)), {name: n for n, name in enumerate(LABELS)}
    model = getattr(transformers, f"AutoModel{suffix}").from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight) * (weight.dim() == 1))
    return model.eval()


def take_in(folder, model):
    """The folder of a model as the stage base_model writes it."""
    model.save_pretrained(str(folder / "theirs"))
    (folder / "base").mkdir()
    import_model(folder / "theirs", folder / "base", "t" * 64)
    return folder / "base"


def pad_sequences(flat, config):
    """The sequences of a batch in one rectangle, as a data collator of transformers makes it."""
    lengths = flat.lengths.tolist()

    def pad(values, padding=0):
        return pad_sequence(values[: sum(lengths)].long().split(lengths), batch_first=True, padding_value=padding)

    inputs = {
        "input_ids": pad(flat.tokens.input_ids, config.pad_token_id),
        "attention_mask": pad(torch.ones(sum(lengths))),
    }
    if getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = pad(flat.tokens.token_type_ids)
    return inputs


def their_logits(model, flat):
    """Logits [N, C], or those of the real tokens."""
    inputs = pad_sequences(flat, model.config)
    outputs = model(**inputs)
    ends = [outputs[name] for name in ("start_logits", "end_logits") if name in outputs]
    logits = torch.stack(ends, -1) if ends else outputs.logits
    return logits if logits.dim() == 2 else logits[inputs["attention_mask"].bool()]


@TYPES
@pytest.mark.parametrize("head", HEADS)
def test_folders_logits_and_three_updates_are_those_of_transformers(tmp_path, model_type, head, monkeypatch):
    """AdamW with weight decay on matrices alone, in several micro-batches, and groups of similar lengths in each."""
    theirs = make_theirs(model_type, heads.get_head(head).suffix)
    batch = Batch(np.arange(12), make_columns(head, 12, seed=3))
    flat = flatten(batch, heads.get_head(head).flat_labels)
    assert batch.sequences > len(batch.rows)  # packed rows give the same numbers
    base = read_model(take_in(tmp_path, theirs))
    ours = build_model(head, base.config, labels_of(head))
    ours.load_state_dict(base.state)
    back, report = type(theirs).from_pretrained(str(tmp_path / "base"), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in back.state_dict().items())
    with torch.no_grad():
        expected = their_logits(theirs, flat)
    assert float(expected.std()) > 0.05
    runtime = TorchRuntime(ours, head, 4, "fp32", optimizer_config("adamw", weight_decay=0.1), 0)
    names = heads.get_head(head).logits
    stacked = (np.stack([x.columns[name] for name in names], -1) for x in runtime.predict(batch))
    each = [x.reshape(-1, expected.shape[1]) for x in stacked]
    np.testing.assert_allclose(np.concatenate(each), expected.numpy(), atol=1e-5, rtol=1e-5)
    monkeypatch.setitem(CALL_TOKENS, "cpu", 5)
    exempt = [p for p in theirs.parameters() if p.dim() < 2]
    groups = [{"params": [p for p in theirs.parameters() if p.dim() > 1]}, {"params": exempt, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1, eps=1e-6)
    for _ in range(3):
        logits, labels = their_logits(theirs, flat), [x[x != -100] for x in flat.labels.values()]
        if head == "question_answering":
            parts = [part.split(flat.lengths.tolist()) for part in logits.unbind(-1)]
            losses = [cross_entropy(x[None], y[None]) for part, y_ in zip(parts, labels) for x, y in zip(part, y_)]
            loss = torch.stack(losses).mean()
        else:
            counted = next(iter(flat.labels.values()))[: len(logits)] != -100
            loss = cross_entropy(logits[counted], labels[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert runtime.train_step(batch, 1e-3).loss == pytest.approx(loss.item(), rel=1e-5)
    for name, weight in theirs.named_parameters():
        if weight.grad is not None and float(weight.grad.abs().max()) > 1e-6:  # else Adam scales up rounding
            torch.testing.assert_close(ours.get_parameter(name), weight, atol=1e-5, rtol=1e-5, msg=name)


@TYPES
def test_a_job_trains_in_bf16_to_the_same_bits_with_and_without_recomputation(tmp_path, model_type):
    """A new head, drawn from the seed, on an encoder that was saved without one."""
    base = take_in(tmp_path, make_theirs(model_type, ""))
    write_rows(tmp_path / "rows", HEADS[0], make_columns(HEADS[0], 24))
    settings = {"model": None, "init_checkpoint": str(base), "head": HEADS[0], "labels": list(LABELS)}
    settings.update(precision="bf16", geometry=BatchGeometry(8, 4), schedule=ScheduleConfig(steps=4))
    plain = make_job(tmp_path / "plain", "finetune", tmp_path / "rows", **settings)
    again = dataclasses.replace(plain, run_folder=str(tmp_path / "2"), output=str(tmp_path / "again"))
    run_here(dataclasses.replace(again, recompute=model_type == "deberta-v2"))
    (plan,) = run_here(plain).of("plan")
    assert f"{model_type} of transformers" in plan["device"]["encoder"]
    assert result_of(plain).versions["transformers"] == transformers.__version__
    assert read_model(Path(plain.output)).labels == list(LABELS)
    torch.testing.assert_close(weights_of(again), weights_of(plain), rtol=0, atol=0)


@pytest.mark.parametrize("call", [0, 30, 10**6])
def test_groups_of_similar_lengths_cost_least(call):
    lengths = [100, 95, 95, 60, 59, 20, 6, 5]
    groups = [x.tolist() for x in group_lengths(lengths, call)]
    assert sum(groups, []) == lengths
    splits = (np.split(lengths, ends) for n in range(8) for ends in itertools.combinations(range(1, 8), n))
    costs = [sum(len(x) * int(x.max()) + call for x in split) for split in splits]
    assert sum(len(x) * max(x) + call for x in groups) == min(costs)


def test_settings_and_classes_are_those_of_the_type_itself(tmp_path):
    """Dropout by the keys of its own config; classes in another order reorder the matrix of classes alone."""
    head = heads.get_head(HEADS[0])
    base = read_model(take_in(tmp_path, make_theirs("mpnet", head.suffix)))
    turned = base.for_labels(head, LABELS[::-1])
    for name, weight in base.state.items():
        assert torch.equal(turned.state[name], weight.flip(0) if "out_proj" in name else weight), name
    kept = base.for_labels(head, ["good", "bad"]).state
    assert sorted(set(base.state) - set(kept)) == ["classifier.out_proj.bias", "classifier.out_proj.weight"]
    model = build_model(HEADS[0], dataclasses.replace(base.config, hidden_dropout=0.3, attention_dropout=0.2), 3)
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (0.3, 0.2)
    with pytest.raises(ConfigError, match="mpnet .*device.recompute"):
        model.recompute = True


def test_what_cannot_run_is_refused_by_name(tmp_path, monkeypatch):
    base = take_in(tmp_path, make_theirs("deberta-v2", ""))
    write_rows(tmp_path / "rows", HEADS[0], make_columns(HEADS[0], 12))
    settings = {"model": None, "init_checkpoint": str(base), "head": HEADS[0], "labels": list(LABELS)}
    job = make_job(tmp_path, "finetune", tmp_path / "rows", **settings)
    family = importlib.import_module("ipu_model.models.families").get_family("deberta-v2")
    with pytest.raises(ConfigError, match="deberta-v2 .*IPUs"):
        family.check("ipu", False)
    with pytest.raises(CheckpointError, match="gpt2"):
        build_model(HEADS[0], ModelConfig(60, family="gpt2"), 3)
    config = json.loads((base / "config.json").read_text())
    for change, message in (
        ({"auto_map": {"AutoModel": "their--code"}}, "Python code of its own"),
        ({"quantization_config": {"bits": 4}}, "another number format"),
        ({"n_layers": 1_000_000}, "n_layers is 1000000"),
        ({"num_hidden_layers": 3}, "lacks 16 weights"),
    ):
        (base / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(CheckpointError, match=message):
            run_here(job)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    (tmp_path / "again").mkdir()
    with pytest.raises(CheckpointError, match="16 weights .*unknown"):
        import_model(tmp_path / "theirs", tmp_path / "again", "t" * 64)
    (base / "config.json").write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="the package transformers"):
        run_here(job)
