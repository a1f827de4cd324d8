"""A tokenizer.json from outside: BERT's kind gives the ids that it gives by itself, every other kind is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.downstream.squad.ask import WindowShape, find_model
from tasks.stage.errors import InputError
from tasks.vocabulary import hub_tokenizer, tokenizer_files
from tasks.vocabulary.encoding import load_tokenizer
from tasks.vocabulary.hub_tokenizer import load_hub_vocabulary
from tasks.vocabulary.tokenizer_files import Vocabulary, read_vocabulary
from tests.fuzzing import damaged_json, require_clean
from tests.tasks.pretraining.row_inputs import real_data
from tests.tasks.tiny_model import SPECIAL, write_tiny_model
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


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_folder_of_ours_gives_its_own_ids(tmp_path: Path, lowercase: bool) -> None:
    entries = read_vocabulary(real_data("vocab/bert-base-uncased.txt"), "tokenizer.path")
    Vocabulary(entries, lowercase).write(512, tmp_path)
    require_same(tmp_path)


def test_a_plain_folder_gives_its_own_ids(tmp_path: Path) -> None:
    require_same(write_theirs(tmp_path, ["ada", "##s", "wrote", "the", "x", "##x"]))


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
CHANGES: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "a chain of replacements": (
        ("normalizer",),
        {"type": "Sequence", "normalizers": [REPLACE] * 9},
        "the normalizer Sequence; BertNormalizer",
    ),
    "a replacement": (("normalizer",), REPLACE, "the normalizer Replace"),
    "a table of characters": (
        ("normalizer",),
        {"type": "Precompiled", "precompiled_charsmap": ""},
        "the normalizer Precompiled",
    ),
    "no clean-up": (("normalizer",), None, "the normalizer None"),
    "a text as clean-up": (("normalizer",), "BertNormalizer", "must have an object 'normalizer'"),
    "dirt kept": (("normalizer", "clean_text"), False, "clean_text False"),
    "half a switch": (("normalizer", "lowercase"), 1, "lowercase 1"),
    "a regular expression": (
        ("pre_tokenizer",),
        {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        "the pre_tokenizer Split; BertPreTokenizer",
    ),
    "another post-processor": (("post_processor",), {"type": "ByteLevel"}, "the post_processor ByteLevel"),
    "another decoder": (("decoder",), {"type": "Sequence", "decoders": []}, "the decoder Sequence; WordPiece"),
    "endless words": (
        ("model", "max_input_chars_per_word"),
        2**40,
        "max_input_chars_per_word 1099511627776; 100 is required",
    ),
    "another prefix": (("model", "continuing_subword_prefix"), "@@", "continuing_subword_prefix '@@'"),
    "another unknown": (("model", "unk_token"), "[MASK]", "unk_token '[MASK]'"),
    "another model": (("model", "type"), "BPE", "cannot be loaded"),
    "a vocabulary that is a list": (("model", "vocab"), ["a"], "must have an object 'vocab'"),
    "an id that is not a number": (("model", "vocab", "ada"), "5", "has ids with gaps; 0 to"),
    "an id that is a truth": (("model", "vocab", "[UNK]"), True, "has ids with gaps; 0 to"),
    "an id past the end": (("model", "vocab", "ada"), 2**62, "has ids with gaps; 0 to"),
    "an id twice": (("model", "vocab", "ada"), 0, "has ids with gaps; 0 to"),
    "a stripping token": (("added_tokens", 4, "lstrip"), True, "without single_word, lstrip"),  # type: ignore[dict-item]
    "two ids for a token": (("added_tokens", 4, "id"), 1, "gives '[MASK]' the ids"),  # type: ignore[dict-item]
    "not a token": (("added_tokens", 4), "x", "adds 'x'"),  # type: ignore[dict-item]
    "tokens that are none": (("added_tokens",), 7, "adds 7"),
}


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
def test_what_is_not_of_berts_kind_is_refused(tmp_path: Path, change: str) -> None:
    place, value, said = CHANGES[change]
    folder = changed(tmp_path, place, value)
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    assert said in str(caught.value)
    with pytest.raises(InputError) as caught:
        load_hub_vocabulary(str(folder), None, True)
    assert said in str(caught.value)


def test_special_tokens_of_others_are_entries_like_any(tmp_path: Path) -> None:
    folder = changed(tmp_path, ("model", "vocab", "[E1]"), len(SPECIAL) + 2)
    values = json.loads((folder / "tokenizer.json").read_text())
    values["added_tokens"].append({**values["added_tokens"][4], "content": "[E1]", "id": len(SPECIAL) + 2})
    (folder / "tokenizer.json").write_text(json.dumps(values))
    require_same(folder)


def test_whatever_stands_in_the_file_it_is_read_or_refused(tmp_path: Path) -> None:
    path = write_theirs(tmp_path, ["ada", "##s"]) / "tokenizer.json"
    for what, content in damaged_json(json.loads(path.read_text()), 60):
        path.write_bytes(content)
        require_clean(lambda: load_tokenizer(tmp_path), what, InputError)


def test_more_entries_than_any_vocabulary_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    folder = write_theirs(tmp_path / "folder", ["a"])
    for module in (tokenizer_files, hub_tokenizer):
        monkeypatch.setattr(module, "MAX_ENTRIES", 5)
    with pytest.raises(InputError, match="more than 5 lines"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")
    with pytest.raises(InputError, match="6 entries; at most 5"):
        load_tokenizer(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="at most 10 are allowed"):
        read_vocabulary(tmp_path / "vocab.txt", "tokenizer.path")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors", "tokenizer_config.json"])
def test_a_pipe_in_the_folder_of_a_model(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "model", ["ada"])
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        WindowShape.for_model(find_model(str(folder)))
