"""Stage validate_rows: validate the rows of an entry by their declared columns, and their labels.

python -m tasks.downstream.validate_rows NAME
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tasks.downstream.validate import ChecksTask
from tasks.params.entries import ENTRY_SECTIONS, entry_argument, find_entry
from tasks.params.schema import Params, load_sections
from tasks.plan.kinds import TRAIN, load_part
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT, find_held_out_rows
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import ExampleFilter, RowSource, SourceExamples
from tasks.validation.validate import validate_and_report


def row_data_sets(task: ChecksTask, params: Params, splits: tuple[str, ...], root: Path = Path()) -> list[DataSet]:
    """Return the data sets of these splits' rows, including held-out ones."""
    found: list[DataSet] = []
    for split in splits:
        rows = task.rows_folder(split, root)
        held_out = find_held_out_rows(rows)
        for name, folder in ((split, rows), (HELD_OUT, held_out)):
            if folder is not None:
                source = RowSource(
                    name,
                    folder,
                    tokenizer=root / artifacts.TOKENIZER,
                    section=task.entry.key("rows"),
                    max_positions=params.model.max_positions,
                    max_unknown_share=params.validate_.max_unknown_share,
                    max_cut_share=params.validate_.max_cut_share,
                    training=split == TRAIN,
                    examples=source_examples(task, split, name if held_out else "", root),
                )
                found.append(task.row_data(source))
    return found


def source_examples(task: ChecksTask, split: str, side: str, root: Path) -> SourceExamples:
    """Return the source examples of the rows of a split.

    Args:
        side: HELD_OUT or the split, if some of its examples were held out; empty: all examples.
    """
    path = task.examples_file(split, root)

    def choose() -> tuple[ExampleFilter, Sequence[str]]:
        makes = load_part(task.entry, "rows")
        sides = makes.hold_out(path, task.entry.rows.held_out_fraction)
        return sides.held_out if side == HELD_OUT else sides.training, (*makes.columns, sides.column)

    return SourceExamples(path, task.entry.stage("examples"), choose if side else None)


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "model", "validate_")
    entry = find_entry(params, entry_argument("Validate the rows of a downstream task."))
    task: ChecksTask = load_part(entry, "checks")
    sets = partial(row_data_sets, task, params, task.splits)
    print(validate_and_report(entry.verdict("rows"), sets, params.validate_.data_docs))


if __name__ == "__main__":
    run_main(main)
