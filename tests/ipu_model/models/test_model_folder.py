"""Model folders: ours, older names from the Hub, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_jobs import TINY
from tiny_torch import make_model
from torch import Tensor

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import open_regular, read_json
from ipu_model.models import weight_files
from ipu_model.models.architecture import BOUNDS
from ipu_model.models.family import CONFIG_KEYS
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import ModelOrigin, missing_parameters, read_model, write_model
from ipu_model.models.modeling import build_model, initialise, is_exempt
from ipu_model.models.weight_files import read_shapes

ORIGIN = ModelOrigin("a" * 64, "pretrain", "pretraining", 5, 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = make_model("pretraining", TINY)
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
    pretraining, answers = make_model("pretraining", TINY), make_model("question_answering", TINY)
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
    model = make_model("pretraining", config)
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


OLD_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) < weight_files.SAFE_TORCH
READERS: Dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda folder, _: read_model(folder),
    "taken in": lambda folder, target: import_model(folder, target, "a" * 64),
}


def refused_at_once(read: Callable[[], Any], said: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=said):
            read()
        assert tracemalloc.get_traced_memory()[1] < 500 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", 2**20, "hidden_size is 1048576; a whole number from 1 to 16384"),
        ("hidden_size", 4096, r"has shape \(.*16,?\), its config.json requires \(.*4096,?\)"),
        ("num_hidden_layers", 200_000, "num_hidden_layers is 200000; a whole number from 1 to 256"),
        ("num_hidden_layers", 250, "requires 250 layers .*its weights have 2"),
        ("vocab_size", 2_000_000, r"word_embeddings.weight has shape .*requires \(2000000, 16\)"),
        ("max_position_embeddings", 30_000, r"position_embeddings.weight has shape .*requires \(30000, 16\)"),
        ("intermediate_size", 60_000, r"intermediate.dense.bias has shape .*requires \(60000,\)"),
        ("type_vocab_size", 200, r"token_type_embeddings.weight has shape .*requires \(200, 16\)"),
        ("num_attention_heads", 3, "cannot be split over num_heads=3"),
        ("hidden_size", 16.0, "hidden_size is 16.0; a whole number"),
    ],
)
def test_a_size_that_the_weights_do_not_have(folder: Path, reader: str, key: str, value: Any, said: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    (folder.parent / "ours").mkdir()
    refused_at_once(lambda: READERS[reader](folder, folder.parent / "ours"), said)


def test_a_key_that_stands_twice_in_a_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().rstrip().rstrip("}") + ', "hidden_size": 1048576}')
    with pytest.raises(CheckpointError, match="'hidden_size' occurs twice"):
        read_model(folder)


def header_of(path: Path) -> Dict[str, Any]:
    content = path.read_bytes()
    values: Dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return values


def with_header(path: Path, header: bytes) -> None:
    content = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + int.from_bytes(content[:8], "little") :])


WORDS = "bert.embeddings.word_embeddings.weight"
CLAIMS: Dict[str, Callable[[Dict[str, Any]], Any]] = {
    "terabytes": lambda header: header[WORDS].update(shape=[2**40, 16]),
    "terabytes, with places": lambda header: header[WORDS].update(shape=[2**40, 16], data_offsets=[0, 2**46]),
    "more than there is": lambda header: header[WORDS].update(data_offsets=[2**40, 2**40 + 64 * 50]),
    "very many dimensions": lambda header: header[WORDS].update(shape=[1] * 100_000),
    "half a number": lambda header: header[WORDS].update(shape=[1.5, 2]),
    "less than nothing": lambda header: header[WORDS].update(shape=[-1, -16]),
    "another type": lambda header: header[WORDS].update(dtype="C64"),
    "a type of types": lambda header: header[WORDS].update(dtype=["F32"]),
    "nothing": lambda header: header.update({WORDS: None}),
    "one place for two": lambda header: header.update({"bert.other": header[WORDS]}),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_header_that_claims_what_is_not_there(folder: Path, claim: str) -> None:
    path = folder / "model.safetensors"
    header = header_of(path)
    CLAIMS[claim](header)
    with_header(path, json.dumps(header).encode())
    refused_at_once(lambda: read_model(folder), "model.safetensors is missing or damaged")


@pytest.mark.parametrize(
    "header", [b" " * (8 << 20), b"[" * 1_000_000, b'{"a": {}, "a": {}}', b"[]", b"\xff"], ids=["blank", *"nteb"]
)
def test_a_header_that_is_none(folder: Path, header: bytes) -> None:
    with_header(folder / "model.safetensors", header)
    refused_at_once(lambda: read_model(folder), "model.safetensors is missing or damaged")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9])
def test_a_header_longer_than_its_file(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    refused_at_once(lambda: read_shapes(path), "model.safetensors is missing or damaged")


def test_one_weight_under_two_names(folder: Path) -> None:
    path = folder / "model.safetensors"
    header = header_of(path)
    header["embeddings.word_embeddings.weight"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    with_header(path, json.dumps(header).encode())
    with pytest.raises(CheckpointError, match=f"has {WORDS} twice"):
        read_model(folder)


def pickled(folder: Path, weights: Dict[str, torch.Tensor]) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save(weights, str(folder / "pytorch_model.bin"))
    (folder.parent / "ours").mkdir()
    return folder / "pytorch_model.bin"


def test_a_pickled_file_whose_one_number_is_a_tensor_of_gigabytes(folder: Path) -> None:
    weights = read_model(folder).state
    path = pickled(folder, {**weights, "other": torch.zeros(1).expand(2**32)})
    said = "is pickled" if OLD_TORCH else f"{path} declares .* weights share memory"
    refused_at_once(lambda: import_model(folder, folder.parent / "ours", "a" * 64), said)


@pytest.mark.skipif(OLD_TORCH, reason="this torch reads no pickled file at all")
def test_a_pickled_file_that_is_packed(folder: Path) -> None:
    path = pickled(folder, read_model(folder).state)
    with zipfile.ZipFile(str(path)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content + bytes(1 << 20))
    refused_at_once(lambda: import_model(folder, folder.parent / "ours", "a" * 64), "unpacks to")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "podium.json"])
def test_a_pipe_in_a_model_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(str(folder / name))
    if name == "podium.json":
        read_model(folder)  # who trained it is then not known
    else:
        with pytest.raises(CheckpointError, match=name):
            read_model(folder)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(str(tmp_path / "pipe"))
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="is a pipe, socket or device") as caught:
            open_regular(path)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(ValueError, match="is a pipe, socket or device"):
            read_json(path)
