"""Encoding of text into token ids with a WordPiece tokenizer, and the ids of its special tokens.

Each distinct word is tokenized once per process. BERT's tokenizer normalizes and splits every word independently, so
the tokens of a text are the concatenated tokens of its words. Split at ASCII white space and punctuation, where every
such tokenizer splits, texts consist mostly of words seen before: on Wikipedia paragraphs, looking them up is about 8
times as fast as tokenizing.

Legend: K pieces of the texts (a word, or a punctuation mark, with the space before it), W distinct pieces.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipu_model.files import sha256_of
from tasks.rows.row_files import concatenate_ranges
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.vocabulary.hub_tokenizer import FILES, TOKENIZER, VOCABULARY, read_tokenizer_folder
from tasks.vocabulary.tokenizer_files import build_tokenizer
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_TEXTS = 512
"""Texts per call; an encoding takes far more memory than its ids."""
MAX_WORDS = 1 << 18
"""Words cached; a full cache is cleared, which bounds its memory (about 50 MB)."""
BATCH_PIECES = 256
"""New pieces tokenized as one text."""
_MARK = r"!-/:-@\[-`{-~"
_SPACE = r" \t\n\r"
_PIECES = re.compile(rf" ?[^{_SPACE}{_MARK}]+| ?[{_MARK}]|[{_SPACE}]")
"""Every character belongs to one piece, so the lengths of the pieces give their offsets."""


@dataclass(frozen=True)
class TokenizerInfo:
    """Vocabulary size and special token ids of a tokenizer.

    `size` counts all entries; the other fields are token ids. The row format requires `pad` to be 0.
    """

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def special(self) -> tuple[int, ...]:
        """Ids that are never masked, and never drawn as a random replacement."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)

    @property
    def dtype(self) -> Any:
        """NumPy type of the ids: uint16 if it suffices, else uint32."""
        return np.uint16 if self.size <= 65536 else np.uint32


def find_tokenizer_file(folder: Path) -> Path:
    """Return the file whose hash identifies the tokenizer in `folder`: tokenizer.json, or else vocab.txt.

    Raises:
        InputError: neither file exists.
    """
    paths = [Path(folder) / name for name in (TOKENIZER, VOCABULARY)]
    for path in paths:
        if path.is_file():
            return path
    raise InputError(
        f"{paths[0]} does not exist; rows need the fast tokenizer of the tokenizer stage: "
        "run `dvc repro tokenizer` first"
    )


def load_tokenizer(folder: Path = artifacts.TOKENIZER) -> Tokenizer:
    """Load the tokenizer of `folder`, built from its vocabulary, without truncation and padding.

    It gives the same ids as AutoTokenizer, with one exception: BERT's special tokens in a text, such as "[SEP]", are
    ordinary characters, so that no text can forge the structure of a sequence. Further special tokens of the model are
    recognized in a text.

    Raises:
        InputError: missing, unreadable, or not a BERT tokenizer.
    """
    folder = find_tokenizer_file(folder).parent
    return _load(folder, tuple(sha256_of(folder / name) for name in FILES if (folder / name).is_file()))


@functools.lru_cache(maxsize=2)
def _load(folder: Path, hashes: tuple[str, ...]) -> Tokenizer:
    """Load a tokenizer; `hashes` are part of the cache key, so that changed files are read again."""
    vocabulary = read_tokenizer_folder(folder, True, str(folder))
    extra = tuple(replace(token, special=False) for token in vocabulary.extra)
    tokenizer = build_tokenizer(replace(vocabulary, extra=extra))
    tokenizer.encode_special_tokens = True  # affects only BERT's own: the others were added as ordinary tokens
    return tokenizer


def read_tokenizer_info(tokenizer: Tokenizer) -> TokenizerInfo:
    """Return size and special ids of a tokenizer built by `load_tokenizer`: it has all of them, and [PAD] has id 0."""
    ids = [number for number in map(tokenizer.token_to_id, SPECIAL_TOKENS) if number is not None]
    return TokenizerInfo(tokenizer.get_vocab_size(with_added_tokens=True), *ids)


@dataclass(frozen=True)
class EncodedTexts:
    """Tokens of N texts, concatenated, without special tokens; T tokens in all."""

    token_ids: np.ndarray
    """uint32[T]."""
    lengths: np.ndarray
    """int64[N], number of tokens of each text; the sum is T."""
    offsets: np.ndarray
    """int32[T, 2], characters of each token in its text, end exclusive."""

    @property
    def starts(self) -> np.ndarray:
        """int64[N], first token of each text."""
        return np.cumsum(self.lengths) - self.lengths


