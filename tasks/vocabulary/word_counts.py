"""Counts of the words of a corpus, normalized and split as BERT does: a map over shards, and a merge.

A shard takes a second or two at most, so a stopped stage counts again. A word is normalized once per shard, not
wherever it stands: normalization and pre-tokenization work on single characters and never across white space.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers.pre_tokenizers import BertPreTokenizer

from ipu_model.core.files import new_file
from tasks.records.parquet import split_into_groups
from tasks.records.shards import Shard, plan_shards, read_text_arrays
from tasks.stage.parallel import StageProgress, ordered_map, useful_workers
from tasks.vocabulary.wordpiece import COUNT, MAX_CHARACTERS_PER_WORD, WORD, has_marks, make_normalizer, strip_marks

COUNT_BYTES = 16 << 20
"""Text whose distinct words are held in memory at a time, with their counts."""
SHARDS_FOR_PROCESSES = 8
"""Shards from which more processes pay off: one takes 0.2 s or more, and a process 0.6 s to start."""
MAX_WORDS, MAX_BYTES = 1 << 21, 1 << 28
"""Distinct words and their bytes held while counts are added up, which bounds memory (900 MB when 24 shards have 12
million). Beyond, the rarest are dropped, in a fixed order; the vocabulary ignores words that are this rare anyway
(wordpiece.MAX_TRAINED)."""
LEAST_ADDED = 32 << 20
"""Bytes of counts that are added up at once at least."""
CACHED_WORDS, LONGEST_CACHED = 1 << 17, 64
"""Words cached, and their characters at most; longer ones are rarely words and rarely repeat."""
SCHEMA = pa.schema([pa.field(WORD, pa.string(), nullable=False), pa.field(COUNT, pa.int64(), nullable=False)])


_NORMALIZE = {lowercase: make_normalizer(lowercase, strip_accents=False).normalize_str for lowercase in (False, True)}
_cache: dict[tuple[str, bool], str] = {}
_split = BertPreTokenizer().pre_tokenize_str


def count_corpus_words(files: Sequence[Path], lowercase: bool, folder: Path) -> pa.Table:
    """Count the normalized words of a corpus, with accents, in any order; the most frequent ones if there are more than
    MAX_WORDS. Counts of single shards are in `folder`, which is removed at the end. Paths are absolute."""
    folder.mkdir()
    shards, counter = plan_shards(files), ShardCounter(folder.absolute(), lowercase)
    progress = StageProgress("words", "documents", sum(shard.documents for shard in shards))

    def count_all() -> Iterator[Path]:
        workers = useful_workers(len(shards), SHARDS_FOR_PROCESSES)
        for shard, path in zip(shards, ordered_map(counter.count, shards, workers, counter.folder), strict=True):
            progress.add(shard.documents)
            yield path

    words = add_up_files(count_all())
    shutil.rmtree(folder)  # with what killed workers left
    return words


@dataclass(frozen=True)
class ShardCounter:
    """Counter of the words of a shard, in any process that sees the folder."""

    folder: Path
    lowercase: bool

    def count(self, shard: Shard) -> Path:
        """Write the counts of a shard's words to a file, and return its path."""
        path = self.folder / f"shard-{shard.number:05d}.arrow"
        counts = count_words(read_text_arrays(shard), self.lowercase)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with new_file(path) as partial, pa.ipc.new_file(str(partial), SCHEMA, options=options) as file:
            file.write_table(counts)
        return path


def add_up_files(paths: Iterable[Path]) -> pa.Table:
    """Add up the counts of files, in their order, and remove the files."""
    total, waiting = SCHEMA.empty_table(), list[pa.Table]()
    for path in paths:
        with pa.OSFile(str(path)) as stream:
            waiting.append(pa.ipc.open_file(stream).read_all())
        path.unlink()
        if sum(table.nbytes for table in waiting) > max(LEAST_ADDED, total.nbytes):
            total, waiting = _keep_most_frequent(_add_up([total, *waiting])), []
    return _keep_most_frequent(_add_up([total, *waiting]))


def count_words(texts: Iterable[pa.Array], lowercase: bool) -> pa.Table:
    """Count the words of texts after normalization without stripping accents, and pre-tokenization."""
    groups = split_into_groups(texts, lambda array: array.nbytes, COUNT_BYTES, COUNT_BYTES)
    return _add_up([SCHEMA.empty_table(), *(_count(pa.concat_arrays(group), lowercase) for group in groups)])


