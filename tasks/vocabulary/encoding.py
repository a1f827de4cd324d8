"""Encoding of text into token ids with a fast tokenizer, and the template of its special tokens.

Each distinct word is tokenized once per process. BERT's tokenizer normalizes and splits every word independently, so
the tokens of a text are the concatenated tokens of its words. Split at ASCII white space and punctuation, where every
such tokenizer splits, texts consist mostly of words seen before: on Wikipedia paragraphs, looking them up is about 8
times as fast as tokenizing. Other tokenizers are split at blanks between words if they treat them independently
(fast_tokenizer.py), else they encode whole texts. Where only the ids are needed, the package nanotoken, if it is
installed, gives those of BERT's tokenizer ten times as fast.

Legend: K pieces of the texts (a word, or a punctuation mark, with the space before it), W distinct pieces.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ipu_model.core.files import sha256_of
from tasks.rows.row_files import concatenate_ranges
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.vocabulary.fast_tokenizer import LibraryErrors, Template, read_template
from tasks.vocabulary.hub_tokenizer import FILES, TOKENIZER, VOCABULARY, read_tokenizer_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_TEXTS = 512
"""Texts per call; an encoding takes far more memory than its ids."""
MAX_WORDS = 1 << 18
"""Words cached; a full cache is cleared, which bounds its memory (about 50 MB)."""
MAX_CHARACTERS = 1 << 24
"""Characters of the cached words, which are long in languages without blanks between them."""
PART_CHARACTERS = 1 << 18
"""Characters of a long text that are encoded at once: an encoding takes a hundred times the memory of its ids."""
BATCH_PIECES = 256
"""New pieces tokenized as one text."""
NANOTOKEN = "0.1.0"
"""Version of nanotoken that was compared with the tokenizers library (tests/tasks/vocabulary/test_word_cache.py)."""
_MARK = r"!-/:-@\[-`{-~"
_SPACE = r" \t\n\r"
_PIECES = re.compile(rf" ?[^{_SPACE}{_MARK}]+| ?[{_MARK}]|[{_SPACE}]")
"""Every character belongs to one piece, so the lengths of the pieces give their offsets."""
_BLANKS = re.compile(r"(?<=\S)(?= \S)")
"""Boundaries of the pieces of other tokenizers: before a single blank between two words."""


@dataclass(frozen=True, kw_only=True)
class TokenizerInfo(Template):
    """Vocabulary size, special token ids and template of a tokenizer."""

    special_per_text: ClassVar[int] = 2
    """Number of special tokens of a sequence with one text."""
    size: int
    """Number of ids."""
    pad: int
    unk: int
    mask: int
    further: tuple[int, ...] = ()
    """Ids of further special tokens with a role."""
    blank_before_words: bool = False
    """A word on its own needs a blank before it, to be encoded as it is within a text."""
    bert: bool = True
    """BERT's WordPiece, whose special tokens cannot be tokens of a text."""
    strips_accents: bool = False
    """BERT's WordPiece that removes accents, vowel signs and tone marks."""
    independent_words: bool = True
    """The tokens of a text are those of its words."""

    @property
    def special(self) -> tuple[int, ...]:
        """Ids that are never masked, and never drawn as a random replacement."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask, *self.further)

    @property
    def special_per_pair(self) -> int:
        """Number of special tokens of a sequence with two texts."""
        return 2 + len(self.between)

    def as_word(self, word: str) -> str:
        """Return the text to encode for a word of a sentence that is already split into words."""
        return f" {word}" if self.blank_before_words and not word.startswith(" ") else word

    @property
    def masking(self) -> dict[str, Any]:
        """Keys for the manifest of rows with masked tokens."""
        return {"mask_id": self.mask, "special_ids": list(self.special)}

    @property
    def dtype(self) -> Any:
        """NumPy type of the ids: uint16 if it suffices, else uint32."""
        return np.uint16 if self.size <= 65536 else np.uint32


_INFOS: weakref.WeakKeyDictionary[Tokenizer, TokenizerInfo] = weakref.WeakKeyDictionary()


def find_tokenizer_file(folder: Path) -> Path:
    """Return the file whose hash identifies the tokenizer in `folder`: tokenizer.json, or else vocab.txt."""
    paths = [Path(folder) / name for name in (TOKENIZER, VOCABULARY)]
    for path in paths:
        if path.is_file():
            return path
    raise InputError(
        f"{paths[0]} does not exist; rows need the fast tokenizer of the tokenizer stage: "
        "run `dvc repro tokenizer` first"
    )


def load_tokenizer(folder: Path = artifacts.TOKENIZER) -> Tokenizer:
    """Load the tokenizer of `folder`, without truncation and padding.

    It gives the same ids as AutoTokenizer, with one exception: tokens of the template in a text, such as "[SEP]", are
    ordinary characters (or the unknown token), so that no text can forge the structure of a sequence. Further special
    tokens of the model are recognized in a text.

    Raises:
        InputError: missing, unreadable, or not supported.
    """
    folder = find_tokenizer_file(folder).parent
    return _load(folder, tuple(sha256_of(folder / name) for name in FILES if (folder / name).is_file()))


@functools.lru_cache(maxsize=2)
def _load(folder: Path, hashes: tuple[str, ...]) -> Tokenizer:
    """Load a tokenizer; `hashes` are part of the cache key, so that changed files are read again."""
    fast_tokenizer = read_tokenizer_folder(folder, True, str(folder))
    tokenizer = fast_tokenizer.build_for_texts()
    template = read_template(tokenizer, str(folder))
    tokenizer.encode_special_tokens = True  # affects only tokens with a role: the others were added as ordinary tokens
    numbers = {name: tokenizer.token_to_id(content) for name, content in fast_tokenizer.roles.items()}
    ids = {name: number for name, number in numbers.items() if number is not None}  # every role has one
    pad, unk, mask = (ids.pop(f"{name}_token") for name in ("pad", "unk", "mask"))
    _INFOS[tokenizer] = TokenizerInfo(
        **vars(template),
        size=len(fast_tokenizer.tokens),
        pad=pad,
        unk=unk,
        mask=mask,
        further=tuple({*ids.values(), *template.between} - {template.cls, template.sep}),
        blank_before_words=fast_tokenizer.blank_before_words,
        bert=fast_tokenizer.bert,
        strips_accents=fast_tokenizer.strips_accents,
        independent_words=fast_tokenizer.treats_words_independently(tokenizer),
    )
    return tokenizer


def read_tokenizer_info(tokenizer: Tokenizer) -> TokenizerInfo:
    """Return the info of a tokenizer built by `load_tokenizer`."""
    return _INFOS[tokenizer]


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


@dataclass(frozen=True)
class JoinedSequences:
    """N concatenated sequences with special tokens."""

    token_ids: np.ndarray
    """Ids of all tokens, uint16 or uint32."""
    lengths: np.ndarray
    """int64[N] tokens of every sequence."""
    text_starts: tuple[np.ndarray, ...]
    """int64[N] for each text of the sequences: position of its first token in the sequence."""
    second_starts: np.ndarray
    """int64[N] first position with token type 1; the length if there is none."""


def join_sequences(vocabulary: TokenizerInfo, *pieces: tuple[np.ndarray, np.ndarray, np.ndarray]) -> JoinedSequences:
    """Build sequences of one or two texts with the tokenizer's template, and concatenate them.

    A piece is the source tokens, and for every sequence its first token and number of tokens, int64[N] each.
    """
    special = vocabulary.special_per_text if len(pieces) == 1 else vocabulary.special_per_pair
    lengths = special + np.sum([counts for _, _, counts in pieces], axis=0)
    firsts = np.cumsum(lengths) - lengths
    token_ids = np.full(int(lengths.sum()), vocabulary.sep, dtype=vocabulary.dtype)
    token_ids[firsts] = vocabulary.cls
    places, text_starts = firsts + 1, []
    for number, (tokens, starts, counts) in enumerate(pieces):
        for token in vocabulary.between if number else ():
            token_ids[places] = token
            places = places + 1
        text_starts.append(places - firsts)
        token_ids[concatenate_ranges(places, counts)] = tokens[concatenate_ranges(starts, counts)]
        places = places + counts
    second_starts = lengths
    if len(pieces) > 1 and vocabulary.second_type is not None:
        second_starts = text_starts[1] - len(vocabulary.between) + vocabulary.second_type
    return JoinedSequences(token_ids, lengths, tuple(text_starts), second_starts)


class WordCache:
    """Cache of the tokens of every word seen, of a tokenizer that treats words independently."""

    _split: Callable[[str], list[str]] = staticmethod(_PIECES.findall)
    """Splits a text into its pieces."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._clear()

    def _clear(self) -> None:
        self._numbers = defaultdict[str, int](itertools.count().__next__)
        self._tokens = np.empty(0, dtype=np.uint32)  # of all cached pieces, in order of their numbers
        self._spans = np.empty((0, 2), dtype=np.int32)  # characters of each token, from the start of its piece
        self._counts = np.empty(0, dtype=np.int64)  # [W] tokens of each piece
        self._characters = np.empty(0, dtype=np.int64)  # [W] length of each piece

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode `texts` as the tokenizer does."""
        if len(self._numbers) > MAX_WORDS or self._characters.sum() > MAX_CHARACTERS:
            self._clear()
        pieces: list[str] = []
        borders = [0]
        for text in texts:
            pieces += self._split(text)
            borders.append(len(pieces))
        numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))  # [K]
        if len(self._numbers) > len(self._counts):
            self._learn(list(itertools.islice(self._numbers, len(self._counts), None)))
        counts = self._counts[numbers]
        per_text = np.diff(np.concatenate([[0], np.cumsum(counts)])[borders])
        tokens = concatenate_ranges((np.cumsum(self._counts) - self._counts)[numbers], counts)
        before = np.concatenate([[0], np.cumsum(self._characters[numbers])])
        places = before[:-1] - np.repeat(before[borders[:-1]], np.diff(borders))  # [K] first character in the text
        offsets = self._spans[tokens] + np.repeat(places.astype(np.int32), counts)[:, None]
        return EncodedTexts(self._tokens[tokens], per_text, offsets)

    def _learn(self, new: Sequence[str]) -> None:
        """Tokenize the new pieces."""
        tokens, spans, counts = self._tokenize(new)
        self._tokens, self._spans = np.concatenate([self._tokens, tokens]), np.concatenate([self._spans, spans])
        self._counts = np.concatenate([self._counts, counts])
        self._characters = np.concatenate([self._characters, np.fromiter(map(len, new), np.int64, len(new))])

    def _tokenize(self, new: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenize pieces, many in one text: a call for each would take much longer.

        Return all tokens, their characters in their piece, and the number of tokens of each piece.
        """
        groups = [new[start : start + BATCH_PIECES] for start in range(0, len(new), BATCH_PIECES)]
        encodings = self._tokenizer.encode_batch([" ".join(group) for group in groups], add_special_tokens=False)
        tokens, spans, counts = [], [], []
        for group, encoding in zip(groups, encodings, strict=True):
            lengths = np.fromiter(map(len, group), np.int64, len(group)) + 1
            starts = np.cumsum(lengths) - lengths
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            owner = np.searchsorted(starts, offsets[:, 0], side="right") - 1
            tokens.append(np.array(encoding.ids, dtype=np.uint32))
            spans.append(offsets - starts[owner].astype(np.int32)[:, None])
            counts.append(np.bincount(owner, minlength=len(group)))
        return np.concatenate(tokens), np.concatenate(spans), np.concatenate(counts)


