"""Stage `corpus`: the pre-training text as Parquet files of (document_id, title, text).

    python -m tasks.corpus.corpus

`demo` generates an invented world, `files` reads the user's files, `hub` streams a data set with the `datasets`
library; `none` is for pre-training data that were prepared elsewhere (pretrain_rows.source). Processes make pieces of
the corpus (pieces.py), which are joined here: memory grows by eight bytes per document only. corpus.quality removes
documents by their text (quality.py) and those that repeat an earlier one (duplicates.py). Documents left out or changed
are counted in reading.json.
"""

import functools
import itertools
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ipu_model.core.files import new_folder
from tasks.corpus.documents import add_grouping
from tasks.corpus.duplicates import RULES, find_duplicates, join_keys, keys_file, open_keys
from tasks.corpus.pieces import EMPTY, CorpusFile, PieceMaker, list_pieces, read_document, remove_rows
from tasks.corpus.quality import quote
from tasks.params.schema import CorpusParams, load_sections
from tasks.plan.main import run_main
from tasks.records.interpretation import SHOWN_NAMES, Interpretation, write_reading
from tasks.records.tables import list_empty
from tasks.records.text_files import count_repetitions
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError
from tasks.stage.parallel import StageProgress, ordered_map, useful_workers
from tasks.stage.process import parse_no_arguments

REPEATED = "duplicate documents, kept"
DOCUMENTS_FOR_PROCESSES = 200_000
"""Fewest documents from which their duplicates are found and removed by several processes: for fewer, that takes less
time than starting processes."""


@dataclass
class CorpusSummary:
    """Size of a written corpus, and the report of its reading."""

    reading: Interpretation
    documents: int = 0
    characters: int = 0
    parts: int = 0


def make_corpus(params: CorpusParams, output: Path) -> CorpusSummary:
    """Write the corpus described by `params` to the folder `output`, atomically.

    Raises:
        InputError: the source cannot be used, or no document has text.
    """
    summary = CorpusSummary(reading := Interpretation())
    with (
        new_folder(output) as folder,
        # A cluster's worker may still write when another one has failed.
        tempfile.TemporaryDirectory(dir=folder.absolute(), ignore_cleanup_errors=True) as work,
    ):
        for file in _make_files(params, Path(work), reading):
            if file.documents:
                file.path.rename(folder / f"part-{summary.parts:05d}.parquet")
                summary.parts += 1
            summary.documents += file.documents
            summary.characters += file.characters
        if not summary.documents:
            if reading.examples:
                removed = ", ".join(f"{reading.counts[what]:,} {what}" for what in sorted(reading.examples))
                raise InputError(f"the rules of corpus.quality leave no document ({removed}). Relax them")
            raise InputError(
                f"no text found ({reading.counts[EMPTY]} empty documents){list_empty(reading)}. Check corpus.path, "
                "corpus.text_column and corpus.layout"
            )
        write_reading(folder, params.source, {"corpus": reading})
    return summary


def _make_files(params: CorpusParams, work: Path, reading: Interpretation) -> list[CorpusFile]:
    """Make the files of the corpus in the folder `work`, and fill `reading`."""
    progress, files, documents = StageProgress("corpus", "documents"), list[CorpusFile](), 0
    maker = PieceMaker(params, work, progress)
    for piece in ordered_map(maker.make, enumerate(list_pieces(params, reading)), folder=work):
        join_keys(piece.folder, work)
        add_grouping(reading, piece.reading.grouping)
        reading.merge(piece.reading)
        files += piece.files
        documents += sum(file.documents for file in piece.files)
        progress.update(documents)
    removed = np.zeros(documents, np.uint8)
    if params.quality.removes_duplicates:
        workers = useful_workers(documents, DOCUMENTS_FOR_PROCESSES)
        removed, examples = find_duplicates(work, params.quality, workers)
        for rule, (first, later) in examples.items():
            quoted = f"{quote(read_document(files, later))} repeats {quote(read_document(files, first))}"
            reading.add_example(f"removed, {rule}", quoted, int((removed == RULES.index(rule)).sum()))
        files = _remove_duplicates(files, removed, work, workers)
    reading.counts[REPEATED] += count_repetitions(open_keys(keys_file(work, "exact"))[removed == 0])
    return files


def _remove_duplicates(files: list[CorpusFile], removed: np.ndarray, work: Path, workers: int) -> list[CorpusFile]:
    """Write those files again that have documents to remove; return all files."""
    path = work / "removed"
    removed.tofile(path)
    ends = itertools.accumulate(file.documents for file in files)
    starts = [end - file.documents for end, file in zip(ends, files, strict=True)]
    changed = [
        number
        for number, (start, file) in enumerate(zip(starts, files, strict=True))
        if removed[start : start + file.documents].any()
    ]
    items = ((files[number], starts[number], work / f"{number:05d}.parquet") for number in changed)
    written = ordered_map(functools.partial(remove_rows, path), items, workers, work)
    return list({**dict(enumerate(files)), **dict(zip(changed, written, strict=True))}.values())


def main() -> None:
    parse_no_arguments("Read, fetch or generate the corpus.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    params: CorpusParams = load_sections("corpus").corpus
    started_at = time.perf_counter()
    summary = make_corpus(params, artifacts.CORPUS)
    print(
        f"corpus ({params.source}): {summary.documents:,} documents, {summary.characters / 1e6:.1f} M characters, "
        f"{summary.parts} files{''.join(f', {part}' for part in summary.reading.summary())}, "
        f"{time.perf_counter() - started_at:.1f} s"
    )
    for text in summary.reading.remarks[:SHOWN_NAMES]:
        streams.note(text)  # even where the stage's output is hidden


if __name__ == "__main__":
    run_main(main)
