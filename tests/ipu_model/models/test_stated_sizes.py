"""A model folder that states sizes which its weights do not have is refused before memory is taken for them."""

from __future__ import annotations

import errno
import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import torch
from tiny_torch import write_tiny

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import open_regular, read_json
from ipu_model.models import weight_files
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import read_model
from ipu_model.models.weight_files import read_shapes

OLD_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) < weight_files.SAFE_TORCH
READERS: Dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda folder, _: read_model(folder),
    "taken in": lambda folder, target: import_model(folder, target, "a" * 64),
}


@pytest.fixture(name="folder")
def model_folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_tiny(tmp_path / "model")
    return tmp_path / "model"


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
        ("vocab_size", 10**9, "vocab_size is 1000000000"),
        ("vocab_size", 2_000_000, r"word_embeddings.weight has shape .*requires \(2000000, 16\)"),
        ("max_position_embeddings", 10**9, "max_position_embeddings is 1000000000"),
        ("max_position_embeddings", 30_000, r"position_embeddings.weight has shape .*requires \(30000, 16\)"),
        ("intermediate_size", 60_000, r"intermediate.dense.bias has shape .*requires \(60000,\)"),
        ("type_vocab_size", 200, r"token_type_embeddings.weight has shape .*requires \(200, 16\)"),
        ("num_attention_heads", 3, "cannot be split over num_heads=3"),
        ("num_attention_heads", -2, "num_attention_heads is -2"),
        ("hidden_size", 16.0, "hidden_size is 16.0; a whole number"),
        ("hidden_size", True, "hidden_size is True; a whole number"),
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
