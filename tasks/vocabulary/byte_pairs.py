"""Training of a byte-level BPE vocabulary, as ModernBERT and RoBERTa have it; its bytes are always the same.

Unlike its WordPiece trainer, the library's BPE trainer numbers characters by their code and breaks ties by number, so
that equal texts give equal vocabularies in every process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Lowercase
from tokenizers.normalizers import Sequence as Steps
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from tasks.records.shards import Shard, plan_shards, read_texts
from tasks.stage.errors import InputError
from tasks.stage.parallel import StageProgress
from tasks.vocabulary.fast_tokenizer import FastTokenizer, LibraryErrors, read_fast_tokenizer
from tasks.vocabulary.wordpiece import MIN_FREQUENCY, NAMES, SPECIAL_TOKENS

MAX_BYTES = 1 << 30
"""Text that is read for a vocabulary, in shards spread evenly over the corpus: the library counts all its words in
memory."""


def train_byte_pairs(files: Sequence[Path], vocabulary_size: int, lowercase: bool) -> FastTokenizer:
    """Train a tokenizer on the texts of a corpus: special tokens, 256 bytes, then merges by frequency.

    It has at most `vocabulary_size` entries, fewer if the text has no more pairs to merge. The paths are absolute.

    Raises:
        InputError: the corpus has no characters.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = Steps([NFC(), Lowercase()]) if lowercase else NFC()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    shards = _spread(plan_shards(files))
    with LibraryErrors("tokenizer.kind: bpe", "cannot be trained"):
        tokenizer.train_from_iterator(_read(shards), trainer)
    # ModernBERT has no token types: those of a pair are all 0.
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return read_fast_tokenizer(json.loads(tokenizer.to_str()), {}, {}, NAMES.items(), "the vocabulary")


def _spread(shards: Sequence[Shard]) -> list[Shard]:
    """Return shards of MAX_BYTES of text at most, at equal distances."""
    step = -(-sum(shard.bytes for shard in shards) // MAX_BYTES)
    return list(shards[:: max(1, step)])


def _read(shards: Sequence[Shard]) -> Iterator[str]:
    progress, empty = StageProgress("words", "documents", sum(shard.documents for shard in shards)), True
    for shard in shards:
        for text in read_texts(shard):
            empty = empty and not text.strip()
            yield text
        progress.add(shard.documents)
    if empty:
        raise InputError("the corpus has no characters to train a vocabulary on: check data/corpus (corpus.source)")
