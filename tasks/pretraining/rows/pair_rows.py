"""Conversion of a chunk of documents into packed, masked rows; a pure function of the chunk.

A sentence ends at the end of a paragraph (newline), and after `.`, `!`, `?` or `...` with closing quotes and brackets,
if white space follows and the next word does not begin in lower case (opening quotes and brackets are ignored). `.`
after a single capital or one of a few titles ("J. Smith", "Dr. Smith") does not end a sentence. TERMINALS of other
scripts, such as the danda, need no space and no capital, as in Unicode's rules. Next-sentence prediction only needs
consecutive pieces, so a missed or an extra boundary costs little variety. Thai and Lao have no terminals: a paragraph
is one sentence.

Pairs have next-sentence labels as in BERT's pre-training (arXiv 1810.04805). A pair is two spans of one long array of
token ids, which are copied only when the rows are built. Tokens of a document are contiguous and in order, so
consecutive sentences are one span. One difference from BERT's data script: a sentence that does not fit into a row
is split into pieces of half a row, paired like sentences (`split_long_sentences`). The script truncates it to one
pair, which would discard most of a text without full stops.

Without next-sentence prediction, a sequence is one span of full sentences of a document, as many as fit (DOC-SENTENCES
of RoBERTa, arXiv 1907.11692, section 4.2); packing fills what is left of a row.

Legend: R rows, L tokens per row, S sequences per row at most, P masked positions per row at most, T tokens of all
sequences, concatenated.
"""

from __future__ import annotations

import bisect
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipu_model.rows.masking import GeneratorDraws, MaskedTokens, mask_tokens, masked_columns
from tasks.pretraining.rows.chunks import Chunk, Counts
from tasks.pretraining.rows.masking import count_maskable, count_predictions
from tasks.records.shards import SentenceLines
from tasks.rows.packing import pack_sequences
from tasks.rows.row_files import IGNORED, RowLayout
from tasks.vocabulary.encoding import encode_ids, join_sequences, load_tokenizer, read_tokenizer_info
from tasks.vocabulary.wordpiece import MAX_CHARACTERS_PER_WORD, has_marks

if TYPE_CHECKING:
    from tokenizers import Tokenizer


REAL_NEXT, RANDOM_NEXT = 0, 1
OTHER_DOCUMENT_TRIES = 10
ABBREVIATIONS = frozenset((
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Sr", "Jr", "Mt", "Ft", "Gen", "Col", "Lt", "Sgt", "Capt", "Rev", "Hon",
    "Gov", "Sen", "Rep", "Pres", "No", "Nos", "Vol", "Fig", "vs", "cf", "e.g", "i.e", "approx", "ca",
))  # fmt: skip
TERMINALS = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    r"\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    r"\u1c3b\u1c3c\u1c7e\u1c7f\u2cf9-\u2cfb\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9"
    r"\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe56\ufe57\uff01\uff1f\uff61"
)
"""Characters with Sentence_Break=STerm of Unicode 17 (UAX 29) below U+10000, for a set of a regular expression; without
those of Latin text (U+0021, U+003F, U+203C to U+2049, U+2E2E to U+2E61)."""
_OPENING = "\"'`([{\u201c\u2018\u00ab "
_LATIN = ".!?\u2026"
_END = re.compile(  # begins with one set of characters, which `re` finds many times as fast as an alternative
    rf"""[{_LATIN}{TERMINALS}] (?:
        (?<= [{_LATIN}]) [{_LATIN}]* ["')\]}}\u201d\u2019\u00bb]* \s+
        | (?<= [{TERMINALS}]) [{_LATIN}{TERMINALS}]*+ ["')\]}}\u201d\u2019\u00bb\u300d\u300f]*+ \s*+
            (?! [,:;\u055d\u060c\u060d\u2013\u2014\u3001\uff0c\uff1a\uff1b-] )  # a comma or a dash continues it
    )""",
    re.VERBOSE,
)
_LAST_WORD = re.compile(r"[^\s\"'(\[{]*$")
_LONGEST_ABBREVIATION = 8
_ENDINGS = frozenset(word[-2:] for word in ABBREVIATIONS)


