"""Corpus to pre-training rows: sentence pairs, masking, packing.

    python -m tasks.pretraining.rows.pretrain_rows phase1|phase2

The corpus is made into rows shard by shard (row_shards.py), and a shard in chunks of a fixed size. A chunk is
tokenized once and turned into rows `duplicates` times, each time with other pairs and other masks, drawn from (seed,
phase, duplicate, chunk); random next sentences come from the same chunk, and a row is packed from one chunk and
duplicate. So memory does not grow with the corpus, and the rows do not depend on how many processes share the work.
Documents that are held out (tasks/rows/held_out.py) go through the same steps on their own, once.

A run that was killed keeps the shards it has finished, and makes the others when it is run again. What
other hosts made of them as their shares (tasks/pretraining/rows/row_share.py) is taken as it is.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

from ipu_model.files import new_folder
from tasks.pretraining.rows.prepared_rows import rows_in_words, write_prepared_rows
from tasks.pretraining.rows.row_making import RowMaking
from tasks.pretraining.rows.row_shards import TRAINING, Counts
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.main import run_main
from tasks.project.params import PHASES, PretrainRowsParams, load_sections, packed
from tasks.project.process import item
from tasks.project.row_folders import HELD_OUT, Manifest


@dataclass(frozen=True)
class RowsSummary:
    """What was made, for the stage's last line; all but `held_out` is of the training rows."""

    manifest: Manifest
    counts: Counts
    held_out: int
    """Documents whose rows are held out."""
    elapsed_s: float


def write_pretrain_rows(
    params: PretrainRowsParams,
    phase: str,
    corpus: Path = artifacts.CORPUS,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path | None = None,
    workers: int | None = None,
    work: Path | None = None,
) -> RowsSummary:
    """Write the rows of `phase` into `folder` (default: its own artifact), whole or not at all.

    Args:
        workers: processes; None: what pays, at most PODIUM_WORKERS. The rows do not depend on it.
        work: where finished shards wait for the others; None: beside `folder`. Removed when all is done.

    Raises:
        InputError: corpus or tokenizer missing or unusable, no document with tokens, rows out of range.
    """
    folder = Path(folder or artifacts.rows_folder(phase))
    making = RowMaking(params, phase, corpus, tokenizer, work or folder.with_name(f"{folder.name}.shards"))
    counts, progress = making.make(making.shards, workers)
    with new_folder(folder) as partial:
        manifest = making.join(TRAINING, partial)
        if manifest is None:
            making.remove()
            raise InputError(
                f"none of the {sum(shard.documents for shard in making.shards)} documents in {corpus} that are not "
                "held out has a token, at least one is required: look at corpus.path, corpus.text_column and "
                "pretrain_rows.held_out_fraction"
            )
        (partial / HELD_OUT).mkdir()
        others = making.join(HELD_OUT, partial / HELD_OUT)
        if others is None:
            (partial / HELD_OUT).rmdir()
    making.remove()
    held_out = 0 if others is None else counts[HELD_OUT]["documents"]
    return RowsSummary(manifest, counts[TRAINING], held_out, progress.elapsed_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pre-training rows of one phase from the corpus.")
    parser.add_argument("phase", type=item, choices=PHASES)
    phase = parser.parse_args().phase
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    own = load_sections("pretrain_rows", "packing")
    params: PretrainRowsParams = packed(own.pretrain_rows, own.packing)
    made = _from_corpus(params, phase) if params.source == "corpus" else write_prepared_rows(params, phase)
    print(f"{phase}: {made}")


def _from_corpus(params: PretrainRowsParams, phase: str) -> str:
    made = write_pretrain_rows(params, phase, work=artifacts.row_shards(phase))
    documents, skipped, tokens = (made.counts[name] for name in ("documents", "skipped", "tokens"))
    return (
        f"{rows_in_words(made.manifest)} from {documents - skipped} documents and {tokens} "
        f"tokens; {skipped} documents without tokens skipped; {made.held_out or 'no'} documents held out; "
        f"{made.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
