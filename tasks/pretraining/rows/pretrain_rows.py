"""Stage pretrain_rows: make pre-training rows from the corpus (sentence pairs, masking, packing) or prepared data.

    python -m tasks.pretraining.rows.pretrain_rows PHASE

The corpus is processed by shards (row_builder.py), and a shard in chunks of a fixed size. A chunk is tokenized once and
turned into rows `duplicates` times, each time with different pairs and masks, drawn from (seed, phase, duplicate,
chunk). Random next sentences come from the same chunk, and a row is packed from one chunk and duplicate. So memory does
not grow with the corpus, and with any number of processes, or after a kill, the rows have the same bytes.
Held-out documents (tasks/rows/held_out.py) go through the same steps separately, once. reading.json
remarks on text whose sentences or words are probably not read as they are meant.

Prepared data are not tokenized, paired or masked again: rows are packed from SEQUENCES_PER_CHUNK sequences at a time. A
sequence keeps its masked tokens, so rows with more than P of them are split.
"""

import argparse
import array
import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ipu_model.core.files import new_folder, sha256_of
from tasks.params.schema import PretrainRowsParams, apply_packing, load_sections
from tasks.params.sections import PhaseRowsParams
from tasks.plan.main import run_main
from tasks.pretraining.rows.chunks import TRAINING, Counts
from tasks.pretraining.rows.masking import default_max_predictions
from tasks.pretraining.rows.pair_rows import build_columns
from tasks.pretraining.rows.prepared_files import read_prepared_batches
from tasks.pretraining.rows.prepared_sequences import RowLimits, get_masked_tokens, restore_tokens, validate_and_unpad
from tasks.pretraining.rows.row_builder import ShardBuilder
from tasks.records.interpretation import Interpretation, write_reading
from tasks.records.text_files import count_repetitions
from tasks.rows.held_out import is_held_out
from tasks.rows.packing import NO_SEQUENCE, pack_sequences
from tasks.rows.row_files import IGNORED, RowLayout, RowWriter, check_geometry
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.parallel import StageProgress
from tasks.stage.process import parse_item
from tasks.stage.row_folders import HELD_OUT, Manifest
from tasks.vocabulary.encoding import TokenizerInfo, find_tokenizer_file, load_tokenizer, read_tokenizer_info
from tasks.vocabulary.tokenizer import ACCENTS_SHARE, LONG_WORDS_NOTED
from tasks.vocabulary.wordpiece import MAX_CHARACTERS_PER_WORD

SEQUENCES_PER_CHUNK = 16384
SEQUENCES = "sequences read"
UNMASKED = "sequences without a masked token, kept"
REPEATED = "duplicate sequences with the same masks, kept"
SENTENCES_NOTED = 0.5
"""Share of documents of one sentence, or of sentences longer than a sequence, above which next sentences are few."""
ROWS_SPLIT = "rows split to stay within max_predictions_per_row"


def write_prepared_rows(
    params: PretrainRowsParams, phase: str, tokenizer: Path = artifacts.TOKENIZER, folder: Path | None = None
) -> str:
    """Write the rows of `phase` from prepared data to `folder` (default: its artifact).

    The data were prepared with the tokenizer.json in the folder `tokenizer`. Return a summary for the last line.

    Raises:
        InputError: no data, invalid data (with the sequence), or another vocabulary.
    """
    phase_params = params.get_phase(phase)
    section, predictions = f"pretrain_rows.{phase}", phase_params.max_predictions_per_row
    if predictions is None:  # every sequence of a row rounds its share up
        predictions = (
            default_max_predictions(phase_params.row_length, params.masked_fraction) + params.max_sequences_per_row - 1
        )
    check_geometry(phase_params.row_length, params.max_sequences_per_row, predictions, section)
    limits = RowLimits(read_tokenizer_info(load_tokenizer(tokenizer)), phase_params.row_length, predictions, section)
    reading, progress = Interpretation(), StageProgress(f"{phase} rows", "sequences")
    sizes = (limits.row_length, params.max_sequences_per_row, limits.max_predictions, limits.vocabulary.size)
    make = functools.partial(RowWriter, pad_id=limits.vocabulary.pad)
    sha256 = sha256_of(find_tokenizer_file(Path(tokenizer)))
    with new_folder(folder or artifacts.rows_folder(phase)) as partial:
        held_out_folder = partial / HELD_OUT
        held_out_folder.mkdir()
        with make(partial, params.row_kind, *sizes) as rows, make(held_out_folder, params.row_kind, *sizes) as held_out:
            waiting: dict[RowWriter, list[pa.Table]] = {rows: [], held_out: []}
            for sequences in _read(phase_params, params, limits, reading, progress):
                chosen = _choose_held_out(sequences, params)
                for writer, own_sequences in ((rows, ~chosen), (held_out, chosen)):
                    waiting[writer].append(sequences.filter(pa.array(own_sequences)))
                    if sum(map(len, waiting[writer])) >= SEQUENCES_PER_CHUNK:
                        reading.counts[ROWS_SPLIT] += _write(writer, waiting[writer], limits)
            for writer, tables in waiting.items():
                reading.counts[ROWS_SPLIT] += _write(writer, tables, limits)
            finish = functools.partial(RowWriter.finish, tokenizer_sha256=sha256, seed=params.seed)
            masking = limits.vocabulary.masking
            manifest, others = (finish(part, **masking) if part.rows else None for part in (rows, held_out))
        if others is None:
            held_out_folder.rmdir()
        if manifest is None:
            raise InputError(
                f"no training sequence found ({reading.counts[SEQUENCES]} in all). Check "
                f"{limits.section}.path, {limits.section}.dataset and pretrain_rows.held_out_fraction"
            )
        write_reading(partial, params.source, {"sequences": reading})
    return (
        f"{format_rows(manifest)} from prepared data ({', '.join(reading.summary())}); "
        f"{others.sequences if others else 'no'} sequences held out; {progress.elapsed_s:.1f} s"
    )


