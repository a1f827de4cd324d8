"""Stage examples: write the examples of an entry as Parquet, one file per split, after checking each one.

The examples of all splits are validated before they replace older ones.

Without a development set, a part of the training examples is set aside. A limit keeps a sample of a split.

python -m tasks.downstream.examples NAME
"""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ipu_model.core.files import new_folder
from tasks.params.downstream import OwnDataParams
from tasks.params.entries import ENTRY_SECTIONS, Entry, entry_argument, find_entry
from tasks.params.schema import load_sections
from tasks.plan.kinds import TRAIN, DownstreamTask, load_part
from tasks.plan.main import run_main
from tasks.records.interpretation import Interpretation, add_to_reading, read_reading
from tasks.records.splits import Groups, sample_examples, split_off_dev
from tasks.stage import artifacts, streams

WHOLE_BYTES = 16 << 20
"""Files up to this size are read completely before a run, in about two seconds."""


class ExamplesTask(DownstreamTask):
    """Reading of examples."""

    groups: ClassVar[Groups] = ()
    """Columns by which examples are grouped before a development set is set aside."""
    first_labels: tuple[str, ...] = ()
    """Classes of the training examples that check_files read, by number."""
    has_all_labels: bool = True
    """True if check_files read all training examples."""
    dev_count: int | None = None
    """Number of development examples, if check_files read them all."""
    constant: tuple[str, float] | None = None
    """Most frequent class of these and its share; None: an answer is not one class."""
    inputs: dict[str, Interpretation]
    """Split -> interpretation of its file, as far as check_files has read it."""
    has_pairs: bool = False
    """True if the examples are known to be pairs of texts; set by check_files for files."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.inputs = {}

    @classmethod
    def recipe_for(cls, train: Path, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings for this training file that differ from the defaults: dotted name -> value.

        Args:
            train: a file or folder; a Hub data set does not exist here.
            options: settings that only this kind has, and `columns`: part of an example -> name of its column.
        """
        return {}

    @property
    def split_params(self) -> OwnDataParams | None:
        """Section `data` if the development set is taken from the training examples, else None."""
        data = self.entry.params.data
        return data if isinstance(data, OwnDataParams) and data.dev_is_apart else None

    @property
    def source_splits(self) -> tuple[str, ...]:
        """Splits that the user supplies."""
        return self.splits if self.split_params is None else (TRAIN,)

    def is_small(self, split: str) -> bool:
        """Tell whether the file of a split is checked completely before a run."""
        data = self.entry.params.data
        if not isinstance(data, OwnDataParams) or data.source != "files":
            return False
        path = data.path_of(split)
        files = path.rglob("*") if path.is_dir() else (path,)
        return sum(file.stat().st_size for file in files if file.is_file()) <= WHOLE_BYTES

    @abstractmethod
    def write_examples(self, folder: Path) -> str:
        """Read, check and write the examples to `folder`: a Parquet file for each of `source_splits`, and reading.json.

        Returns:
            A summary line.

        Raises:
            InputError: invalid examples, with their location.
        """

    def complete(self, folder: Path) -> dict[str, int]:
        """Write files that depend on the final splits, such as the list of classes.

        Returns:
            Remarks for users -> number of examples.

        Raises:
            InputError: a final split is unusable.
        """
        return {}

    def count_dev(self, total: int, classes: Counter[str] | None = None) -> None:
        """Record the number of examples of the file that has the development examples, and of each class in it."""
        apart, limit = self.split_params, self.entry.params.data.limit_dev
        count = total if apart is None else round(total * apart.dev_fraction)
        self.dev_count = count if limit is None else min(count, limit)
        if classes:
            [(name, most)] = classes.most_common(1)
            self.constant = name, most / total

    @abstractmethod
    def check_files(self) -> str:
        """Check the user's files before a run; return their names and a short description.

        Raises:
            InputError: invalid files.
        """


def make_examples(task: ExamplesTask, folder: Path, validate: Callable[[Path], None] = lambda folder: None) -> str:
    """Write the examples of an entry to `folder`, a Parquet file for each split, all or none.

    Args:
        validate: called with the complete examples before they become `folder`.

    Returns:
        A summary line.

    Raises:
        InputError: see `ExamplesTask.write_examples` and `ExamplesTask.complete`.
        DataInvalid: `validate` rejects them.
    """
    with new_folder(folder) as partial:
        said = [task.write_examples(partial)]
        notes = [*_set_apart(task, partial), *_sampled(task, partial)]
        numbers = task.complete(partial)
        add_to_reading(partial, {**dict(notes), **numbers}, [note for note, _ in notes])
        known = [f"{count:,} {what}" for what, count in numbers.items() if count]
        for text in (*read_reading(partial)["remarks"], *known):
            streams.note(text)
        validate(partial)
    return "; ".join([*said, *(f"{count:,} {what}" for what, count in notes if count), *known])


def _set_apart(task: ExamplesTask, folder: Path) -> list[tuple[str, int]]:
    if (data := task.split_params) is None:
        return []
    [dev] = task.development
    train, apart = folder / f"{TRAIN}.parquet", folder / f"{dev}.parquet"
    keys = (task.entry.key("data", "dev_fraction"), task.entry.key("data", "dev_path"))
    found = split_off_dev(train, apart, task.groups, data.dev_fraction, data.seed, keys)
    asked = f"dev_fraction {data.dev_fraction:g}, grouped by {found.grouping}, seed {data.seed}"
    return [(f"of {found.total:,} training {task.record}s set aside as {dev} ({asked})", found.examples)]


def _sampled(task: ExamplesTask, folder: Path) -> list[tuple[str, int]]:
    data, notes = task.entry.params.data, []
    for split in task.splits:
        limit = data.limit_train if split == TRAIN else data.limit_dev
        if limit is not None and (total := sample_examples(folder / f"{split}.parquet", limit, data.seed)) > limit:
            notes.append((f"of {total:,} {split} {task.record}s sampled (seed {data.seed})", limit))
    return notes


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "validate_")
    entry = find_entry(params, entry_argument("Read or generate, and validate, the examples of a downstream task."))
    task: ExamplesTask = load_part(entry, "examples")
    checks = load_part(entry, "checks")
    started_at = time.perf_counter()
    said = make_examples(
        task, artifacts.EXAMPLES / entry.name, lambda folder: print(checks.validate_examples(folder, params))
    )
    print(f"{entry.name}: {said}; {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    run_main(main)
