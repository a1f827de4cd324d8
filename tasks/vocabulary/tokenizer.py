"""Stage `tokenizer`: a fast tokenizer in data/tokenizer, loadable by AutoTokenizer.

    python -m tasks.vocabulary.tokenizer

`train` trains a WordPiece or byte-level BPE vocabulary on the corpus; `file` uses a vocab.txt or a model folder, `hub`
a Hub model. The same corpus and parameters give the same bytes in every process, with any number of threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipu_model.core.files import new_folder
from tasks.params.schema import TokenizerParams, load_sections
from tasks.plan.main import run_main
from tasks.records.parquet import list_corpus_files
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError
from tasks.stage.process import parse_no_arguments
from tasks.vocabulary.byte_pairs import train_byte_pairs
from tasks.vocabulary.fast_tokenizer import FastTokenizer, make_wordpiece
from tasks.vocabulary.hub_tokenizer import load_hub_vocabulary, load_local_vocabulary
from tasks.vocabulary.word_counts import count_corpus_words, measure_long_words, strip_words
from tasks.vocabulary.wordpiece import MAX_CHARACTERS_PER_WORD, train_vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

ACCENTS_SHARE = 0.02
"""Share of words with accents, vowel signs or tone marks above which these distinguish words; English has 0.0002 of
them in WikiText, Vietnamese 0.8."""
LONG_WORDS_REFUSED, LONG_WORDS_NOTED = 0.5, 0.01
"""Shares of characters in words that are too long for WordPiece."""
CAPITALS_WARNING_SHARE = 0.05
"""Share of entries with capitals above which a vocabulary is probably cased."""


def make_tokenizer(params: TokenizerParams, max_length: int, corpus: Path, output: Path) -> FastTokenizer:
    """Write the tokenizer described by `params` to the folder `output`, atomically.

    The positions of the model, `max_length`, are written as its `model_max_length`. The corpus is only read for
    `source: train`.

    Raises:
        InputError: no corpus, or a vocabulary that cannot be used; the message says what to change.
    """
    with new_folder(output) as folder:
        if params.source == "train" and params.kind == "bpe":
            files = list_corpus_files(corpus.absolute())
            vocabulary = train_byte_pairs(files, params.vocabulary_size, params.lowercase)
        elif params.source == "train":
            words = count_corpus_words(list_corpus_files(corpus.absolute()), params.lowercase, folder / "words")
            vocabulary = _train(words, params)
        elif params.source == "file":
            vocabulary = load_local_vocabulary(Path(params.path), params.lowercase)
        else:
            vocabulary = load_hub_vocabulary(params.repository, params.revision, params.lowercase)
        if params.strip_accents is not None:
            vocabulary = vocabulary.with_strip_accents(params.strip_accents)
        vocabulary = vocabulary.with_prefix_space(params.add_prefix_space)
        if vocabulary.bert and vocabulary.lowercase:
            _warn_about_capitals([token for token in vocabulary.tokens if not token.startswith("[")])
        vocabulary.write(max_length, folder)
    return vocabulary


def _train(words: pa.Table, params: TokenizerParams) -> FastTokenizer:
    """Train a vocabulary on counted words; keep accents where many words have them, unless params say otherwise."""
    strips = params.lowercase if params.strip_accents is None else params.strip_accents
    if strips:
        stripped = strip_words(words)
        strips = params.strip_accents is not None or stripped.changed <= ACCENTS_SHARE
        words = stripped.words if strips else words
        if stripped.changed > ACCENTS_SHARE:
            streams.note(
                f"tokenizer: {stripped.changed:.1%} of the words have accents, vowel signs or tone marks. "
                + ("They are removed" if strips else "They are kept (tokenizer.strip_accents: false)")
                + f"; without them, {stripped.merged:.1%} of the words {'are' if strips else 'would be'} the same as "
                "another word. Set tokenizer.strip_accents to "
                + ("false to keep them" if strips else "true to remove them, as bert-base-uncased does")
            )
    _check_long_words(words)
    entries = train_vocabulary(words, params.vocabulary_size, params.lowercase)
    return make_wordpiece(entries, params.lowercase, None if strips == params.lowercase else strips)


def _check_long_words(words: pa.Table) -> None:
    """Refuse a text of words that WordPiece does not read, and note a share of them."""
    share = measure_long_words(words)
    excess = f"{share:.1%} of the characters are in words of more than {MAX_CHARACTERS_PER_WORD} characters"
    if share > LONG_WORDS_REFUSED:
        raise InputError(
            f"{excess}. BERT's WordPiece needs blanks between words, and reads longer ones as [UNK]; Thai, Lao, Khmer, "
            "Burmese and Tibetan are written without blanks. Put blanks between the words of the text with a word "
            "segmenter (zero-width spaces do not count), or use a tokenizer that needs none, such as that of "
            "xlm-roberta-base (tokenizer.source: hub, tokenizer.repository)"
        )
    if share > LONG_WORDS_NOTED:
        streams.note(f"tokenizer: {excess}, which become [UNK]. Put blanks between the words of the text")


def _warn_about_capitals(entries: Sequence[str]) -> None:
    capitals = sum(entry != entry.lower() for entry in entries)
    if capitals > CAPITALS_WARNING_SHARE * len(entries):
        log.warning(
            "%d of %d entries have capitals and are never used with tokenizer.lowercase: true; "
            "set it to false for a cased vocabulary",
            capitals,
            len(entries),
        )


def main() -> None:
    parse_no_arguments("Make data/tokenizer: train it on the corpus, or load one.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sections = load_sections("tokenizer", "model")
    params: TokenizerParams = sections.tokenizer
    started_at = time.perf_counter()
    vocabulary = make_tokenizer(params, sections.model.max_positions, artifacts.CORPUS, artifacts.TOKENIZER)
    print(
        f"tokenizer ({params.source}): {len(vocabulary.tokens):,} entries, {vocabulary.kind}, "
        f"{time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
