"""Stage rows: write the examples of an entry as packed rows, one folder per split.

    python -m tasks.downstream.rows NAME

The rows of all splits are validated before they replace older ones.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from ipu_model.core.files import new_folder
from tasks.downstream.kind import kind_of
from tasks.downstream.packed_rows import Encoder, PackedSplit, write_rows
from tasks.params.entries import ENTRY_SECTIONS, TRAIN, Entry, entry_argument, find_entry
from tasks.params.schema import Params, load_sections
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT, find_held_out_rows
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import ExampleFilter, RowSource, SourceExamples
from tasks.validation.validate import validate_new_data


def row_data_sets(encoder: Encoder, params: Params, folder: Path) -> list[DataSet]:
    """Return the data sets of the rows of all splits in `folder`, including held-out ones."""
    data_sets: list[DataSet] = []
    for split in encoder.entry.splits:
        rows = folder / split
        held_out = find_held_out_rows(rows)
        for name, part in ((split, rows), (HELD_OUT, held_out)):
            if part is not None:
                source = RowSource(
                    name,
                    part,
                    tokenizer=artifacts.TOKENIZER,
                    section=encoder.entry.key("rows"),
                    max_positions=params.model.max_positions,
                    max_unknown_share=params.validate_.max_unknown_share,
                    max_cut_share=params.validate_.max_cut_share,
                    training=split == TRAIN,
                    examples=source_examples(encoder, split, name if held_out else ""),
                )
                data_sets.append(kind_of(encoder.entry).row_data(source))
    return data_sets


def source_examples(encoder: Encoder, split: str, side: str) -> SourceExamples:
    """Return the source examples of the rows of a split.

    Args:
        side: HELD_OUT or the split, if some of its examples were held out; empty: all examples.
    """
    entry = encoder.entry
    path = entry.examples_file(split)

    def choose() -> tuple[ExampleFilter, Sequence[str]]:
        sides = encoder.hold_out(path, entry.rows.held_out_fraction)
        return sides.held_out if side == HELD_OUT else sides.training, (*encoder.columns, sides.column)

    return SourceExamples(path, entry.stage("examples"), choose if side else None)


def format_summary(entry: Entry, split: str, made: PackedSplit) -> str:
    """Return a summary line for the terminal."""
    rows = made.manifest
    counts = "".join(f", {count:,} {what}" for what, count in made.counts.items())
    kept = f"; {made.held_out.examples:,} {entry.record}s held out" if made.held_out else ""
    return (
        f"{entry.name} {split}: {rows.rows:,} rows of {rows.row_length} with {rows.sequences:,} sequences of "
        f"{made.examples:,} {entry.record}s ({rows.packing_factor:.2f} per row, {rows.packing_efficiency:.1%} real "
        f"tokens){counts}{kept}; {made.elapsed_s:.1f} s"
    )


def main() -> None:
    name = entry_argument("Write and validate the packed rows of a downstream task.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    params = load_sections(*ENTRY_SECTIONS, "model", "validate_")
    entry = find_entry(params, name)
    encoder = kind_of(entry).encoder(entry)
    with new_folder(artifacts.rows_folder(entry.name)) as folder:
        for split in entry.splits:
            print(format_summary(entry, split, write_rows(encoder, split, folder=folder / split)))
        said = validate_new_data(entry.verdict("rows"), lambda: row_data_sets(encoder, params, folder))
        print(said)


if __name__ == "__main__":
    run_main(main)
