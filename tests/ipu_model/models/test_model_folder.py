"""Model folders: ours, older names from the Hub, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Dict, Tuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_jobs import TINY
from torch import Tensor

from ipu_model.core.errors import CheckpointError
from ipu_model.models.architecture import BOUNDS
from ipu_model.models.family import CONFIG_KEYS
from ipu_model.models.model_folder import ModelOrigin, missing_parameters, read_model, write_model
from ipu_model.models.modeling import build_model, initialise, is_exempt

ORIGIN = ModelOrigin("a" * 64, "pretrain", "pretraining", 5, 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = build_model("pretraining", TINY)
    initialise(model, TINY, seed=1)
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", "pretraining", TINY, model.state_dict(), ORIGIN)
    return tmp_path / "model"


def rename(folder: Path, how: Dict[str, str]) -> None:
    state: Dict[str, Tensor] = load_file(str(folder / "model.safetensors"))
    for old, new in how.items():
        state = {name.replace(old, new): x for name, x in state.items()}
    save_file(state, str(folder / "model.safetensors"), {"format": "pt"})


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


NO_NUMBER = (True, float("nan"), float("inf"), 1e30, -0.1, -1, "2", [2])


@pytest.mark.parametrize(
    ("name", "values"), [(theirs, NO_NUMBER) for theirs in CONFIG_KEYS.values()] + [("layer_norm_eps", (1e30, 0, None))]
)
def test_what_is_no_number_of_an_architecture_is_refused(folder: Path, name: str, values: Tuple[object, ...]) -> None:
    assert set(CONFIG_KEYS) <= set(BOUNDS)
    for value in values:
        change_config(folder, **{name: value})
        with pytest.raises(CheckpointError, match=f"{name} is .*; a (whole )?number from .* is required"):
            read_model(folder)


@pytest.mark.parametrize("names", [["a"], {"0": "a", "2": "b"}, {"0": ["a"]}, {"x": "a"}, {"0": True}, 5])
def test_classes_that_are_not_numbered_are_refused(folder: Path, names: object) -> None:
    change_config(folder, id2label=names)
    with pytest.raises(CheckpointError, match="id2label must be an object that maps the numbers from 0 on to names"):
        read_model(folder)


def test_a_folder_comes_back_as_it_was_written(folder: Path) -> None:
    found = read_model(folder)
    model = build_model("pretraining", TINY)
    initialise(model, TINY, seed=1)
    assert found.config == TINY
    assert found.tokenizer_sha256 == "a" * 64
    assert json.loads((folder / "podium.json").read_text()) == dataclasses.asdict(ORIGIN)
    assert set(found.state) == set(model.state_dict())
    assert all(torch.equal(found.state[name], x) for name, x in model.state_dict().items())
    assert "cls.predictions.decoder.weight" not in found.state  # tied: saved once


def test_a_bare_encoder_is_read_and_its_heads_are_missing(folder: Path) -> None:
    rename(folder, {"bert.": "", "cls.": "unused."})
    found = read_model(folder)
    missing = missing_parameters(found, build_model("pretraining", TINY).state_dict())
    assert missing
    assert all(name.startswith("cls.") for name in missing)


def test_an_incomplete_encoder_is_refused(folder: Path) -> None:
    rename(folder, {"bert.encoder.layer.1.output": "bert.encoder.layer.1.other"})
    with pytest.raises(CheckpointError, match=r"lacks 4 weights of the encoder.*bert\.encoder\.layer\.1"):
        read_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        read_model(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        read_model(folder)


def test_weights_depend_on_the_seed_and_the_name_only() -> None:
    """The encoder is the same under both heads, and a head alone gets what it gets in the whole model."""
    pretraining, answers = build_model("pretraining", TINY), build_model("question_answering", TINY)
    initialise(pretraining, TINY, seed=3)
    initialise(answers, TINY, seed=3)
    shared = set(pretraining.state_dict()) & set(answers.state_dict())
    assert "bert.embeddings.word_embeddings.weight" in shared
    assert all(torch.equal(pretraining.state_dict()[n], answers.state_dict()[n]) for n in shared)
    alone = build_model("question_answering", TINY)
    initialise(alone, TINY, seed=3, only=["qa_outputs.weight"])
    assert torch.equal(alone.state_dict()["qa_outputs.weight"], answers.state_dict()["qa_outputs.weight"])
    initialise(alone, TINY, seed=4)
    assert not torch.equal(alone.state_dict()["qa_outputs.weight"], answers.state_dict()["qa_outputs.weight"])


def test_fresh_weights_are_normal_with_the_range_of_the_config() -> None:
    config = dataclasses.replace(TINY, hidden_size=64, initializer_range=0.05)
    model = build_model("pretraining", config)
    initialise(model, config, seed=0)
    weight = model.state_dict()["bert.encoder.layer.0.intermediate.dense.weight"]
    assert float(weight.std()) == pytest.approx(0.05, rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name:
            assert bool((parameter == 1).all()), name
    assert not model.state_dict()["bert.embeddings.word_embeddings.weight"][0].any()  # [PAD]


def test_biases_and_layer_norm_are_exempt() -> None:
    exempt = {n for n, p in build_model("question_answering", TINY).named_parameters() if is_exempt(p)}
    assert "bert.embeddings.LayerNorm.weight" in exempt
    assert "bert.encoder.layer.0.attention.self.key.bias" in exempt
    assert "bert.encoder.layer.0.attention.self.key.weight" not in exempt
    assert "bert.embeddings.word_embeddings.weight" not in exempt
