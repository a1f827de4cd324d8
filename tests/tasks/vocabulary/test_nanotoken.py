"""nanotoken gives the ids of the tokenizers library on hostile text, or it is not used."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import numpy as np
import pytest

from tasks.vocabulary import encoding
from tasks.vocabulary.encoding import encode_ids, load_tokenizer
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS

needs_nanotoken = pytest.mark.skipif(importlib.util.find_spec("nanotoken") is None, reason="needs the extra fast")
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
POOLS = (
    CHARACTERS,
    CHARACTERS[:0x3000],
    [*map(chr, range(32)), *" ab.\u00a0\u2028\u2029\u0085\u200b\ufeff\u00ad\u200d"],
    list("aAeEéÉiİıßſΣσςﬁǅ\u0301\u0327\u0345 "),
    list("가각中文日本のカﾞ "),
    list("[]MASKSEPCLSPADUNK# "),
)
LONG = ("a", "é", "e\u0301", "中", ".", "😀", "a\0", "İ", "\u0301", "ß")


def hostile_texts() -> list[str]:
    """Every tenth character in a context, random mixtures, special tokens, and words around the longest."""
    draw = random.Random(3)
    texts = [f"a{sign}b {sign} x{sign}{sign}" for sign in CHARACTERS[::10] + CHARACTERS[:0x3000]]
    texts += ["".join(draw.choices(POOLS[n % len(POOLS)], k=draw.randint(1, 60))) for n in range(6000)]
    texts += [form for token in SPECIAL_TOKENS for form in (token, f"x{token}y", token * 3, token.lower(), token[:-1])]
    return [*texts, *(unit * count for unit in LONG for count in (99, 100, 101, 5000)), "", " ", "\0", "a\x0bb\x85c"]


def write_tokenizer(folder: Path, lowercase: bool) -> Path:
    signs = [chr(code) for code in (*range(33, 127), *range(0xA1, 0x250), *range(0x300, 0x530), *range(0x4E00, 0x4F00))]
    odd = ["the", "##ing", "##", "a b", "###", "##[", "Ab", "ss", "##ss", "i̇", "ﬁ", "😀"]
    folder.mkdir()
    entries = [*SPECIAL_TOKENS, *signs, *(f"##{sign}" for sign in signs), *odd]
    make_wordpiece(list(dict.fromkeys(entries)), lowercase).write(512, folder)
    return folder


@needs_nanotoken
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_the_tokenizers_library(tmp_path, lowercase):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "t", lowercase))
    texts = hostile_texts()
    assert encoding._load_nanotoken(tokenizer) is not None
    ids, lengths = encode_ids(tokenizer, texts)
    plain = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    found = np.split(ids, np.cumsum(lengths)[:-1])
    assert [text for text, one, other in zip(texts, found, plain, strict=True) if one.tolist() != other] == []


@pytest.mark.parametrize("version", ["0.1.1", None])
def test_another_version_or_none_is_not_used_and_gives_the_same_ids(tmp_path, monkeypatch, version):
    def find_version(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(encoding.importlib.metadata, "version", find_version)
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "t", True))
    assert encoding._load_nanotoken(tokenizer) is None
    ids, lengths = encode_ids(tokenizer, ["The [MASK]", "", "ing"])
    plain = [one.ids for one in tokenizer.encode_batch(["The [MASK]", "", "ing"], add_special_tokens=False)]
    assert ids.tolist() == sum(plain, [])
    assert lengths.tolist() == [len(one) for one in plain]