class BlankSeparatedCache(WordCache):
    """Cache of the tokens of words, each with the blank before it, of a tokenizer that treats these independently."""

    _split = staticmethod(_BLANKS.split)

    def _tokenize(self, new: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        encoded = _encode_uncached(self._tokenizer, new)
        return encoded.token_ids, encoded.offsets, encoded.lengths


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Return the tokens of every text, in order, without special tokens; each word is tokenized once per process.

    They equal those of the tokenizer, which `load_tokenizer` built.
    """
    cache = _word_cache(tokenizer)
    with LibraryErrors("the tokenizer", "cannot encode a text"):
        if cache is None:
            return _encode_uncached(tokenizer, texts)
        if len(texts) == 1 and len(texts[0]) > PART_CHARACTERS:
            return _encode_long(cache, texts[0])
        return cache.encode(texts)


def find_word_numbers(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Return the number of the word of every token of a text, int32[T]; a long text is encoded in parts."""
    words = [np.empty(0, np.int32)]
    parts = _split(text) if read_tokenizer_info(tokenizer).independent_words else [(0, text)]
    for _, part in parts:
        with LibraryErrors("the tokenizer", "cannot encode a text"):
            numbers = tokenizer.encode(part, add_special_tokens=False).word_ids
        if numbers:
            words.append(np.array(numbers, np.int32) + (words[-1][-1] + 1 if len(words[-1]) else 0))
    return np.concatenate(words)


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Yield parts of a long text, each with its place, split before single blanks between words."""
    start = 0
    while start < len(text):
        border = _BLANKS.search(text, start + PART_CHARACTERS)
        end = border.start() if border else len(text)
        yield start, text[start:end]
        start = end


def _encode_long(cache: WordCache, text: str) -> EncodedTexts:
    """Encode a long text in parts, whose words take less memory at once."""
    pieces = [(start, cache.encode([part])) for start, part in _split(text)]
    ids = np.concatenate([part.token_ids for _, part in pieces])
    offsets = np.concatenate([part.offsets + np.int32(start) for start, part in pieces])
    return EncodedTexts(ids, np.array([len(ids)]), offsets)


def encode_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and lengths that `encode` gives, by nanotoken if it is installed and the tokenizer is BERT's."""
    native = _load_nanotoken(tokenizer)
    if native is None:
        encoded = encode(tokenizer, texts)
        return encoded.token_ids, encoded.lengths
    ids, borders = native.encode_batch(texts, add_special_tokens=False, parallel=False)
    return ids, np.diff(borders)


@functools.lru_cache(maxsize=2)
def _load_nanotoken(tokenizer: Tokenizer) -> Any:
    info = read_tokenizer_info(tokenizer)
    try:
        usable = importlib.metadata.version("nanotoken") == NANOTOKEN and info.bert and info.independent_words
    except importlib.metadata.PackageNotFoundError:
        usable = False
    if not usable:
        return None
    library = importlib.import_module("nanotoken")
    library.set_cache_entries(MAX_WORDS)
    # Special tokens are ordinary characters in a text.
    values = json.loads(tokenizer.to_str()) | {"added_tokens": [], "post_processor": None}
    return library.WordPieceTokenizer.from_json(json.dumps(values))


@functools.lru_cache(maxsize=2)
def _word_cache(tokenizer: Tokenizer) -> WordCache | None:
    info = read_tokenizer_info(tokenizer)
    if not info.independent_words:
        return None
    return WordCache(tokenizer) if info.bert else BlankSeparatedCache(tokenizer)


def _encode_uncached(tokenizer: Tokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Encode texts without the cache. Tokens of the template become the unknown token: a text has only ordinary ones.

    The library would find "</s>" in a text if it is an entry of a Unigram vocabulary.
    """
    info = read_tokenizer_info(tokenizer)
    texts_only = np.arange(info.size, dtype=np.uint32)
    if not info.bert:
        texts_only[list(info.special)] = info.unk
    ids, offsets, lengths = [np.empty(0, np.uint32)], [np.empty((0, 2), np.int32)], []
    for start in range(0, len(texts), BATCH_TEXTS):
        for encoding in tokenizer.encode_batch(list(texts[start : start + BATCH_TEXTS]), add_special_tokens=False):
            ids.append(np.array(encoding.ids, dtype=np.uint32))
            offsets.append(np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2))
            lengths.append(len(encoding.ids))
    token_ids = texts_only[np.concatenate(ids)]
    return EncodedTexts(token_ids, np.array(lengths, dtype=np.int64), np.concatenate(offsets))
