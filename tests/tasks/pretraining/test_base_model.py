"""A given model: taken in, held against tokenizer and parameters, and what training makes of it."""

import json

import pytest
from safetensors.numpy import load_file

from ipu_model.core.files import sha256_of
from tasks.models.model_folders import select_model_files
from tasks.pretraining.base_model import RECORD, format_summary, write_base_model
from tasks.stage.errors import InputError
from tests.tasks.pretraining.row_inputs import LETTERS, WORDS
from tests.tasks.pretraining.small_training import params_with
from tests.tasks.tiny_model import HIDDEN, INTERMEDIATE, LAYERS, write_tiny_model

VOCABULARY = [*dict.fromkeys([*LETTERS, *WORDS, "."])]
MODEL = [
    *(f"model.hidden_size={HIDDEN}", f"model.num_layers={LAYERS}", f"model.intermediate_size={INTERMEDIATE}"),
    *("model.num_heads=2", "model.max_positions=512"),
]


@pytest.fixture
def given(tmp_path):
    write_tiny_model(tmp_path / "tokenizer", VOCABULARY)
    return write_tiny_model(tmp_path / "given", VOCABULARY)


def take_in(given, *overrides):
    params = params_with(*MODEL, "base_model.source=folder", f"base_model.path={given}", *overrides)
    root = given.parent
    return write_base_model(params.base_model, params.model, root / "tokenizer", root / "base")


def refusal(given, *overrides):
    with pytest.raises(InputError) as caught:
        take_in(given, *overrides)
    assert not list(given.parent.glob("base*"))
    return str(caught.value)


def test_a_folder_is_taken_in_bit_for_bit_and_said(given):
    assert "base_model.source is none" in refusal(given, "base_model.source=none")
    record = take_in(given)
    base = given.parent / "base"
    theirs, ours = load_file(given / "model.safetensors"), load_file(base / "model.safetensors")
    assert {name: x.tobytes() for name, x in theirs.items()} == {name: x.tobytes() for name, x in ours.items()}
    assert json.loads((base / RECORD).read_text()) == json.loads(json.dumps(record))
    assert record["architecture"] == "BertForQuestionAnswering"
    assert record["weights_sha256"] == sha256_of(given / "model.safetensors")
    digest = sha256_of(given.parent / "tokenizer" / "tokenizer.json")
    assert json.loads((base / "podium.json").read_text())["tokenizer_sha256"] == digest
    assert f"{record['parameters']:,} parameters" in format_summary(record)
    assert "bert.pooler.dense.weight" in format_summary(record), "missing weights are reported"


def test_another_architecture_is_refused_with_the_settings_that_fit(given):
    message = refusal(given, "model.num_layers=3", "model.layer_norm_eps=0.001")
    assert message.endswith("--set model.num_layers=2 --set model.layer_norm_eps=1e-12")
    take_in(given, "model.hidden_dropout=0.5", "model.initializer_range=0.5")  # no part of the weights


def test_another_vocabulary_is_refused(given):
    write_tiny_model(given.parent / "tokenizer", [*VOCABULARY, "more"])
    assert f"{5 + len(VOCABULARY)} word embeddings" in refusal(given)
    write_tiny_model(given.parent / "tokenizer", [VOCABULARY[1], VOCABULARY[0], *VOCABULARY[2:]])
    assert "entry 5 " in refusal(given)
    (given / "tokenizer.json").unlink()
    take_in(given)  # nothing to compare with but the size


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"model_type": "gpt2"}', "vocab_size and hidden_size"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "\x08", "missing or damaged"),
    ],
)
def test_what_is_no_model_is_refused_with_the_parameter_that_named_it(given, file, content, message):
    (given / file).unlink() if content is None else (given / file).write_text(content)
    refused = refusal(given)
    assert message in refused
    assert f"base_model.path={given}" in refused


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("present", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", SHARDS[0]], ["model.safetensors"]),
        ([*SHARDS, "pytorch_model.bin"], SHARDS),
        (["pytorch_model.bin", "training_args.bin", "optimizer.bin", "onnx/model.onnx"], ["pytorch_model.bin"]),
        (["tf_model.h5", "model.py"], []),
    ],
)
def test_of_a_hub_model_only_what_is_read_is_downloaded(present, weights):
    chosen = select_model_files(["README.md", "config.json", "vocab.txt", *present])
    assert chosen == ["config.json", *weights, "vocab.txt"]
