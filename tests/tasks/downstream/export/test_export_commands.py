"""`podium export`, and `podium predict --backend` with a folder that has exported files alone."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

from flows.cli import cli
from tasks.downstream.export.model_export import draw_sequences
from tasks.downstream.export.onnx_files import compare_with_transformers, load_model, write_formats
from tasks.downstream.inference.onnx_answers import open_session
from tasks.stage.errors import InputError
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS

SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("family", "has_types"),
    [("bert", True), ("electra", True), ("distilbert", False), ("roberta", False), ("xlm-roberta", False)],
)
def test_token_types_are_an_input_only_where_the_family_has_them(tmp_path: Path, family: str, has_types: bool) -> None:
    torch.manual_seed(0)
    types: dict[str, Any] = {} if has_types else {"type_vocab_size": 1}
    sizes = {**SIZES, "vocab_size": 60, "max_position_embeddings": 66, "pad_token_id": 0, **types}
    config = transformers.AutoConfig.for_model(family, **sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    path = write_formats(model, ["onnx"], tmp_path)["onnx"]
    assert ("token_type_ids" in {one.name for one in open_session(path).get_inputs()}) is has_types
    apart = compare_with_transformers(model, path, draw_sequences(60, 60, 8))
    assert apart == pytest.approx(0.0, abs=1e-4)


def podium(*words: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, words)])
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def test_a_folder_of_exported_files_predicts_without_weights(tmp_path: Path) -> None:
    model = write_head_model(tmp_path / "model", "sequence_classification", ("good", "short"), WORDS)
    found = json.loads(podium("export", model, "--out", tmp_path / "exported", "--json"))
    assert {*found["bytes"]} == {"onnx/model.onnx", "onnx/model_quantized.onnx"}
    assert not list((tmp_path / "exported").rglob("*.safetensors"))
    words = ("--text", "word1 word2", "--json")
    answer = json.loads(podium("predict", model, *words))
    for backend in ("onnx", "int8"):
        found = json.loads(podium("predict", tmp_path / "exported", "--backend", backend, *words))
        assert found["label"] == answer["label"]
    refused = CliRunner().invoke(cli, ["predict", str(tmp_path / "exported"), *words])
    assert "has no weights" in f"{refused.output}{refused.exception}"


def claim(values: dict[str, Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **values}))

    return change


def pickle_weights(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-100])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (claim({"num_hidden_layers": 1_000_000}), "a whole number from 1 to 256 is required"),
        (claim({"hidden_size": 16_384, "intermediate_size": 65_536}), "parameters, the weights have"),
        (claim({"vocab_size": 2_000_000}), "parameters, the weights have"),
        (claim({"id2label": {str(number): "x" for number in range(100_000)}}), "parameters, the weights have"),
        (claim({"_attn_implementation": "user/repo"}), "code of a repository is not run"),
        (claim({"quantization_config": {"quant_method": "bitsandbytes"}}), "another number format"),
        (claim({"architectures": ["BertForWorldPeace"]}), "which transformers cannot load for a task"),
        (pickle_weights, "pytorch_model.bin is pickled"),
        (cut_weights, "model.safetensors is missing or damaged"),
    ],
)
def test_a_model_that_claims_too_much_is_refused_in_a_sentence_before_memory_is_taken(
    tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    model = write_head_model(tmp_path / "model", "sequence_classification", ("good", "short"), WORDS)
    change(model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=said) as refused:
        load_model(model)
    assert "\n" not in str(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
