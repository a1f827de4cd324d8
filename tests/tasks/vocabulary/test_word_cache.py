"""Words that are looked up, and nanotoken, give the ids and offsets of the tokenizers library on hostile text."""

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import BertNormalizer

from tasks.vocabulary import encoding
from tasks.vocabulary.encoding import (
    BATCH_PIECES,
    WordCache,
    encode,
    encode_ids,
    find_word_numbers,
    load_tokenizer,
    read_tokenizer_info,
)
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS
from tests.tasks.pretraining.row_inputs import WORDS, save_tokenizer, word_tokenizer

ODD = [
    *"aAbz09 \t\n\r!-/:@[`{~.,'\"#",
    *"\x00\x01\x0b\x0c\x1f\x7f\x85\xa0\xad",  # control characters and spaces that BERT drops or splits at
    *"éÉñçßİıſΣςﬁ½Ⅷ€–“…",
    *"\u0301\u0300\u0327\u0338\u0323\u200b\u200d\u2028\u3000\ufeff\ufffd\ue000",  # marks, joiners, odd spaces
    *"。、中文한각ᄀ",
    "\U0001f600",
    "\U0001d400",
    "[SEP]",
    "[PAD]",
    "##a",
    *WORDS[:6],
]
CLEANING = [
    {},
    {"lowercase": False},
    {"lowercase": True, "strip_accents": False},
    {"clean_text": False, "strip_accents": True},
    {"clean_text": False, "handle_chinese_chars": False, "lowercase": False, "strip_accents": False},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(word_tokenizer(tmp_path))


def check(tokenizer: Tokenizer, texts: list[str], cache: WordCache | None = None) -> None:
    """Ids and offsets are the tokenizer's own, text by text."""
    encoded, first = cache.encode(texts) if cache is not None else encode(tokenizer, texts), 0
    assert len(encoded.lengths) == len(texts)
    for text, length, start in zip(texts, encoded.lengths.tolist(), encoded.starts.tolist(), strict=True):
        expected = tokenizer.encode(text, add_special_tokens=False)
        assert start == first
        assert encoded.token_ids[first : first + length].tolist() == expected.ids, repr(text)
        assert [tuple(x) for x in encoded.offsets[first : first + length].tolist()] == expected.offsets, repr(text)
        first += length
    assert first == len(encoded.token_ids) == len(encoded.offsets)


@pytest.mark.parametrize("cleaning", CLEANING)
def test_any_characters_give_the_tokens_and_offsets_of_the_tokenizer(tokenizer: Tokenizer, cleaning: dict) -> None:
    tokenizer.normalizer = BertNormalizer(**cleaning)
    assert read_tokenizer_info(tokenizer).independent_words
    draw, cache = random.Random(5), WordCache(tokenizer)
    for _ in range(10):
        check(tokenizer, ["".join(draw.choices(ODD, k=draw.randint(0, 40))) for _ in range(100)], cache)


def test_a_long_text_is_encoded_in_parts_as_it_is_whole(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PART_CHARACTERS", 20)
    draw = random.Random(1)
    odd = ["".join(draw.choices(ODD, k=400)) for _ in range(10)]
    for text in ("one", "x" * 100, "a  b\n c " * 20, *odd):
        check(tokenizer, [text])
        numbers = tokenizer.encode(text, add_special_tokens=False).word_ids
        assert find_word_numbers(tokenizer, text).tolist() == numbers


def test_words_that_are_too_many_are_forgotten(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, words = WordCache(tokenizer), [f"w{number}" for number in range(2 * BATCH_PIECES + 3)]
    for order in (words, words[:0:-1], words):
        check(tokenizer, [" ".join(order)], cache)
    monkeypatch.setattr(encoding, "MAX_WORDS", len(words) - 1)
    check(tokenizer, ["ba de", "", "ba"], cache)


def test_a_tokenizer_with_tokens_across_words_encodes_its_texts_in_full(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.add_tokens([AddedToken("ba de")])  # a token across words
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    added = load_tokenizer(tmp_path)
    assert not read_tokenizer_info(added).independent_words
    for texts in (["ba de, ba.", "", "Go![SEP]" * 3], []):
        check(added, texts)


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
    entries = [*SPECIAL_TOKENS, *signs, *(f"##{sign}" for sign in signs), *odd]
    return save_tokenizer(folder, [*dict.fromkeys(entries)], lowercase)


@needs_nanotoken
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_the_tokenizers_library(tmp_path, lowercase):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "t", lowercase))
    texts = hostile_texts()
    ids, lengths = encode_ids(tokenizer, texts)
    assert "nanotoken" in sys.modules
    plain = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
    ours = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert [text for text, *pair in zip(texts, ours, plain, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("version", ["0.1.1", None])
def test_another_version_or_none_is_not_used_and_gives_the_same_ids(tmp_path, monkeypatch, version):
    def find_version(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(encoding.importlib.metadata, "version", find_version)
    monkeypatch.setitem(sys.modules, "nanotoken", None)  # which cannot be imported
    tokenizer, texts = load_tokenizer(write_tokenizer(tmp_path / "t", True)), ["The [MASK]", "", "ing"]
    ids, lengths = encode_ids(tokenizer, texts)
    plain = [encoded.ids for encoded in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert ids.tolist() == sum(plain, [])
    assert lengths.tolist() == [len(tokens) for tokens in plain]
