"""BERT's WordPiece tokenizer, and the deterministic training of its vocabulary.

The `tokenizers` library alone gives a different vocabulary in each process: it numbers characters, and breaks ties
between equally frequent pairs, in the order of a hash map with a random seed. So characters are counted first and
numbered in a fixed order (as reserved entries, which the library keeps in place), which breaks every tie the same way.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

from tasks.stage.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens, in order of their ids from 0."""
NAMES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
"""Names of the special tokens in transformers."""
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
MAX_WORDS = 1 << 18
"""Words cached; a full cache is cleared, which bounds its memory."""
LONGEST_REMEMBERED = 64
"""Characters of a cached word at most; longer ones are rarely words and rarely repeat."""
COUNT_CHARACTERS = 16 << 20
"""Characters of text whose distinct words are held in memory while characters are counted."""
_REMOVED_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
"""Characters at which Python splits words but which BERT's normalization removes."""


def make_normalizer(lowercase: bool) -> BertNormalizer:
    """Return BERT's text normalization; lowercasing also strips accents, as in the uncased models."""
    return BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)


def build_wordpiece(entries: Sequence[str], lowercase: bool) -> Tokenizer:
    """Return BERT's fast tokenizer: pairs become [CLS] a [SEP] b [SEP] with type ids 0 and 1.

    Args:
        entries: the vocabulary, in order of the ids.
    """
    ids = {entry: number for number, entry in enumerate(entries)}
    longest = MAX_CHARACTERS_PER_WORD
    model = WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=longest, continuing_subword_prefix=PREFIX)
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.normalizer = make_normalizer(lowercase)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def train_vocabulary(texts: Callable[[], Iterable[str]], vocabulary_size: int, lowercase: bool) -> list[str]:
    """Train a vocabulary: special tokens, characters, then merges by frequency, in order of their ids.

    Args:
        texts: returns the corpus from its beginning; called twice. Only its distinct words are held in memory.
        vocabulary_size: entries at most; fewer if the text has no more pairs to merge.
        lowercase: fold capitals and accents.

    Raises:
        InputError: the corpus has no characters.
    """
    words = _WordCache(lowercase)
    characters = _choose_characters(texts(), words, vocabulary_size, lowercase)
    continued = [PREFIX + character for character in characters if _continues_words(character, lowercase)]
    reserved = [*SPECIAL_TOKENS, *characters, *continued]
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # `words` has normalized and split the rest
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


class _WordCache(dict[str, str]):
    """Cache of words -> their pieces after BERT's normalization and pre-tokenization.

    Both work on single characters and never across white space. The cache halves the training time on the demo's text.
    """

    def __init__(self, lowercase: bool) -> None:
        self._normalize = make_normalizer(lowercase).normalize_str
        self._split = BertPreTokenizer().pre_tokenize_str

    def __missing__(self, word: str) -> str:
        pieces = " ".join(piece for piece, _ in self._split(self._normalize(word)))
        if len(word) <= LONGEST_REMEMBERED:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = pieces
        return pieces

    def split(self, text: str) -> list[str]:
        """Split a text into words that can be processed independently; the whole text if it cannot be split so."""
        return [text] if _REMOVED_SPACE.search(text) else text.split()

    def cut(self, text: str) -> str:
        """Return the pieces of a text, separated by spaces."""
        return " ".join(map(self.__getitem__, self.split(text)))


def _choose_characters(texts: Iterable[str], words: _WordCache, vocabulary_size: int, lowercase: bool) -> list[str]:
    """Return the most frequent characters of the normalized text, in order of their code points."""
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
        raise InputError("the corpus has no characters to train a vocabulary on: check data/corpus (corpus.source)")
    seen.sort(key=lambda character: (-counts[character], character))
    room = min(MAX_SURE_CHARACTERS, vocabulary_size // 4)
    basic = dict.fromkeys(BASIC_CHARACTERS.lower() if lowercase else BASIC_CHARACTERS)
    enough = list(dict.fromkeys([*seen, *basic]))[:room]
    return sorted({*enough, *_select_covering(seen, counts, vocabulary_size, lowercase)})


def _select_covering(
    seen: Sequence[str], counts: Mapping[str, int], vocabulary_size: int, lowercase: bool
) -> list[str]:
    """Return the first of the characters `seen` that reach COVERAGE and fit into the vocabulary."""
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
    """Tell whether the pre-tokenizer keeps a character with a word; punctuation and Chinese characters stand alone."""
    text = make_normalizer(lowercase).normalize_str("a" + character)
    return len(BertPreTokenizer().pre_tokenize_str(text)) == 1
