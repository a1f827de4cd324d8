"""Checks of the examples and rows of an entry; stages examples and rows run them before they leave anything."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tasks.params.schema import Params
from tasks.plan.kinds import TRAIN, DownstreamTask, load_part
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT, find_held_out_rows
from tasks.validation.checks import DataSet
from tasks.validation.row_checks import ExampleFilter, RowData, RowSource, SourceExamples
from tasks.validation.validate import validate_new_data


class ChecksTask(DownstreamTask):
    """Checks of examples and of their rows."""

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """Return the data set of the examples in `folder`."""

    @abstractmethod
    def row_data(self, source: RowSource) -> RowData:
        """Return the data set of the rows in one folder."""

    def validate_examples(self, folder: Path, params: Params) -> str:
        """Validate new examples in `folder`; see `validate_new_data`."""
        return validate_new_data(self.entry.verdict(), lambda: [self.data(folder)])

    def validate_rows(self, folder: Path, params: Params) -> str:
        """Validate new rows of all splits in `folder`; see `validate_new_data`."""
        name = self.entry.verdict("rows")
        return validate_new_data(name, lambda: row_data_sets(self, params, folder))


def row_data_sets(task: ChecksTask, params: Params, folder: Path, root: Path = Path()) -> list[DataSet]:
    """Return the data sets of the rows of all splits in `folder`, including held-out ones."""
    found: list[DataSet] = []
    for split in task.splits:
        rows = folder / split
        held_out = find_held_out_rows(rows)
        for name, part in ((split, rows), (HELD_OUT, held_out)):
            if part is not None:
                source = RowSource(
                    name,
                    part,
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
