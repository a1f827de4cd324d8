"""Stage `row_share`: every n-th shard of the pre-training rows of both phases, so that n workers make them together.

    python -m tasks.pretraining.rows.row_share 2

`pretrain_rows.shares` says how many shares there are. The stage pretrain_rows joins what all of them made, and makes
what none of them did: with any number of shares, or none, the rows are the same bytes.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from tasks.params.schema import PHASES, PretrainRowsParams, load_sections, packed
from tasks.plan.main import run_main
from tasks.pretraining.rows.row_making import RowMaking
from tasks.pretraining.rows.row_shards import Shard
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError
from tasks.stage.process import item


def write_share(
    params: PretrainRowsParams,
    phase: str,
    share: int,
    of: int,
    corpus: Path = artifacts.CORPUS,
    tokenizer: Path = artifacts.TOKENIZER,
    work: Path | None = None,
    workers: int | None = None,
) -> tuple[list[Shard], float]:
    """Make every `of`-th shard, from shard `share` - 1 on; returns them, and the seconds that it took.

    Args:
        work: folder of the shards of that phase (default: its own artifact).
        workers: processes; None: what pays, at most PODIUM_WORKERS.

    Raises:
        InputError: corpus or tokenizer missing or unusable, rows out of range.
    """
    work = work or artifacts.row_shards(phase)
    making = RowMaking(params, phase, corpus, tokenizer, work)
    shards = making.shards[share - 1 :: of]
    _, progress = making.make(shards, workers)
    making.hand_over(share, shards)
    return shards, progress.elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.pretraining.rows.row_share",
        description="Make every n-th shard of the pre-training rows.",
    )
    parser.add_argument("share", type=item, help="1 to the number of shares, pretrain_rows.shares")
    share = parser.parse_args().share
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    own = load_sections("pretrain_rows", "packing")
    params: PretrainRowsParams = packed(own.pretrain_rows, own.packing)
    if share not in map(str, params.shares):
        raise ParamsError(f"share {share}: pretrain_rows.shares={params.shares} has no such share")
    number = int(share)
    for phase in PHASES:
        shards, seconds = write_share(params, phase, number, len(params.shares))
        documents = sum(shard.documents for shard in shards)
        print(
            f"{phase}: share {number} of {len(params.shares)}, {len(shards)} shards of {documents} documents, "
            f"{seconds:.1f} s"
        )


if __name__ == "__main__":
    run_main(main)