def format_rows(rows: Manifest) -> str:
    """Return a summary of rows for the terminal."""
    return (
        f"{rows.rows} rows of {rows.row_length} with {rows.sequences} sequences ({rows.packing_factor:.2f} a row, "
        f"{rows.packing_efficiency:.1%} real tokens)"
    )


def _read(
    phase_params: PhaseRowsParams,
    params: PretrainRowsParams,
    limits: RowLimits,
    reading: Interpretation,
    progress: StageProgress,
) -> Iterable[pa.Table]:
    seen = array.array("q")
    for prepared in read_prepared_batches(phase_params, params.source, limits.section, reading):
        sequences = validate_and_unpad(prepared, limits)
        reading.counts[SEQUENCES] += len(sequences)
        masked, lengths, counts = get_masked_tokens(sequences)
        reading.counts[UNMASKED] += int((counts == 0).sum())
        whole = np.stack([masked.token_ids, np.full(len(masked.token_ids), IGNORED)], axis=1)
        whole[masked.places, 1] = masked.labels
        seen.extend(hash(sequence.tobytes()) for sequence in np.split(whole, np.cumsum(lengths)[:-1]))
        progress.update(reading.counts[SEQUENCES])
        yield sequences
    reading.counts[REPEATED] += count_repetitions(seen)


def _choose_held_out(sequences: pa.Table, params: PretrainRowsParams) -> np.ndarray:
    """Choose the held-out sequences, bool[N], by their tokens before masking: all maskings of a pair stay together."""
    if not params.held_out_fraction:
        return np.zeros(len(sequences), bool)
    texts = (tokens.decode("latin-1") for tokens in restore_tokens(sequences))
    return np.array([is_held_out(text, params.held_out_fraction, params.seed) for text in texts], bool)


def _write(writer: RowWriter, tables: list[pa.Table], limits: RowLimits) -> int:
    """Pack sequences into rows and write them; empty their list, and return the number of rows that were split."""
    if not any(map(len, tables)):
        return 0
    sequences = pa.concat_tables(tables)
    tables.clear()
    masked, lengths, counts = get_masked_tokens(sequences)
    packs = pack_sequences(lengths, limits.row_length, writer.max_sequences)
    packs, apart = split_overfull_rows(packs, counts, limits.max_predictions)
    layout = RowLayout.from_packs(packs, lengths, limits.row_length)
    second_starts, labels = (sequences[name].to_numpy() for name in ("second_start", "next_sentence_label"))
    writer.write(build_columns(layout, masked, second_starts, labels, limits.max_predictions))
    return apart


def split_overfull_rows(packs: np.ndarray, masked_counts: np.ndarray, max_predictions: int) -> tuple[np.ndarray, int]:
    """Split rows with more than `max_predictions` masked tokens: each of their sequences gets its own row.

    Return int32[R', S], and the number of rows that were split.

    Args:
        packs: int32[R, S], sequences of each row, -1 = none.
        masked_counts: int64[N], masked tokens of every sequence, none above max_predictions.
    """
    over = np.where(packs >= 0, masked_counts[packs], 0).sum(axis=1) > max_predictions
    if not over.any():
        return packs, 0
    alone = packs[over][packs[over] >= 0]
    singles = np.full((len(alone), packs.shape[1]), NO_SEQUENCE, packs.dtype)
    singles[:, 0] = alone
    return np.concatenate([packs[~over], singles]), int(over.sum())


@dataclass(frozen=True)
class PretrainRowsSummary:
    """Summary of rows that were made; all fields except `held_out` are about the training rows."""

    manifest: Manifest
    counts: Counts
    held_out: int
    elapsed_s: float


