"""Text to token ids, by the trained or given WordPiece tokenizer, and the ids of its special tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_model.files import sha256_of
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.vocabulary.hub_tokenizer import FILES, TOKENIZER, VOCABULARY, read_folder
from tasks.vocabulary.tokenizer_files import build_tokenizer
from tasks.vocabulary.word_cache import Encoded, WordCache, works_word_by_word
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENCODE_AT_ONCE = 512
"""Texts per call: an encoding takes far more memory than its ids, so few are alive at a time."""


@dataclass(frozen=True)
class Vocabulary:
    """What the rows need to know of a tokenizer.

    `size` counts all entries. The others are token ids; padding is 0 because the rows say so.
    """

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def special(self) -> tuple[int, ...]:
        """Ids that are never masked and never drawn as a random replacement."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)

    @property
    def dtype(self) -> Any:
        """numpy type of the ids: uint16 where it suffices, else uint32."""
        return np.uint16 if self.size <= 65536 else np.uint32


def tokenizer_file(folder: Path) -> Path:
    """The file that stands for the tokenizer in `folder`: tokenizer.json, or vocab.txt of a folder without one.

    Raises:
        InputError: neither is there.
    """
    paths = [Path(folder) / name for name in (TOKENIZER, VOCABULARY)]
    for path in paths:
        if path.is_file():
            return path
    raise InputError(
        f"{paths[0]} is not there: rows need the fast tokenizer that the tokenizer stage makes; "
        "run `dvc repro tokenizer` first"
    )


def load_tokenizer(folder: Path = artifacts.TOKENIZER) -> Tokenizer:
    """The tokenizer of `folder`, built from its vocabulary, without truncation and padding.

    It gives the ids of AutoTokenizer, with one difference: "[SEP]" and the like inside a text are ordinary characters,
    so that no text can forge the structure of a sequence. Special tokens of the model's own are tokens in a text.

    Raises:
        InputError: missing, unreadable, or of another kind than BERT's.
    """
    folder = tokenizer_file(folder).parent
    return _load(folder, tuple(sha256_of(folder / name) for name in FILES if (folder / name).is_file()))


@functools.lru_cache(maxsize=2)
def _load(folder: Path, hashes: tuple[str, ...]) -> Tokenizer:
    """`hashes` are part of the key: files that were written again are read again."""
    vocabulary = read_folder(folder, True, str(folder))
    extra = tuple(replace(token, special=False) for token in vocabulary.extra)
    tokenizer = build_tokenizer(replace(vocabulary, extra=extra))
    tokenizer.encode_special_tokens = True  # BERT's own alone, as the others were added as ordinary tokens
    return tokenizer


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Size and special ids of a tokenizer that `load_tokenizer` built: all are there, and [PAD] has id 0."""
    ids = [number for number in map(tokenizer.token_to_id, SPECIAL_TOKENS) if number is not None]
    return Vocabulary(tokenizer.get_vocab_size(with_added_tokens=True), *ids)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoded:
    """Tokens of every text, in order, without special tokens; every word is tokenized once per process.

    1 text or a million give the same tokens, and the same as the tokenizer itself.
    """
    cache = _word_cache(tokenizer)
    return _encode_in_full(tokenizer, texts) if cache is None else cache.encode(texts)


@functools.lru_cache(maxsize=2)
def _word_cache(tokenizer: Tokenizer) -> WordCache | None:
    return WordCache(tokenizer) if works_word_by_word(tokenizer) else None


def _encode_in_full(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoded:
    """For tokenizers of other kinds than BERT's."""
    ids, offsets, lengths = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int32)], []
    for start in range(0, len(texts), ENCODE_AT_ONCE):
        for encoding in tokenizer.encode_batch(list(texts[start : start + ENCODE_AT_ONCE]), add_special_tokens=False):
            ids.append(np.array(encoding.ids, dtype=np.uint32))
            offsets.append(np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2))
            lengths.append(len(encoding.ids))
    return Encoded(np.concatenate(ids), np.array(lengths, dtype=np.int64), np.concatenate(offsets))
