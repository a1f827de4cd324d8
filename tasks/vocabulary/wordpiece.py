"""BERT's WordPiece tokenizer, and the deterministic training of its vocabulary.

The `tokenizers` library alone gives a different vocabulary in each process: it numbers characters, and breaks ties
between equally frequent pairs, in the order of a hash map with a random seed. So characters are counted first and
numbered in a fixed order (as reserved entries, which the library keeps in place), which breaks every tie the same way.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordPiece
from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

from tasks.stage.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

WORD, COUNT = "word", "count"

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens, in order of their ids from 0."""
NAMES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
MAX_CHARACTERS_PER_WORD = 100
"""Longer words become [UNK], as in BERT."""
PREFIX = "##"
"""Prefix of a piece that continues a word."""
MAX_SURE_CHARACTERS = 1000
"""Most frequent characters that are always in the vocabulary, in at most a quarter of its entries. Further characters
are added only to reach COVERAGE; the rest become [UNK]."""
COVERAGE = 0.9995
"""Share of the text's characters that the vocabulary covers if it has room. Characters of words take two entries each
and at most half of all entries; characters that are words by themselves, such as Chinese ones, may take the rest."""
MIN_FREQUENCY = 2
"""Occurrences from which a pair of pieces is merged."""
BASIC_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!\"#$%&'()*+,-./:;<=>?@[]_`~"
"""Characters that questions may contain even if the corpus does not; added last, if there is room."""
MAX_TRAINED = 1 << 23
"""Words of a corpus, about 50 MB of text, above which their counts are divided and rounded for training: the library
reads every occurrence. A vocabulary of 30,000 needs pairs that occur some hundred times among these."""
BATCH_WORDS, TEXT_CHARACTERS = 1 << 16, 1 << 16
"""Words decoded from Arrow at a time, and characters of a text for the library."""


def make_normalizer(lowercase: bool, strip_accents: bool | None = None) -> BertNormalizer:
    """Return BERT's text normalization; lowercasing also strips accents, as in the uncased models, unless set."""
    return BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase)


_decompose = NFD().normalize_str
_strip = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False).normalize_str


def strip_marks(word: str) -> str:
    """Remove accents, vowel signs and tone marks, as BERT's normalization does."""
    return _strip(word)


@functools.lru_cache(1 << 17)
def has_marks(word: str) -> bool:
    """Tell whether a word loses accents, vowel signs or tone marks where they are stripped."""
    return not word.isascii() and _strip(word) != _decompose(word)


def build_wordpiece(entries: Sequence[str], lowercase: bool, strip_accents: bool | None = None) -> Tokenizer:
    """Return BERT's fast tokenizer, with these entries in order of the ids: pairs become [CLS] a [SEP] b [SEP] with
    type ids 0 and 1."""
    ids = {entry: number for number, entry in enumerate(entries)}
    longest = MAX_CHARACTERS_PER_WORD
    model = WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest, continuing_subword_prefix=PREFIX)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.normalizer = make_normalizer(lowercase, strip_accents)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def train_vocabulary(words: pa.Table, vocabulary_size: int, lowercase: bool) -> list[str]:
    """Train a vocabulary: special tokens, characters, then merges by frequency, in order of their ids.

    The words are from `count_corpus_words`. There are at most `vocabulary_size` entries, fewer if the text has no more
    pairs to merge. `lowercase`: leave out the capitals among BASIC_CHARACTERS.

    Raises:
        InputError: the corpus has no characters.
    """
    characters = _choose_characters(_count_characters(words), vocabulary_size, lowercase)
    continued = [PREFIX + character for character in characters if _continues_words(character)]
    reserved = [*SPECIAL_TOKENS, *characters, *continued]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=reserved,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_repeat_words(words), trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(vocabulary, key=lambda entry: vocabulary[entry])


def _repeat_words(words: pa.Table) -> Iterator[str]:
    """Yield each word as often as it occurs, or a share of it: the library takes text, not counts."""
    import pyarrow as pa  # not needed to use a tokenizer
    import pyarrow.compute as pc

    counts = words[COUNT].to_numpy()
    share = -(-int(counts.sum()) // MAX_TRAINED)
    scaled = words.set_column(1, COUNT, pa.array((2 * counts + share) // (2 * share))).filter(pc.field(COUNT) > 0)
    for batch in scaled.to_batches(BATCH_WORDS):
        for word, count in zip(batch[WORD].to_pylist(), batch[COUNT].to_pylist(), strict=True):
            most = max(1, TEXT_CHARACTERS // len(word))
            for done in range(0, count, most):
                yield f"{word} " * min(most, count - done)


def _choose_characters(counts: Mapping[str, int], vocabulary_size: int, lowercase: bool) -> list[str]:
    """Return the most frequent characters of the normalized text, in order of their code points."""
    if not counts:
        raise InputError("the corpus has no characters to train a vocabulary on: check data/corpus (corpus.source)")
    seen = sorted(counts, key=lambda character: (-counts[character], character))
    room = min(MAX_SURE_CHARACTERS, vocabulary_size // 4)
    basic = dict.fromkeys(BASIC_CHARACTERS.lower() if lowercase else BASIC_CHARACTERS)
    enough = list(dict.fromkeys([*seen, *basic]))[:room]
    return sorted({*enough, *_select_covering(seen, counts, vocabulary_size)})


def _count_characters(words: pa.Table) -> dict[str, int]:
    import numpy as np
    import pyarrow.compute as pc

    counts = np.zeros(0x110000, np.int64)
    for batch in words.to_batches(BATCH_WORDS):
        codes = np.frombuffer("".join(batch[WORD].to_pylist()).encode("utf-32-le"), np.uint32)
        times = np.repeat(batch[COUNT].to_numpy(), pc.utf8_length(batch[WORD]).to_numpy())
        counts += np.bincount(codes, times, len(counts)).astype(np.int64)  # exact below 2**53
    return {chr(code): int(counts[code]) for code in np.flatnonzero(counts)}


def _select_covering(seen: Sequence[str], counts: Mapping[str, int], vocabulary_size: int) -> list[str]:
    """Return the first of the characters `seen` that reach COVERAGE and fit into the vocabulary."""
    missing = COVERAGE * sum(counts[character] for character in seen)
    room, room_in_words = vocabulary_size - len(SPECIAL_TOKENS), vocabulary_size // 2
    kept: list[str] = []
    for character in seen:
        in_words = _continues_words(character)
        room -= 1 + in_words
        room_in_words -= 2 * in_words
        if missing <= 0 or min(room, room_in_words) < 0:
            break
        kept.append(character)
        missing -= counts[character]
    return kept


def _continues_words(character: str) -> bool:
    """Tell whether the pre-tokenizer keeps a character with a word; punctuation and Chinese characters stand alone."""
    text = make_normalizer(lowercase=False).normalize_str("a" + character)
    return len(BertPreTokenizer().pre_tokenize_str(text)) == 1
