"""Stage `tokenizer`: a fast tokenizer in data/tokenizer, loadable by AutoTokenizer.

    python -m tasks.vocabulary.tokenizer

`train` trains a WordPiece vocabulary on the corpus; `file` uses a vocab.txt or a model folder, `hub` a Hub model. The
same corpus and parameters give the same bytes in every process, with any number of threads.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from ipu_model.files import new_folder
from tasks.params.schema import TokenizerParams, load_sections
from tasks.plan.main import run_main
from tasks.records.parquet import list_corpus_files
from tasks.stage import artifacts
from tasks.stage.process import parse_no_arguments
from tasks.vocabulary.fast_tokenizer import FastTokenizer, make_wordpiece
from tasks.vocabulary.hub_tokenizer import load_hub_vocabulary, load_local_vocabulary
from tasks.vocabulary.word_counts import count_corpus_words
from tasks.vocabulary.wordpiece import train_vocabulary

log = logging.getLogger(__name__)

CAPITALS_WARNING_SHARE = 0.05
"""Share of entries with capitals above which a vocabulary is probably cased."""


def make_tokenizer(params: TokenizerParams, max_length: int, corpus: Path, output: Path) -> FastTokenizer:
    """Write the tokenizer described by `params` to the folder `output`, atomically.

    Args:
        max_length: positions of the model (model.max_positions), written as the tokenizer's `model_max_length`.
        corpus: folder of the corpus stage; only read for `source: train`.

    Raises:
        InputError: no corpus, or a vocabulary that cannot be used; the message says what to change.
    """
    with new_folder(output) as folder:
        if params.source == "train":
            words = count_corpus_words(list_corpus_files(corpus.absolute()), params.lowercase, folder / "words")
            vocabulary = make_wordpiece(
                train_vocabulary(words, params.vocabulary_size, params.lowercase), params.lowercase
            )
        elif params.source == "file":
            vocabulary = load_local_vocabulary(Path(params.path), params.lowercase)
        else:
            vocabulary = load_hub_vocabulary(params.repository, params.revision, params.lowercase)
        if vocabulary.bert and vocabulary.lowercase:
            _warn_about_capitals([token for token in vocabulary.tokens if not token.startswith("[")])
        vocabulary.write(max_length, folder)
    return vocabulary


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
    own = load_sections("tokenizer", "model")
    params: TokenizerParams = own.tokenizer
    started_at = time.perf_counter()
    vocabulary = make_tokenizer(params, own.model.max_positions, artifacts.CORPUS, artifacts.TOKENIZER)
    print(
        f"tokenizer ({params.source}): {len(vocabulary.tokens):,} entries, {vocabulary.kind}, "
        f"{time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
