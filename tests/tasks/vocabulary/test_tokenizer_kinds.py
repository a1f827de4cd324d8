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
    ours, own = load_tokenizer(folder), theirs(folder)
    assert ours.get_vocab(with_added_tokens=True) == own.get_vocab(with_added_tokens=True)
    for text in TEXTS:
        first, second = (one.encode(text, add_special_tokens=False) for one in (ours, own))
        assert (first.ids, first.offsets, first.word_ids) == (second.ids, second.offsets, second.word_ids), text


@pytest.mark.parametrize(
    "options",
    [{}, {"do_lower_case": False}, {"strip_accents": True, "do_lower_case": False}, {"tokenize_chinese_chars": False}],
    ids=["uncased", "cased", "accents", "chinese"],
)
def test_a_folder_of_transformers_gives_its_own_ids(tmp_path: Path, options: dict[str, Any]) -> None:
    from transformers import BertTokenizerFast

    vocabulary = real_data("vocab/bert-base-uncased.txt")
    tokenizer = BertTokenizerFast(str(vocabulary), **options)
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=16)  # which save_pretrained keeps
    tokenizer.save_pretrained(str(tmp_path))
    require_same(tmp_path)


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
CHANGES: dict[str, tuple[tuple[Any, ...], Any, str | None]] = {
    "replacements": (("normalizer",), {"type": "Sequence", "normalizers": [REPLACE] * 9}, "at most one character"),
    "a table of characters": (
        ("normalizer",),
        {"type": "Precompiled", "precompiled_charsmap": ""},
        "cannot be loaded",
    ),
    "no clean-up": (("normalizer",), None, None),
    "dirt kept": (("normalizer", "clean_text"), False, None),
    "a regular expression": (
        ("pre_tokenizer",),
        {"type": "Split", "pattern": {"Regex": " +"}, "behavior": "Isolated", "invert": False},
        None,
    ),
    "another post-processor": (("post_processor",), None, "one special token before the first text"),
    "another prefix": (("model", "continuing_subword_prefix"), "@@", None),
    "another unknown": (("model", "unk_token"), "[MASK]", "has no unk_token of its own"),
    "another model": (("model", "type"), "BPE", "cannot be loaded"),
    "a vocabulary that is a list": (("model", "vocab"), ["a"], "cannot be loaded"),
    "an id that is a truth": (("model", "vocab", "[UNK]"), True, "cannot be loaded"),
    "an id past the end": (("model", "vocab", "ada"), 2**31, "entries; at most"),
    "an id twice": (("model", "vocab", "ada"), 0, "several tokens the same id"),
    "a stripping token": (("added_tokens", 4, "lstrip"), True, None),
    "two ids for a token": (("added_tokens", 4, "id"), 1, r"the added token '\[MASK\]' the id 1"),
    "not a token": (("added_tokens", 4), "x", "adds 'x'"),
}
"""What is changed in the file -> where, its value, and why it is refused; None: the library's own ids are used."""


def changed(folder: Path, place: tuple[Any, ...], value: Any) -> Path:
    path = write_theirs(folder, ["ada", "##s"]) / "tokenizer.json"
    values = json.loads(path.read_text())
    parent = values
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    path.write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_of_berts_kind_is_used_as_it_is_or_refused(tmp_path: Path, change: str) -> None:
    place, value, said = CHANGES[change]
    folder = changed(tmp_path, place, value)
    if said is None:
        (folder / "tokenizer_config.json").unlink()
        require_same(folder)
        return
    for load in (lambda: load_tokenizer(folder), lambda: load_hub_vocabulary(str(folder), None, True)):
        with pytest.raises(InputError, match=said):
            load()


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PIECE = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
CHARSMAP = base64.b64encode(b"\4\0\0\0trie" + b"x" * 100 + b"\0").decode()
BOMBS: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a long template": (("post_processor", "single"), [PIECE] * 100_000, "a template of more than 16 tokens"),
    "a long token": (("post_processor", "special_tokens", "[CLS]", "ids"), [2] * 100_000, "more than 16 tokens"),
    "many processors": (
        ("post_processor",),
        {"type": "Sequence", "processors": [{"type": "ByteLevel"}] * 1000},
        "a post_processor of more than 64 steps",
    ),
    "prepended text": (("normalizer",), {"type": "Prepend", "prepend": "x" * 1000}, "inserts 'xxx.*at most one char"),
    "prepended often": (
        ("normalizer",),
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x"}] * 1000},
        "a normalizer of more than 64 steps",
    ),
    "a table": (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, "more than 64 bytes"),
    "nested in a list": (
        ("pre_tokenizer",),
        {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split("(x+x+)+[yz]")]},
        "takes too long for some texts",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_tokenizer_that_takes_memory_or_time_is_refused_before(tmp_path: Path, bomb: str) -> None:
    place, value, said = BOMBS[bomb]
    with pytest.raises(InputError, match=said):
        load_tokenizer(changed(tmp_path, place, value))


def test_a_pattern_that_takes_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_tokenizer, "TRIAL_SECONDS", 0.01)  # no Python starts so fast
    with pytest.raises(InputError, match="longer than 0.01 s"):
        load_tokenizer(changed(tmp_path, ("pre_tokenizer",), split(r"\\w+|\\d")))


def test_more_entries_than_any_vocabulary_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = write_theirs(tmp_path / "folder", ["a"])
    for module in (hub_tokenizer, fast_tokenizer):
        monkeypatch.setattr(module, "MAX_ENTRIES", 5)
    with pytest.raises(InputError, match="more than 5 lines"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")
    with pytest.raises(InputError, match="6 entries; at most 5"):
        load_tokenizer(folder)
    monkeypatch.setattr(hub_tokenizer, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="at most 10 are allowed"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_pipe_in_the_folder_of_a_model(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "model", ["ada"])
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        WindowShape.for_model(find_model(str(folder)))
