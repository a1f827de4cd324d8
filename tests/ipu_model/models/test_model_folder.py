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
from typing import Any, Callable, Dict

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_jobs import TINY
from tiny_torch import make_model

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import open_regular, read_json
from ipu_model.models import weight_files
from ipu_model.models.architecture import BOUNDS
from ipu_model.models.family import CONFIG_KEYS
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import ModelOrigin, missing_parameters, read_model, write_model
from ipu_model.models.modeling import build_model, initialise

ORIGIN = ModelOrigin("a" * 64, "pretrain", "pretraining", 5, 7)
WORDS = "bert.embeddings.word_embeddings.weight"
OLD_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) < weight_files.SAFE_TORCH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model", "pretraining", TINY, make_model("pretraining", TINY).state_dict(), ORIGIN)
    return tmp_path / "model"


def rename(folder: Path, how: Dict[str, str]) -> None:
    state = load_file(str(folder / "model.safetensors"))
    for old, new in how.items():
        state = {name.replace(old, new): x for name, x in state.items()}
    save_file(state, str(folder / "model.safetensors"), {"format": "pt"})


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", CONFIG_KEYS.values())
def test_what_is_no_number_of_an_architecture_is_refused(folder: Path, name: str) -> None:
    assert set(CONFIG_KEYS) <= set(BOUNDS)
    for value in (True, float("nan"), 1e30, -0.1, -1, "2", [2], *([0, None] if name == "layer_norm_eps" else [])):
        change_config(folder, **{name: value})
        with pytest.raises(CheckpointError, match=f"{name} is .*number from"):
            read_model(folder)


@pytest.mark.parametrize("names", [["a"], {"0": "a", "2": "b"}, {"0": ["a"]}, {"x": "a"}])
def test_classes_that_are_not_numbered_are_refused(folder: Path, names: object) -> None:
    change_config(folder, id2label=names)
    with pytest.raises(CheckpointError, match="id2label must"):
        read_model(folder)


def test_a_bare_encoder_is_read_and_its_heads_are_missing(folder: Path) -> None:
    rename(folder, {"bert.": "", "cls.": "unused."})
    missing = missing_parameters(read_model(folder), build_model("pretraining", TINY).state_dict())
    assert missing
    assert all(name.startswith("cls.") for name in missing)


def test_weights_depend_on_the_seed_and_the_name_only() -> None:
    """The encoder is the same under both heads, and a head alone gets what it gets in the whole model."""
    pretraining, answers = make_model("pretraining", TINY), make_model("question_answering", TINY)
    shared = set(pretraining.state_dict()) & set(answers.state_dict())
    assert WORDS in shared
    assert all(torch.equal(pretraining.state_dict()[n], answers.state_dict()[n]) for n in shared)
    alone = build_model("question_answering", TINY)
    initialise(alone, TINY, seed=3, only=["qa_outputs.weight"])
    assert torch.equal(alone.state_dict()["qa_outputs.weight"], answers.state_dict()["qa_outputs.weight"])
    initialise(alone, TINY, seed=4)
    assert not torch.equal(alone.state_dict()["qa_outputs.weight"], answers.state_dict()["qa_outputs.weight"])


def test_fresh_weights_are_normal_with_the_range_of_the_config() -> None:
    model = make_model("pretraining", dataclasses.replace(TINY, hidden_size=64, initializer_range=0.05))
    weight = model.state_dict()["bert.encoder.layer.0.intermediate.dense.weight"]
    assert float(weight.std()) == pytest.approx(0.05, rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name:
            assert bool((parameter == 1).all()), name
    assert not model.state_dict()[WORDS][0].any()  # [PAD]


READERS: Dict[str, Callable[[Path, Path], Any]] = {
    "read": lambda folder, _: read_model(folder),
    "taken in": lambda folder, target: import_model(folder, target, "a" * 64),
}


def refused_at_once(folder: Path, reader: str, said: str) -> None:
    """No reader takes the memory that a file claims."""
    (folder.parent / "ours").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=said):
            READERS[reader](folder, folder.parent / "ours")
        assert tracemalloc.get_traced_memory()[1] < 500 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", 2**20, "hidden_size is 1048576"),
        ("hidden_size", 4096, r"has shape \(.*16,?\), .*requires \(.*4096,?\)"),
        ("num_hidden_layers", 200_000, "num_hidden_layers is 200000"),
        ("num_hidden_layers", 250, "requires 250 layers .*weights have 2"),
        ("vocab_size", 2_000_000, r"word_embeddings.weight .*requires \(2000000, 16\)"),
        ("max_position_embeddings", 30_000, r"position_embeddings.weight .*requires \(30000, 16\)"),
        ("intermediate_size", 60_000, r"intermediate.dense.bias .*requires \(60000,\)"),
        ("type_vocab_size", 200, r"token_type_embeddings.weight .*requires \(200, 16\)"),
        ("num_attention_heads", 3, "split over num_heads=3"),
        ("hidden_size", 16.0, "hidden_size is 16.0"),
    ],
)
def test_a_size_that_the_weights_do_not_have(folder: Path, reader: str, key: str, value: Any, said: str) -> None:
    change_config(folder, **{key: value})
    refused_at_once(folder, reader, said)