def join_sequences(
    vocabulary: TokenizerInfo, *pieces: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Build sequences [CLS] piece [SEP], or [CLS] piece [SEP] piece [SEP], and concatenate them.

    Args:
        pieces: the source tokens, and for every sequence its first token and number of tokens, int64[N] each.

    Returns:
        Ids of all tokens, uint16 or uint32, and the length of every sequence, int64[N].
    """
    lengths = 1 + np.sum([counts + 1 for _, _, counts in pieces], axis=0)
    places = np.cumsum(lengths) - lengths
    token_ids = np.full(int(lengths.sum()), vocabulary.sep, dtype=vocabulary.dtype)
    token_ids[places] = vocabulary.cls
    for tokens, starts, counts in pieces:
        token_ids[concatenate_ranges(places + 1, counts)] = tokens[concatenate_ranges(starts, counts)]
        places = places + counts + 1
    return token_ids, lengths


def works_word_by_word(tokenizer: Tokenizer) -> bool:
    """Tell whether a tokenizer treats words independently: ordinary added tokens are matched across words.

    Args:
        tokenizer: built by `load_tokenizer`.
    """
    return all(token.special for token in tokenizer.get_added_tokens_decoder().values())


class _Numbers(dict[str, int]):
    """Numbers of pieces; a new piece gets the next number."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, piece: str) -> int:
        self[piece] = number = len(self)
        self.new.append(piece)
        return number


class WordCache:
    """Cache of the tokens of every word seen. `tokenizer` must work word by word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._clear()

    def _clear(self) -> None:
        self._numbers = _Numbers()
        self._tokens = np.empty(0, dtype=np.uint32)  # of all cached pieces, in order of their numbers
        self._spans = np.empty((0, 2), dtype=np.int32)  # characters of each token, from the start of its piece
        self._counts = np.empty(0, dtype=np.int64)  # [W] tokens of each piece
        self._characters = np.empty(0, dtype=np.int64)  # [W] length of each piece

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode `texts` as the tokenizer does."""
        if len(self._numbers) > MAX_WORDS:
            self._clear()
        pieces: list[str] = []
        borders = [0]
        for text in texts:
            pieces += _PIECES.findall(text)
            borders.append(len(pieces))
        numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))  # [K]
        self._learn()
        counts = self._counts[numbers]
        per_text = np.diff(np.concatenate([[0], np.cumsum(counts)])[borders])
        tokens = concatenate_ranges((np.cumsum(self._counts) - self._counts)[numbers], counts)
        before = np.concatenate([[0], np.cumsum(self._characters[numbers])])
        places = before[:-1] - np.repeat(before[borders[:-1]], np.diff(borders))  # [K] first character in the text
        offsets = self._spans[tokens] + np.repeat(places.astype(np.int32), counts)[:, None]
        return EncodedTexts(self._tokens[tokens], per_text, offsets)

    def _learn(self) -> None:
        """Tokenize the new pieces, many in one text: a call for each would take much longer."""
        new, self._numbers.new = self._numbers.new, []
        if not new:
            return
        groups = [new[start : start + BATCH_PIECES] for start in range(0, len(new), BATCH_PIECES)]
        encodings = self._tokenizer.encode_batch([" ".join(group) for group in groups], add_special_tokens=False)
        lengths = np.fromiter(map(len, new), np.int64, len(new))
        tokens, spans, owners = [self._tokens], [self._spans], []
        for number, encoding in enumerate(encodings):
            first = number * BATCH_PIECES
            own = lengths[first : first + BATCH_PIECES] + 1
            starts = np.cumsum(own) - own
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            owner = np.searchsorted(starts, offsets[:, 0], side="right") - 1
            tokens.append(np.array(encoding.ids, dtype=np.uint32))
            spans.append(offsets - starts[owner].astype(np.int32)[:, None])
            owners.append(owner + first)
        self._tokens, self._spans = np.concatenate(tokens), np.concatenate(spans)
        self._counts = np.concatenate([self._counts, np.bincount(np.concatenate(owners), minlength=len(new))])
        self._characters = np.concatenate([self._characters, lengths])


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Return the tokens of every text, in order, without special tokens; each word is tokenized once per process.

    The tokens do not depend on the batch, and equal those of the tokenizer, which `load_tokenizer` built.
    """
    cache = _word_cache(tokenizer)
    return _encode_uncached(tokenizer, texts) if cache is None else cache.encode(texts)


@functools.lru_cache(maxsize=2)
def _word_cache(tokenizer: Tokenizer) -> WordCache | None:
    return WordCache(tokenizer) if works_word_by_word(tokenizer) else None


def _encode_uncached(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Encode texts without the cache, for tokenizers with tokens that are matched across words."""
    ids, offsets, lengths = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int32)], []
    for start in range(0, len(texts), BATCH_TEXTS):
        for encoding in tokenizer.encode_batch(list(texts[start : start + BATCH_TEXTS]), add_special_tokens=False):
            ids.append(np.array(encoding.ids, dtype=np.uint32))
            offsets.append(np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2))
            lengths.append(len(encoding.ids))
    return EncodedTexts(np.concatenate(ids), np.array(lengths, dtype=np.int64), np.concatenate(offsets))