def write_pretrain_rows(
    params: PretrainRowsParams,
    phase: str,
    corpus: Path = artifacts.CORPUS,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path | None = None,
    workers: int | None = None,
    work: Path | None = None,
) -> PretrainRowsSummary:
    """Write the rows of `phase` to `folder` (default: its artifact), atomically.

    Args:
        workers: number of processes; None: as many as pay off, at most PODIUM_WORKERS. The rows do not depend on it.
        work: folder for finished shards, removed at the end; None: next to `folder`.

    Raises:
        InputError: corpus or tokenizer missing or unusable, no document with tokens, or row sizes out of range.
    """
    folder = Path(folder or artifacts.rows_folder(phase))
    builder = ShardBuilder(params, phase, corpus, tokenizer, work or folder.with_name(f"{folder.name}.shards"))
    counts, progress = builder.make(workers)
    with new_folder(folder) as partial:
        manifest = builder.join(TRAINING, partial)
        if manifest is None:
            builder.remove()
            raise InputError(
                f"none of the {sum(shard.documents for shard in builder.shards)} documents in {corpus} that are not "
                "held out has a token. Check corpus.path, corpus.text_column and pretrain_rows.held_out_fraction"
            )
        (partial / HELD_OUT).mkdir()
        others = builder.join(HELD_OUT, partial / HELD_OUT)
        if others is None:
            (partial / HELD_OUT).rmdir()
        held_out = 0 if others is None else counts[HELD_OUT]["documents"]
        reading = Interpretation()
        _describe_text(reading, counts[TRAINING], params, builder.vocabulary)
        if not params.next_sentence and not counts[TRAINING]["filling"]:
            reading.remark(
                f"no document has the {manifest.row_length:,} tokens of a row of {phase}: its {manifest.rows:,} rows "
                f"have {manifest.packing_factor:.1f} sequences each, and the model learns no longer distances than "
                f"those within documents. Add longer ones, or lower pretrain_rows.{phase}.row_length"
            )
        if held_out and builder.held_out_fraction > params.held_out_fraction:
            reading.remark(
                f"pretrain_rows.held_out_fraction={params.held_out_fraction:g} holds out none of the "
                f"{counts[TRAINING]['documents'] + held_out:,} documents, so the model is scored on one of them. Set a "
                "larger fraction for better scores"
            )
        if reading.remarks:
            write_reading(partial, params.source, {"text": reading})
    builder.remove()
    return PretrainRowsSummary(manifest, counts[TRAINING], held_out, progress.elapsed_s)


def _describe_text(
    reading: Interpretation, counts: Counts, params: PretrainRowsParams, vocabulary: TokenizerInfo
) -> None:
    """Remark on sentences and words that are probably not read as they are meant."""
    documents, sentences, words, characters = (
        max(1, counts[name]) for name in ("documents", "sentences", "words", "characters")
    )
    single, long = counts["single"] / documents, counts["long"] / sentences
    accented, unread = counts["accented"] / words, counts["unread"] / characters
    if params.next_sentence and max(single, long) > SENTENCES_NOTED:
        reading.remark(
            f"{single:.1%} of the documents are one sentence, and {long:.1%} of the sentences are longer than a "
            "sequence. Next-sentence prediction needs several sentences per document: put each on a line of its own "
            "(corpus.layout: sentences), or set pretrain_rows.next_sentence: false. Thai, Lao and Khmer do not mark "
            "where sentences end"
        )
    if vocabulary.strips_accents and accented > ACCENTS_SHARE:
        reading.remark(
            f"{accented:.1%} of the words have accents, vowel signs or tone marks, which the tokenizer removes: words "
            "that differ in them alone become the same. Set tokenizer.strip_accents: false, or use a cased or "
            "multilingual model"
        )
    if unread > LONG_WORDS_NOTED:
        reading.remark(
            f"{unread:.1%} of the characters are in words of more than {MAX_CHARACTERS_PER_WORD} characters, which "
            "become [UNK]. Put blanks between the words of the text"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pre-training rows of a phase.")
    parser.add_argument("phase", type=parse_item)
    phase = parser.parse_args().phase
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sections = load_sections("pretrain_rows", "packing")
    params: PretrainRowsParams = apply_packing(sections.pretrain_rows, sections.packing)
    summary = _make_from_corpus(params, phase) if params.source == "corpus" else write_prepared_rows(params, phase)
    print(f"{phase}: {summary}")


def _make_from_corpus(params: PretrainRowsParams, phase: str) -> str:
    result = write_pretrain_rows(params, phase, work=artifacts.row_shards(phase))
    documents, skipped, tokens = (result.counts[name] for name in ("documents", "skipped", "tokens"))
    return (
        f"{format_rows(result.manifest)} from {documents - skipped} documents and {tokens} "
        f"tokens; {skipped} documents without tokens skipped; {result.held_out or 'no'} documents held out; "
        f"{result.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
