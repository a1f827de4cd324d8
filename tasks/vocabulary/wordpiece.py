"""Training a WordPiece vocabulary, the same bytes for the same text.

The `tokenizers` library alone gives another vocabulary in each process: it numbers characters, and settles
ties between equally frequent pairs, in the order of a hash map with a random seed. Here the characters are
counted first and numbered in a fixed order (as reserved entries, which the library keeps in place), so that
every tie is settled alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from tasks.stage.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""In this order from id 0."""
PREFIX = "##"
"""How a piece begins that continues a word."""
ENOUGH_CHARACTERS = 1000
"""Characters that the vocabulary has where the text has them, rare as they may be, in at most a quarter of its
entries; the rest become [UNK]. More are kept only for COVERAGE."""
COVERAGE = 0.9995
"""Share of the text's characters that the vocabulary covers where it has room. Characters of words take two entries
each and get at most half of all; those that are words by themselves, such as Chinese ones, get what room there is."""
MIN_FREQUENCY = 2
"""A pair of pieces seen once is not merged."""
BASIC_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!\"#$%&'()*+,-./:;<=>?@[]_`~"
"""Questions may hold them even where the corpus does not; added after what was seen, if there is room."""
MAX_WORDS = 1 << 18
"""Words remembered; past them all are forgotten, so that memory does not grow with the text."""
LONGEST_REMEMBERED = 64
"""Characters. Longer ones are rarely words: text without spaces would fill the memory and never come again."""
COUNT_CHARACTERS = 16 << 20
"""Characters of text whose different words are held at a time while characters are counted."""
_REMOVED_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""Where Python splits words and BERT's clean-up joins them."""


def bert_normalizer(lowercase: bool) -> BertNormalizer:
    """Text clean-up of BERT; accents go with the capitals, as in the uncased models."""
    return BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)


def train_vocabulary(texts: Callable[[], Iterable[str]], vocabulary_size: int, lowercase: bool) -> list[str]:
    """WordPiece entries in order of their ids: special tokens, characters, then merges by frequency.

    Args:
        texts: gives the corpus from its beginning; called twice; of it all only the different words are held.
        vocabulary_size: entries at most; fewer when the text has no more pairs to merge.
        lowercase: fold capitals and accents.

    Raises:
        InputError: the corpus has no characters.
    """
    words = _Words(lowercase)
    characters = _characters(texts(), words, vocabulary_size, lowercase)
    continued = [PREFIX + character for character in characters if _continues_words(character, lowercase)]
    reserved = [*SPECIAL_TOKENS, *characters, *continued]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # `words` has done the rest
    trainer = WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=reserved,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(words.cut, texts()), trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(vocabulary, key=lambda entry: vocabulary[entry])


class _Words(dict[str, str]):
    """Words as they stand in texts, cleaned and cut by BERT's rules: every word is once, not wherever it stands.

    Both rules look at a character and never across white space. On the demo's text training takes half as long so.
    """

    def __init__(self, lowercase: bool) -> None:
        self._normalize = bert_normalizer(lowercase).normalize_str
        self._split = BertPreTokenizer().pre_tokenize_str

    def __missing__(self, word: str) -> str:
        pieces = " ".join(piece for piece, _ in self._split(self._normalize(word)))
        if len(word) <= LONGEST_REMEMBERED:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = pieces
        return pieces

    def split(self, text: str) -> list[str]:
        """The words of a text, each to be cut by itself; the whole text where words cannot be told apart so."""
        return [text] if _REMOVED_SPACE.search(text) else text.split()

    def cut(self, text: str) -> str:
        """The pieces of a text, apart by a space."""
        return " ".join(map(self.__getitem__, self.split(text)))


def _characters(texts: Iterable[str], words: _Words, vocabulary_size: int, lowercase: bool) -> list[str]:
    """The most frequent characters of the normalized text, in order of their code points."""
    counts: Counter[str] = Counter()
    waiting: Counter[str] = Counter()

    def count() -> None:
        for word, times in waiting.items():
            for character in words[word]:
                counts[character] += times
        waiting.clear()

    held = 0
    for text in texts:
        waiting.update(words.split(text))
        held += len(text)
        if held >= COUNT_CHARACTERS:
            count()
            held = 0
    count()
    seen = [character for character in counts if not character.isspace()]
    if not seen:
        raise InputError("the corpus holds no characters to train a vocabulary on: check data/corpus (corpus.source)")
    seen.sort(key=lambda character: (-counts[character], character))
    room = min(ENOUGH_CHARACTERS, vocabulary_size // 4)
    basic = dict.fromkeys(BASIC_CHARACTERS.lower() if lowercase else BASIC_CHARACTERS)
    enough = list(dict.fromkeys([*seen, *basic]))[:room]
    return sorted({*enough, *_covering(seen, counts, vocabulary_size, lowercase)})


def _covering(seen: Sequence[str], counts: Mapping[str, int], vocabulary_size: int, lowercase: bool) -> list[str]:
    """Return the first of the characters `seen` that COVERAGE takes and the vocabulary has room for."""
    missing = COVERAGE * sum(counts[character] for character in seen)
    room, room_in_words = vocabulary_size - len(SPECIAL_TOKENS), vocabulary_size // 2
    kept: list[str] = []
    for character in seen:
        in_words = _continues_words(character, lowercase)
        room -= 1 + in_words
        room_in_words -= 2 * in_words
        if missing <= 0 or min(room, room_in_words) < 0:
            break
        kept.append(character)
        missing -= counts[character]
    return kept


def _continues_words(character: str, lowercase: bool) -> bool:
    """False where the pre-tokenizer cuts: punctuation and Chinese characters are words of their own."""
    text = bert_normalizer(lowercase).normalize_str("a" + character)
    return len(BertPreTokenizer().pre_tokenize_str(text)) == 1