@dataclass(frozen=True)
class TokenizedDocuments:
    """Documents as token ids.

    `token_ids` [T] has the tokens of all sentences; sentence n is token_ids[sentence_starts[n] :
    sentence_starts[n + 1]]; document d has the sentences document_starts[d] .. document_starts[d + 1] - 1, at least
    one. Both lists of starts have the total as an additional last entry.
    """

    token_ids: np.ndarray
    sentence_starts: list[int]
    document_starts: list[int]
    counts: Counts = field(default_factory=Counts)

    def __len__(self) -> int:
        return len(self.document_starts) - 1


class Sequences(NamedTuple):
    """N sequences of one or two segments."""

    segments: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Start and length of each segment, which is token_ids[start : start + length]; int64[N] each."""
    labels: np.ndarray
    """int8[N]: 0 = the second segment follows the first in its document, 1 = it comes from elsewhere, IGNORED = there
    is none."""


Span = tuple[int, int, int, int, int]
"""Start and end of either segment, and the label."""


def split_long_sentences(lengths: np.ndarray, room: int, segments: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the pieces into which sentences of `lengths` tokens are split, and the pieces of each.

    Of [70, 0, 61] with room=61 they are [30, 30, 10, 61] and [3, 0, 1]. What a sequence can hold stays whole.
    """
    sizes = np.where(lengths > room, room // segments, np.maximum(lengths, 1))
    numbers = -(-lengths // sizes)
    pieces, lasts = np.repeat(sizes, numbers), np.cumsum(numbers) - 1
    nonempty = numbers > 0
    pieces[lasts[nonempty]] -= (numbers * sizes - lengths)[nonempty]
    return pieces, numbers


def make_pairs(
    documents: TokenizedDocuments, room: int, short_sequence_probability: float, rng: np.random.Generator
) -> Sequences:
    """Make the sentence pairs of all documents.

    Each document draws a target length: all the `room`, or with `short_sequence_probability` any length from 2 on.
    Sentences are collected up to the target and divided in two at random. Half of the time, and whenever there is only
    one sentence, B comes from a random position of another document (of this document if it is the only one), and the
    unused sentences are put back. A pair that is too long loses tokens of its longer segment, at the front or the back
    at random.
    """
    draw = random.Random(int(rng.integers(2**63)))  # scalar draws are several times faster than NumPy's
    share, starts, borders = draw.random, documents.sentence_starts, documents.document_starts
    spans: list[Span] = []
    for document, (sentence, last) in enumerate(itertools.pairwise(borders)):
        target = draw.randint(2, room) if share() < short_sequence_probability else room
        while sentence < last:
            begin = starts[sentence]
            stop = bisect.bisect_left(starts, begin + target, sentence + 1, last)
            middle = sentence + 1 + int(share() * (stop - sentence - 1))  # = stop for a single sentence
            border = starts[middle]
            if stop - sentence == 1 or share() < 0.5:
                other = _draw_other(document, len(borders) - 1, share)
                second, end = borders[other], borders[other + 1]
                second += int(share() * (end - second))
                # as many tokens as are left, if possible
                past = bisect.bisect_left(starts, starts[second] + target - (border - begin), second + 1, end)
                spans.append((begin, border, starts[second], starts[past], RANDOM_NEXT))
                sentence = middle
            else:
                spans.append((begin, border, border, starts[stop], REAL_NEXT))
                sentence = stop
    values = np.array(spans, dtype=np.int64).reshape(-1, 5)
    return _truncate(values, room, rng)


def _draw_other(document: int, documents: int, share: Callable[[], float]) -> int:
    """Draw another document; the same if it is the only one."""
    other = document
    for _ in range(OTHER_DOCUMENT_TRIES):
        other = int(share() * documents)
        if other != document:
            break
    return other


def _truncate(spans: np.ndarray, room: int, rng: np.random.Generator) -> Sequences:
    """Truncate pairs to `room` tokens, one token at a time from the longer segment (from B if equal).

    A fair coin decides from which end each token is removed. So the number removed at the front is binomial, and one
    draw gives the same distribution as removing tokens one by one.
    """
    first_start, first_end, second_start, second_end, labels = spans.T
    first, second = first_end - first_start, second_end - second_start
    excess = np.maximum(first + second - room, 0)
    # The longer segment shrinks to the length of the other; then both alternate, B first.
    level = np.minimum(excess, np.abs(first - second))
    turns = excess - level
    off_first = np.where(first > second, level, 0) + turns // 2
    off_second = np.where(first > second, 0, level) + (turns + 1) // 2
    segments = (
        (first_start + rng.binomial(off_first, 0.5), first - off_first),
        (second_start + rng.binomial(off_second, 0.5), second - off_second),
    )
    return Sequences(segments, labels.astype(np.int8))


def fill_sequences(
    documents: TokenizedDocuments, room: int, short_sequence_probability: float, rng: np.random.Generator
) -> Sequences:
    """Fill sequences with consecutive sentences of one document; every sentence is in exactly one sequence.

    Target lengths are drawn as for pairs. A sequence has as many sentences as fit its target, at least one.
    """
    draw = random.Random(int(rng.integers(2**63)))
    starts = documents.sentence_starts
    borders: list[tuple[int, int]] = []
    for sentence, last in itertools.pairwise(documents.document_starts):
        target = draw.randint(2, room) if draw.random() < short_sequence_probability else room
        while sentence < last:
            stop = bisect.bisect_right(starts, starts[sentence] + target, sentence + 2, last + 1) - 1
            borders.append((starts[sentence], starts[stop]))
            sentence = stop
    begin, end = np.array(borders, dtype=np.int64).reshape(-1, 2).T
    return Sequences(((begin, end - begin),), np.full(len(begin), IGNORED, np.int8))


def split_sentences(text: str) -> list[str]:
    """Split `text` into stripped, non-empty sentences.

    split_sentences("He met Dr. Ay . It rained.\\nYes") == ["He met Dr. Ay .", "It rained.", "Yes"]
    """
    sentences = []
    for paragraph in text.splitlines():
        start = 0
        for match in _END.finditer(paragraph):
            at, end = match.span()
            following = paragraph[end : end + 1]
            if following in _OPENING:
                following = paragraph[end : end + 8].lstrip(_OPENING)[:1]
            if following.islower() and paragraph[at] in _LATIN:
                continue
            before = paragraph[max(0, at - 2) : at]  # decides for most sentences
            may_be_one = before in _ENDINGS or before[-1:].isupper()
            if may_be_one and paragraph.startswith(". ", at) and _is_abbreviation(paragraph, at):
                continue
            sentences.append(paragraph[start:end].strip())
            start = end
        sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_abbreviation(paragraph: str, end: int) -> bool:
    word = _LAST_WORD.search(paragraph, max(0, end - _LONGEST_ABBREVIATION), end)
    before = word.group() if word else ""
    return before in ABBREVIATIONS or (len(before) == 1 and before.isupper())


@dataclass(frozen=True)
class RowSettings:
    """Settings that, with the corpus, determine the rows of one phase."""

    tokenizer: Path
    seed: int
    phase: int
    """Number of the phase; phases draw different pairs and masks."""
    duplicates: int
    row_length: int
    max_sequences: int
    max_predictions: int
    masked_fraction: float
    short_sequence_probability: float
    segments: int
    """Segments of a sequence: 2 with next-sentence prediction, else 1."""


class PairRows(NamedTuple):
    """Rows of one chunk."""

    part: str
    columns: list[dict[str, np.ndarray]]
    """One set of columns per duplicate; empty if no document of the chunk has tokens."""
    documents: np.ndarray
    """int32[R, S]: document of each sequence of the last duplicate, its number among those with tokens; -1 = none."""
    counts: Counts


def make_chunk_rows(settings: Mapping[str, RowSettings], chunk: Chunk) -> PairRows:
    """Make the rows of a chunk with the settings of its part; a pure function, for use in any process."""
    row_settings = settings[chunk.part]
    tokenizer = load_tokenizer(row_settings.tokenizer)
    vocabulary = read_tokenizer_info(tokenizer)
    special = vocabulary.special_per_pair if row_settings.segments == 2 else vocabulary.special_per_text
    room = row_settings.row_length - special
    documents = tokenize_documents(tokenizer, chunk.texts, room, row_settings.segments, vocabulary.dtype)
    replacements = np.delete(np.arange(vocabulary.size), vocabulary.special)
    make_sequences = make_pairs if row_settings.segments == 2 else fill_sequences
    columns, numbered = [], np.empty((0, row_settings.max_sequences), np.int32)
    first_tokens = np.array(documents.sentence_starts)[documents.document_starts[:-1]]
    for duplicate in range(row_settings.duplicates if len(documents) else 0):
        rng = np.random.default_rng([row_settings.seed, row_settings.phase, duplicate, chunk.number])
        sequences = make_sequences(documents, room, row_settings.short_sequence_probability, rng)
        joined = join_sequences(vocabulary, *((documents.token_ids, *segment) for segment in sequences.segments))
        token_ids, lengths = joined.token_ids, joined.lengths
        packs = pack_sequences(lengths, row_settings.row_length, row_settings.max_sequences)
        layout = RowLayout.from_packs(packs, lengths, row_settings.row_length)
        document_of = np.searchsorted(first_tokens, sequences.segments[0][0], "right") - 1
        numbered = layout.per_sequence(document_of.astype(np.int32), -1)
        maskable = count_maskable(token_ids, lengths, vocabulary.special)
        counts = count_predictions(lengths, maskable, packs, row_settings.masked_fraction, row_settings.max_predictions)
        draws = GeneratorDraws(rng)
        masked = mask_tokens(token_ids, lengths, counts, vocabulary.special, vocabulary.mask, replacements, draws)
        columns.append(
            build_columns(layout, masked, joined.second_starts, sequences.labels, row_settings.max_predictions)
        )
    skipped = len(chunk.texts) - len(documents)
    numbers = Counts(documents=len(chunk.texts), skipped=skipped, tokens=len(documents.token_ids))
    words = count_words(chunk.texts) if vocabulary.bert else Counts()
    return PairRows(chunk.part, columns, numbered, numbers + documents.counts + words)


def count_words(texts: Sequence[str]) -> Counts:
    """Count `words` and `accented` ones, and `characters` and `unread` ones, which are in words too long for WordPiece.

    Texts of ASCII characters have neither, but for addresses; their words are not looked at, which would take long.
    """
    counts = Counts(
        words=sum(text.count(" ") + text.count("\n") + 1 for text in texts), characters=sum(map(len, texts))
    )
    for text in texts:
        if not text.isascii():
            others = [word for word in text.split() if not word.isascii()]
            counts["accented"] += sum(map(has_marks, others))
            counts["unread"] += sum(len(word) for word in others if len(word) > MAX_CHARACTERS_PER_WORD)
    return counts


def tokenize_documents(
    tokenizer: Tokenizer, texts: Sequence[str], room: int, segments: int, dtype: Any
) -> TokenizedDocuments:
    """Split texts into sentences and tokenize them; texts without a token are left out."""
    by_text = [text.split("\n") if isinstance(text, SentenceLines) else split_sentences(text) for text in texts]
    if (info := read_tokenizer_info(tokenizer)).blank_before_words:  # of a sentence after another, as within a text
        by_text = [[*sentences[:1], *map(info.as_word, sentences[1:])] for sentences in by_text]
    token_ids, counts = encode_ids(tokenizer, list(itertools.chain.from_iterable(by_text)))
    pieces, numbers = split_long_sentences(counts.astype(np.int64), room, segments)
    sentence_starts, first_pieces = (np.append(0, np.cumsum(values)) for values in (pieces, numbers))
    first_sentences = np.append(0, np.cumsum([len(sentences) for sentences in by_text], dtype=np.int64))
    document_starts = np.unique(first_pieces[first_sentences])  # once for texts without a token
    totals = Counts(
        sentences=len(counts),
        long=int((counts > room).sum()),
        single=sum(len(sentences) == 1 for sentences in by_text),
        filling=int((np.diff(sentence_starts[document_starts]) >= room).sum()),
    )
    return TokenizedDocuments(token_ids.astype(dtype), sentence_starts.tolist(), document_starts.tolist(), totals)


def build_columns(
    layout: RowLayout, masked: MaskedTokens, second_starts: np.ndarray, next_sentence_labels: np.ndarray, most: int
) -> dict[str, np.ndarray]:
    """Return the columns of `pretrain` rows, with at most `most` masked tokens each, in ascending order of positions.

    For `second_starts`, int[N], see `RowLayout.columns`; next_sentence_labels are int[N].
    """
    labels = np.full(len(layout.packs) * layout.row_length, IGNORED, np.int32)
    labels[layout.targets[masked.places]] = masked.labels
    targets = np.flatnonzero(labels != IGNORED)
    return {
        **layout.columns(masked.token_ids, second_starts),
        **masked_columns(targets, labels[targets], len(layout.packs), layout.row_length, most),
        "next_sentence_labels": layout.per_sequence(next_sentence_labels, IGNORED).astype(np.int8),
    }