def _count(texts: pa.StringArray, lowercase: bool) -> pa.Table:
    for removed in "\x0b\x0c":  # which split words here, but which BERT removes
        if pc.any(pc.match_substring(texts, removed)).as_py():
            texts = pc.replace_substring(texts, removed, "")
    distinct = pc.ascii_split_whitespace(texts).flatten().value_counts()
    words, counts = distinct.field("values"), distinct.field("counts")
    plain = pc.match_substring_regex(words, "^[!-~]*$")
    others = pc.invert(plain)
    spaced = [_normalize_word(word, lowercase) for word in words.filter(others).to_pylist()]
    all_spaced = [_normalize_plain(words.filter(plain), lowercase), pa.array(spaced, pa.string())]
    times = pa.concat_arrays([counts.filter(plain), counts.filter(others)])
    return _count_pieces(pa.concat_arrays(all_spaced), times)


def _count_pieces(words: pa.StringArray, counts: pa.Int64Array) -> pa.Table:
    """Count the pieces of words, which are separated by spaces."""
    pieces = pc.ascii_split_whitespace(words)
    columns = [pieces.flatten(), counts.take(pc.list_parent_indices(pieces))]
    return _add_up([pa.table(columns, schema=SCHEMA).filter(pc.field(WORD) != "")])


def _normalize_plain(words: pa.StringArray, lowercase: bool) -> pa.StringArray:
    """Return the pieces of words of printable ASCII characters, separated by spaces: most words, many times as fast."""
    spaced = pc.replace_substring_regex(words, r"([!-/:-@\[-`{-~])", r" \1 ")
    return pc.ascii_lower(spaced) if lowercase else spaced


def _normalize_word(word: str, lowercase: bool) -> str:
    """Return the pieces of a word of any characters, separated by spaces."""
    normalized = _cache.get((word, lowercase))
    if normalized is None:
        normalized = " ".join(piece for piece, _ in _split(_NORMALIZE[lowercase](word)))
        if len(_cache) >= CACHED_WORDS:
            _cache.clear()
        if len(word) <= LONGEST_CACHED:
            _cache[word, lowercase] = normalized
    return normalized


@dataclass(frozen=True)
class StrippedWords:
    """Words of a corpus without their accents, vowel signs and tone marks."""

    words: pa.Table
    changed: float
    """Share of the words of the text that have such marks."""
    merged: float
    """Share of the words of the text that are the same as other words without them."""


def strip_words(words: pa.Table) -> StrippedWords:
    """Strip the accents of counted words, as BERT's normalization does."""
    plain = pc.string_is_ascii(words[WORD])
    same, others = words.filter(plain), words.filter(pc.invert(plain))
    texts = others[WORD].to_pylist()
    marked = pa.array([has_marks(text) for text in texts], pa.bool_())
    spaced = pa.array([" ".join(piece for piece, _ in _split(strip_marks(text))) for text in texts], pa.string())
    stripped = pa.concat_tables([same, others.set_column(0, SCHEMA.field(WORD), spaced)]).combine_chunks()
    by_word = stripped.group_by(WORD, use_threads=False).aggregate([(COUNT, "sum"), (COUNT, "count")])
    merged = by_word.filter(pc.field(f"{COUNT}_count") > 1)[f"{COUNT}_sum"]
    total = max(1, _sum(words[COUNT]))
    pieces = _count_pieces(*(column.combine_chunks() for column in stripped.columns))
    return StrippedWords(pieces, _sum(others[COUNT].filter(marked)) / total, _sum(merged) / total)


def measure_long_words(words: pa.Table) -> float:
    """Return the share of the characters of counted words that are in words too long for WordPiece."""
    lengths = pc.utf8_length(words[WORD])
    characters = pc.multiply(pc.cast(lengths, pa.int64()), words[COUNT])
    return _sum(characters.filter(pc.greater(lengths, MAX_CHARACTERS_PER_WORD))) / max(1, _sum(characters))


def _sum(counts: pa.ChunkedArray) -> int:
    return pc.sum(counts, min_count=0).as_py()


def _add_up(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up the counts of each word; not by threads, which would decide the order of the words."""
    totals = pa.concat_tables(tables).group_by(WORD, use_threads=False).aggregate([(COUNT, "sum")])
    return totals.rename_columns([WORD, COUNT]).cast(SCHEMA)


def _keep_most_frequent(counts: pa.Table) -> pa.Table:
    """Return the most frequent words that fit into the limits; of equally frequent ones those that sort first."""
    if len(counts) <= MAX_WORDS and counts[WORD].nbytes <= MAX_BYTES:
        return counts
    ordered = counts.sort_by([(COUNT, "descending"), (WORD, "ascending")]).slice(0, MAX_WORDS)
    sizes = np.cumsum(pc.binary_length(ordered[WORD]).to_numpy())
    return ordered.slice(0, int(np.searchsorted(sizes, MAX_BYTES, side="right")))
