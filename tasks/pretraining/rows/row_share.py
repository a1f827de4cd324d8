"""Stage `row_share`: make every n-th shard of the pre-training rows of both phases, so that n workers share the work.

    python -m tasks.pretraining.rows.row_share 2

`pretrain_rows.shares` sets the number of shares. The stage pretrain_rows joins their shards and makes the missing ones:
with any number of shares, or none, the rows have the same bytes.
"""

import argparse
import logging
from pathlib import Path

from tasks.params.schema import PHASES, PretrainRowsParams, apply_packing, load_sections
from tasks.plan.main import run_main
from tasks.pretraining.rows.row_builder import ShardBuilder
from tasks.pretraining.rows.row_shards import Shard
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError
from tasks.stage.process import parse_item


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
    """Make every `of`-th shard, from shard `share` - 1 on; return the shards and the seconds taken.

    Args:
        work: folder of the shards of the phase (default: its artifact).
        workers: number of processes; None: as many as pay off, at most PODIUM_WORKERS.

    Raises:
        InputError: corpus or tokenizer missing or unusable, or row sizes out of range.
    """
    work = work or artifacts.row_shards(phase)
    builder = ShardBuilder(params, phase, corpus, tokenizer, work)
    shards = builder.shards[share - 1 :: of]
    _, progress = builder.make(shards, workers)
    builder.export_share(share, shards)
    return shards, progress.elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.pretraining.rows.row_share",
        description="Make every n-th shard of the pre-training rows.",
    )
    parser.add_argument("share", type=parse_item, help="1 to the number of shares, pretrain_rows.shares")
    share = parser.parse_args().share
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    own = load_sections("pretrain_rows", "packing")
    params: PretrainRowsParams = apply_packing(own.pretrain_rows, own.packing)
    if share not in map(str, params.shares):
        raise ParamsError(f"no share {share}; pretrain_rows.shares={params.shares}")
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
