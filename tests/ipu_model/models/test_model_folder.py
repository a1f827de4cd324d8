"""Model folders: ours, older names from the Hub, and what is refused."""

import dataclasses
import errno
import json
import os
import struct
import tracemalloc
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_jobs import TINY
from tiny_torch import VERSION, make_model, write_tiny

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import open_regular, read_json
from ipu_model.models import weight_files
from ipu_model.models.architecture import BOUNDS
from ipu_model.models.family import CONFIG_KEYS
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import missing_parameters, read_model
from ipu_model.models.modeling import build_model, initialise

WORDS, WEIGHTS = "bert.embeddings.word_embeddings.weight", "model.safetensors"
OLD_TORCH = VERSION < weight_files.SAFE_TORCH


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    write_tiny(tmp_path / "model")
    return tmp_path / "model"


def rename(folder, **names):
    state = load_file(str(folder / WEIGHTS))
    for old, new in names.items():
        state = {name.replace(old, new): x for name, x in state.items()}
    save_file(state, str(folder / WEIGHTS), {"format": "pt"})


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", CONFIG_KEYS.values())
def test_what_is_no_number_of_an_architecture_is_refused(folder, name):
    assert set(CONFIG_KEYS) <= set(BOUNDS)
    for value in (True, float("nan"), 1e30, -1, "2", [2], *([0, None] if name == "layer_norm_eps" else [])):
        change_config(folder, **{name: value})
        with pytest.raises(CheckpointError, match=f"{name} is .*number from"):
            read_model(folder)


@pytest.mark.parametrize("names", [["a"], {"0": "a", "2": "b"}, {"0": ["a"]}, {"x": "a"}])
def test_classes_that_are_not_numbered_are_refused(folder, names):
    change_config(folder, id2label=names)
    with pytest.raises(CheckpointError, match="id2label must"):
        read_model(folder)


def test_a_bare_encoder_is_read_and_its_heads_are_missing(folder):
    rename(folder, **{"bert.": "", "cls.": "unused."})
    missing = missing_parameters(read_model(folder), build_model("pretraining", TINY).state_dict())
    assert missing
    assert all(name.startswith("cls.") for name in missing)


def test_weights_depend_on_the_seed_and_the_name_only():
    """The encoder is the same under both heads, and a head alone gets what it gets in the whole model."""
    pretraining, answers = (make_model(head, TINY).state_dict() for head in ("pretraining", "question_answering"))
    shared = set(pretraining) & set(answers)
    assert WORDS in shared
    assert all(torch.equal(pretraining[name], answers[name]) for name in shared)
    alone = build_model("question_answering", TINY)
    initialise(alone, TINY, seed=3, only=["qa_outputs.weight"])
    assert torch.equal(alone.state_dict()["qa_outputs.weight"], answers["qa_outputs.weight"])
    initialise(alone, TINY, seed=4)
    assert not torch.equal(alone.state_dict()["qa_outputs.weight"], answers["qa_outputs.weight"])


def test_fresh_weights_are_normal_with_the_range_of_the_config():
    model = make_model("pretraining", dataclasses.replace(TINY, hidden_size=64, initializer_range=0.05))
    weight = model.state_dict()["bert.encoder.layer.0.intermediate.dense.weight"]
    assert float(weight.std()) == pytest.approx(0.05, rel=0.05)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "LayerNorm" in name:
            assert bool((parameter == 1).all()), name
    assert not model.state_dict()[WORDS][0].any()  # [PAD]


def require_refused(folder, message, take_in=False):
    """No reader takes the memory that a file claims."""
    (folder.parent / "ours").mkdir(exist_ok=True)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=message):
            import_model(folder, folder.parent / "ours", "a" * 64) if take_in else read_model(folder)
        assert tracemalloc.get_traced_memory()[1] < 500 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("key", "value", "message"),
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
def test_a_size_that_the_weights_do_not_have_is_refused_by_both_readers(folder, key, value, message):
    change_config(folder, **{key: value})
    for take_in in (False, True):
        require_refused(folder, message, take_in)


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
DAMAGED = "model.safetensors is missing or damaged"


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header[WORDS].update(shape=[2**40, 16]),
        lambda header: header[WORDS].update(shape=[2**40, 16], data_offsets=[0, 2**46]),
        lambda header: header[WORDS].update(data_offsets=[2**40, 2**40 + 64 * 50]),
        lambda header: header[WORDS].update(shape=[1] * 100_000),
        lambda header: header[WORDS].update(shape=[1.5, 2]),
        lambda header: header[WORDS].update(shape=[-1, -16]),
        lambda header: header[WORDS].update(dtype="C64"),
        lambda header: header[WORDS].update(dtype=["F32"]),
        lambda header: header.update({WORDS: None}),
        lambda header: header.update({"bert.other": header[WORDS]}),
        lambda header: header.update({"embeddings.word_embeddings.weight": EMPTY}),
        lambda header: b" " * (8 << 20),
        lambda header: b"[" * 1_000_000,
        lambda header: b'{"a": {}, "a": {}}',
        lambda header: b"\xff",
    ],
)
def test_a_header_that_weights_cannot_have_is_refused(folder, change):
    content = (folder / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    written = change(header) or json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(written)) + written + content[end:])
    require_refused(folder, f"{DAMAGED}|has {WORDS} twice")


def claim_length(folder, length):
    path = folder / WEIGHTS
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])


def cut(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-30])


def remove(folder, name):
    (folder / name).unlink()


def pipe(folder, name):
    remove(folder, name)
    os.mkfifo(str(folder / name))


def state_twice(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().rstrip().rstrip("}") + ', "hidden_size": 1048576}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (partial(claim_length, length=2**63), DAMAGED),
        (partial(claim_length, length=10**9), DAMAGED),
        (partial(cut, name=WEIGHTS), WEIGHTS),
        (partial(cut, name="config.json"), "config.json"),
        (partial(remove, name=WEIGHTS), "is missing"),
        (partial(remove, name="config.json"), "is missing"),
        (partial(rename, **{"layer.1.output": "layer.1.other"}), r"lacks 4 weights .*encoder\.layer\.1"),
        (state_twice, "'hidden_size' occurs twice"),
        (partial(pipe, name="config.json"), "config.json"),
        (partial(pipe, name=WEIGHTS), WEIGHTS),
    ],
)
def test_a_damaged_folder_is_refused_by_name(folder, damage, message):
    damage(folder)
    require_refused(folder, message)


def pickle_weights(folder, weights):
    remove(folder, WEIGHTS)
    torch.save(weights, str(folder / "pytorch_model.bin"))
    return folder / "pytorch_model.bin"


def test_a_pickled_file_whose_one_number_is_a_tensor_of_gigabytes(folder):
    path = pickle_weights(folder, {**read_model(folder).state, "other": torch.zeros(1).expand(2**32)})
    require_refused(folder, "is pickled" if OLD_TORCH else f"{path} declares .* share memory", take_in=True)


@pytest.mark.skipif(OLD_TORCH, reason="this torch reads no pickled file at all")
def test_a_pickled_file_that_is_packed(folder):
    path = pickle_weights(folder, read_model(folder).state)
    with zipfile.ZipFile(str(path)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content + bytes(1 << 20))
    require_refused(folder, "unpacks to", take_in=True)


def test_what_is_no_file_is_not_waited_for(folder):
    pipe(folder, "podium.json")
    read_model(folder)  # who trained it is then not known
    for path in (folder / "podium.json", Path("/dev/zero")):
        with pytest.raises(OSError, match="is a pipe") as caught:
            open_regular(path)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(ValueError, match="is a pipe"):
            read_json(path)