def with_header(change: Callable[[Dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the header of model.safetensors, or replace it by the bytes that `change` returns."""

    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        found = change(header)
        written = found if isinstance(found, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(written)) + written + content[end:])

    return damage


def claiming(**claims: Any) -> Callable[[Path], None]:
    return with_header(lambda header: header[WORDS].update(claims))


def of_length(length: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])

    return damage


def cut_short(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-30]) and None


def replaced_by_a_pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(str(folder / name))

    return damage


def stating_a_key_twice(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().rstrip().rstrip("}") + ', "hidden_size": 1048576}')


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
DAMAGED = "model.safetensors is missing or damaged"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (claiming(shape=[2**40, 16]), DAMAGED),
        (claiming(shape=[2**40, 16], data_offsets=[0, 2**46]), DAMAGED),
        (claiming(data_offsets=[2**40, 2**40 + 64 * 50]), DAMAGED),
        (claiming(shape=[1] * 100_000), DAMAGED),
        (claiming(shape=[1.5, 2]), DAMAGED),
        (claiming(shape=[-1, -16]), DAMAGED),
        (claiming(dtype="C64"), DAMAGED),
        (claiming(dtype=["F32"]), DAMAGED),
        (with_header(lambda header: header.update({WORDS: None})), DAMAGED),
        (with_header(lambda header: header.update({"bert.other": header[WORDS]})), DAMAGED),
        (with_header(lambda header: header.update({"embeddings.word_embeddings.weight": EMPTY})), f"has {WORDS} twice"),
        (with_header(lambda header: b" " * (8 << 20)), DAMAGED),
        (with_header(lambda header: b"[" * 1_000_000), DAMAGED),
        (with_header(lambda header: b'{"a": {}, "a": {}}'), DAMAGED),
        (with_header(lambda header: b"\xff"), DAMAGED),
        (of_length(2**63), DAMAGED),
        (of_length(10**9), DAMAGED),
        (cut_short("model.safetensors"), "model.safetensors"),
        (cut_short("config.json"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is missing"),
        (lambda folder: (folder / "config.json").unlink(), "is missing"),
        (lambda folder: rename(folder, {"layer.1.output": "layer.1.other"}), r"lacks 4 weights .*encoder\.layer\.1"),
        (stating_a_key_twice, "'hidden_size' occurs twice"),
        (replaced_by_a_pipe("config.json"), "config.json"),
        (replaced_by_a_pipe("model.safetensors"), "model.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    refused_at_once(folder, "read", said)


def pickled(folder: Path, weights: Dict[str, torch.Tensor]) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save(weights, str(folder / "pytorch_model.bin"))
    return folder / "pytorch_model.bin"


def test_a_pickled_file_whose_one_number_is_a_tensor_of_gigabytes(folder: Path) -> None:
    path = pickled(folder, {**read_model(folder).state, "other": torch.zeros(1).expand(2**32)})
    refused_at_once(folder, "taken in", "is pickled" if OLD_TORCH else f"{path} declares .* share memory")


@pytest.mark.skipif(OLD_TORCH, reason="this torch reads no pickled file at all")
def test_a_pickled_file_that_is_packed(folder: Path) -> None:
    path = pickled(folder, read_model(folder).state)
    with zipfile.ZipFile(str(path)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content + bytes(1 << 20))
    refused_at_once(folder, "taken in", "unpacks to")


def test_what_is_no_file_is_not_waited_for(folder: Path) -> None:
    replaced_by_a_pipe("podium.json")(folder)
    read_model(folder)  # who trained it is then not known
    for path in (folder / "podium.json", Path("/dev/zero")):
        with pytest.raises(OSError, match="is a pipe") as caught:
            open_regular(path)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(ValueError, match="is a pipe"):
            read_json(path)
