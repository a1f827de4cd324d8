"""Defaults are BERT's, and what only the demo says stays in the demo."""

import re
import shutil

import pytest

from tasks.params.downstream import defaults_of
from tasks.params.overlays import layers, list_preset_names, resolve
from tasks.params.schema import default_values
from tasks.params.strict_yaml import leaves, parse_yaml, read_yaml, value_at
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.plans import resolved_params

PRESETS = ROOT / "presets"
DEMO = read_yaml(ROOT / "params.yaml")

PUBLISHED = """
# config.json of bert-base-uncased
model: {hidden_size: 768, num_layers: 12, num_heads: 12, intermediate_size: 3072, max_positions: 512}
model.: {hidden_dropout: 0.1, attention_dropout: 0.1, layer_norm_eps: 1e-12, initializer_range: 0.02}
tokenizer: {vocabulary_size: 30522, lowercase: true}
# google-research/bert: create_pretraining_data.py
pretrain_rows: {masked_fraction: 0.15, short_sequence_probability: 0.1, max_sequences_per_row: 1}
# optimization.py
pretrain: {optimizer: adamw, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-6}
pretrain.: {bias_correction: false, max_grad_norm: 1.0}
# Devlin et al. 2019, appendix A.2: a million updates of 256 sequences, nine tenths of them on 128 tokens
pretrain_rows.phase1: {duplicates: 10, row_length: 128}
pretrain_rows.phase2: {duplicates: 10, row_length: 512}
pretrain.phase1: {steps: 900000, global_batch_size: 256, learning_rate: 1e-4}
pretrain.phase2: {steps: 100000, global_batch_size: 256, learning_rate: 1e-4}
"""
"""Sections, on two lines where one is too short, and what they have."""


def with_entries(values):
    """The defaults, with those of each entry that `values` have."""
    entries = {name: defaults_of(entry["kind"], name) for name, entry in values["downstream"].items()}
    return {**default_values(), "downstream": entries}


def unsaid(preset, overrides):
    """What results otherwise than the defaults and is named by neither, where params.yaml is handed over as well."""
    values = resolve(DEMO, preset, overrides, PRESETS)
    named = {name for layer in layers(preset, overrides, PRESETS) for name, _ in leaves(layer.values)}
    defaults = dict(leaves(with_entries(values)))

    def default_of(name):  # the defaults have two phases; a further one is like the second
        return defaults[name] if name in defaults else defaults[re.sub(r"phase\d", "phase2", name)]

    return {name: value for name, value in leaves(values) if name not in named and value != default_of(name)}


def test_the_defaults_are_those_that_bert_was_published_with():
    values = default_values()
    for section, published in parse_yaml(PUBLISHED).items():
        defaults = value_at(values, section.rstrip("."))
        assert {key: defaults[key] for key in published} == published, section
    phases = (values["pretrain"][phase] for phase in ("phase1", "phase2"))
    assert sum(phase["steps"] * phase["warmup_fraction"] for phase in phases) == 10_000, "updates of warm-up"


@pytest.mark.parametrize("name", list_preset_names(PRESETS))
def test_no_preset_has_a_number_that_only_the_demo_has(name):
    assert unsaid(name, []) == {}


def test_params_yaml_is_not_read_where_a_preset_is_named(tmp_path):
    shutil.copytree(PRESETS, tmp_path / "presets")
    (tmp_path / "params.yaml").write_text("model: {hidden_size: 7}\n")
    assert resolved_params(tmp_path, "finetune", [])["model"]["hidden_size"] == 768
    with pytest.raises(ParamsError, match="hidden_size=7 must be a multiple"):
        resolved_params(tmp_path, None, [])


def test_an_entry_of_a_preset_states_its_kind(tmp_path):
    (tmp_path / "ours.yaml").write_text("description: ours\ndownstream: {squad: {finetune: {epochs: 1}}}\n")
    with pytest.raises(ParamsError, match="ours.yaml: .*downstream.squad.kind"):
        resolve(DEMO, "ours", [], tmp_path)
