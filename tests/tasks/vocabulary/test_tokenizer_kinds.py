"""A tokenizer.json from outside: BERT's kind gives the ids that it gives by itself, every other kind is refused."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.downstream.squad.ask import WindowShape, find_model
from tasks.stage.errors import InputError
from tasks.vocabulary import fast_tokenizer, hub_tokenizer
from tasks.vocabulary.encoding import load_tokenizer
from tasks.vocabulary.hub_tokenizer import load_hub_vocabulary, read_vocabulary
from tests.tasks.pretraining.row_inputs import real_data
from tests.tasks.tiny_model import write_tiny_model
from tests.tasks.tiny_model import write_tokenizer as write_theirs

TEXTS = (
    "Ada Lovelace wrote the first program, in 1843.",
    "Übergrößenträger; naïve café",
    "[SEP] in a text, [MASK]ed [PAD] and [unused7]",
    "東京 is 首都, \u200b\u00ad\x00 zero width",
    "x" * 101 + " " + "y" * 100,
    "",
)


def theirs(folder: Path) -> Tokenizer:
    """The file as the library reads it, used as this project uses it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def require_same(folder: Path) -> None:
    ours, library = load_tokenizer(folder), theirs(folder)
    assert ours.get_vocab(with_added_tokens=True) == library.get_vocab(with_added_tokens=True)
    for text in TEXTS:
        first, second = (tokenizer.encode(text, add_special_tokens=False) for tokenizer in (ours, library))
        assert (first.ids, first.offsets, first.word_ids) == (second.ids, second.offsets, second.word_ids), text


def test_a_folder_of_transformers_gives_its_own_ids(tmp_path: Path) -> None:
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(str(real_data("vocab/bert-base-uncased.txt")))
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=16)  # which save_pretrained keeps
    tokenizer.save_pretrained(str(tmp_path))
    require_same(tmp_path)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
PIECE = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
CHARSMAP = base64.b64encode(b"\4\0\0\0trie" + b"x" * 100 + b"\0").decode()
NESTED = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split("(x+x+)+[yz]")]}
CHANGES: list[tuple[str, Any, str | None]] = [
    ("normalizer", {"type": "Sequence", "normalizers": [REPLACE] * 9}, "at most one character"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, "cannot be loaded"),
    ("normalizer", None, None),
    ("normalizer clean_text", False, None),
    ("pre_tokenizer", split(" +"), None),
    ("post_processor", None, "one special token before"),
    ("model continuing_subword_prefix", "@@", None),
    ("model unk_token", "[MASK]", "has no unk_token"),
    ("model type", "BPE", "cannot be loaded"),
    ("model vocab", ["a"], "cannot be loaded"),
    ("model vocab [UNK]", True, "cannot be loaded"),
    ("model vocab ada", 2**31, "entries; at most"),
    ("model vocab ada", 0, "several tokens the same id"),
    ("added_tokens 4 lstrip", True, None),
    ("added_tokens 4 id", 1, r"'\[MASK\]' the id 1"),
    ("added_tokens 4", "x", "adds 'x'"),
    # what takes memory or time
    ("post_processor single", [PIECE] * 100_000, "more than 16 tokens"),
    ("post_processor special_tokens [CLS] ids", [2] * 100_000, "more than 16 tokens"),
    ("post_processor", {"type": "Sequence", "processors": [{"type": "ByteLevel"}] * 1000}, "more than 64 steps"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 1000}, "inserts 'xxx"),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 1000}, "more than 64 steps"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, "more than 64 bytes"),
    ("pre_tokenizer", NESTED, "takes too long"),
]
"""Place in the file, its value, and why it is refused; None: the library's own ids are used."""


def changed(folder: Path, place: str, value: Any) -> Path:
    path = write_theirs(folder, ["ada", "##s"]) / "tokenizer.json"
    values = json.loads(path.read_text())
    *steps, last = (int(step) if step.isdigit() else step for step in place.split())
    parent = values
    for step in steps:
        parent = parent[step]
    parent[last] = value
    path.write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(("place", "value", "message"), CHANGES, ids=[f"{place}-{why}" for place, _, why in CHANGES])
def test_what_is_not_of_berts_kind_is_used_as_it_is_or_refused(
    tmp_path: Path, place: str, value: Any, message: str | None
) -> None:
    folder = changed(tmp_path, place, value)
    if message is None:
        (folder / "tokenizer_config.json").unlink()
        require_same(folder)
        return
    for load in (lambda: load_tokenizer(folder), lambda: load_hub_vocabulary(str(folder), None, True)):
        with pytest.raises(InputError, match=message):
            load()


def test_a_pattern_that_takes_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_tokenizer, "TRIAL_SECONDS", 0.01)  # no Python starts so fast
    with pytest.raises(InputError, match="longer than 0.01 s"):
        load_tokenizer(changed(tmp_path, "pre_tokenizer", split(r"\\w+|\\d")))


def test_more_entries_than_any_vocabulary_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = write_theirs(tmp_path / "folder", ["a"])
    for module in (hub_tokenizer, fast_tokenizer):
        monkeypatch.setattr(module, "MAX_ENTRIES", 5)
    with pytest.raises(InputError, match="more than 5"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")
    with pytest.raises(InputError, match="6 entries; at most 5"):
        load_tokenizer(folder)
    monkeypatch.setattr(hub_tokenizer, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="at most 10"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_pipe_in_the_folder_of_a_model(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "model", ["ada"])
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        WindowShape.for_model(find_model(str(folder)))
