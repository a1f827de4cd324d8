"""ModernBERT next to transformers' own model: long sequences, every form of its config.json, and refused ones."""

import dataclasses
import json

import pytest
import torch
import transformers
from samples import (
    RATE,
    TASKS,
    build,
    draw_theirs,
    import_theirs,
    load_theirs,
    make_batch,
    require_same_logits,
    require_same_updates,
)
from tiny_jobs import LABELS, labels_of

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.models.architecture import read_config
from ipu_model.models.families import get_family
from ipu_model.models.model_folder import read_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
VALUES = {"model_type": "modernbert", **SIZES, **TOKENS}
OLDER = {"global_attn_every_n_layers": 2, "global_rope_theta": 8000.0, "local_rope_theta": 500.0}
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
FULL, SLIDING = "full_attention", "sliding_attention"
FORMS = {
    "published": {"local_attention": 128},
    "older keys": {**OLDER, "local_attention": 64, "classifier_pooling": "mean", "decoder_bias": False},
    "biases": {
        **dict.fromkeys(BIASES, True),
        "classifier_activation": "relu",
        "classifier_pooling": "mean",
        "layer_types": [SLIDING, FULL] * 2,
        "local_attention": 100,
    },
}
LONG = {"num_hidden_layers": 2, "num_attention_heads": 1, "max_position_embeddings": 12288}


def make_pair(folder, kind, **changes):
    values = {**SIZES, **TOKENS, "initializer_range": 0.3, "max_position_embeddings": 8192, **changes}
    config = transformers.ModernBertConfig(**values)
    config.id2label = dict(enumerate(LABELS[: labels_of(kind)] or LABELS[:2]))
    problems = {"sequence_multilabel": "multi_label_classification", "sequence_regression": "regression"}
    config.problem_type = problems.get(kind)
    theirs = draw_theirs(config, f"For{TASKS[kind]}", attn_implementation="sdpa")
    theirs.save_pretrained(folder / "theirs")
    path = folder / "theirs" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")
    return theirs, import_theirs(theirs, folder)


@pytest.mark.parametrize(
    ("kind", "rows", "stretch", "changes"),
    [
        *((kind, 4, 40, form) for form in FORMS.values() for kind in TASKS if kind != "pretrain"),
        ("token_classification", 1, 512, LONG),
    ],
    ids=lambda x: next((name for name, form in FORMS.items() if form is x), None),
)
def test_long_packed_sequences_are_computed_as_by_transformers(tmp_path, kind, rows, stretch, changes):
    """Sequences of 100 to 640 tokens: in groups, in a band and by the fused kernel; and one of 8192 tokens."""
    theirs, imported = make_pair(tmp_path, kind, **changes)
    model, batch = build(imported, kind), make_batch(tmp_path / "rows", kind, imported.config, rows, stretch)
    if kind != "masked_lm":
        require_same_logits(model, kind, batch, imported.config, theirs, load_theirs(tmp_path / "ours", kind))
    require_same_updates(model, kind, batch, imported.config, theirs)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu'"),
        ({"layer_types": [FULL, SLIDING, FULL, "linear_attention"]}, "layer_types must"),
        ({"local_attention": 127}, "local_attention is 127"),
        ({"embedding_dropout": 2}, "embedding_dropout is 2"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters must have full_attention"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn"}}}, "rope_type 'default'"),
        ({"global_rope_theta": -1}, "rotation of full_attention is -1"),
        ({"num_attention_heads": 16}, "16 heads of an even size"),
        ({"head_dim": 4}, "head_dim is 4"),
    ],
)
def test_a_config_that_means_another_computation_is_refused(tmp_path, changes, reason):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**VALUES, "reference_compile": True, "deterministic_flash_attn": True}))
    assert read_config(path)[0].num_layers == 4
    path.write_text(json.dumps({**VALUES, **changes}))
    with pytest.raises(CheckpointError) as error:
        read_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert reason in str(error.value)


def test_copied_layers_keep_their_kind_of_attention(tmp_path):
    make_pair(tmp_path, "masked_lm", layer_types=[FULL, FULL, SLIDING, FULL])
    fewer = read_model(tmp_path / "ours").for_layers(2).config
    assert get_family("modernbert").write_values(fewer)["layer_types"] == [FULL, FULL]
    assert [x.window for x in build_model("masked_lm", fewer).bert.encoder["layer"]] == [0, 0]


@pytest.mark.parametrize(
    ("form", "local"),
    [
        ({}, 10000.0),
        ({"global_rope_theta": 8000.0}, 10000.0),
        ({"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 8e3}, SLIDING: {"rope_theta": 5e2}}}, 500.0),
    ],
    ids=["default", "older key", "newer key"],
)
def test_another_base_of_the_global_rotation_is_read_by_transformers(tmp_path, form, local):
    path, family = tmp_path / "config.json", get_family("modernbert")
    path.write_text(json.dumps({**VALUES, **form}))
    before = read_config(path)[0]
    changed = family.with_global_theta(before, 20000.0)
    path.write_text(json.dumps(family.write_values(changed)))
    assert read_config(path)[0] == dataclasses.replace(changed, settings=read_config(path)[0].settings)
    theirs = transformers.ModernBertConfig.from_pretrained(tmp_path).rope_parameters
    assert [theirs[kind]["rope_theta"] for kind in (FULL, SLIDING)] == [20000.0, local]
    thetas = {layer.window > 0: layer.theta for layer in build_model("masked_lm", changed).bert.encoder["layer"]}
    assert thetas == {False: 20000.0, True: local}
    with pytest.raises(ConfigError, match="bert model has no rotary"):
        get_family("bert").with_global_theta(before, 20000.0)


def test_initial_weights_have_the_spread_of_those_of_transformers(tmp_path):
    values = {**VALUES, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 500}
    theirs = transformers.AutoModelForTokenClassification.from_config(transformers.ModernBertConfig(**values))
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = read_config(tmp_path / "config.json")[0]
    model = build_model("token_classification", config, 2)
    initialise(model, config, 1)
    expected = theirs.state_dict()
    for name, ours in get_family("modernbert").to_theirs(model.state_dict()).items():
        spread = expected[name].std().item() if ours.dim() > 1 else 0.0
        assert ours.std().item() == pytest.approx(spread, rel=0.15), name
        assert ours.abs().max() <= expected[name].abs().max() * 1.2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputed_layers_learn_the_same_with_dropout(tmp_path, precision):
    rates = {"attention_dropout": 0.1, "mlp_dropout": 0.2, "embedding_dropout": 0.3, "classifier_dropout": 0.1}
    _, imported = make_pair(tmp_path, "token_classification", **rates)
    batch = make_batch(tmp_path / "rows", "token_classification", imported.config, 2, 20)
    runs = []
    for recompute in (False, True):
        model = build(imported, "token_classification")
        model.bert.recompute = recompute
        runtime = TorchRuntime(model, "token_classification", 2, precision, optimizer_config(), seed=0)
        runs.append(([runtime.train_step(batch, RATE).loss for _ in range(2)], runtime.state_dict()))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(x, runs[1][1][name]) for name, x in runs[0][1].items())
