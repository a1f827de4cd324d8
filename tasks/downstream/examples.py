"""Stage examples: the examples of an entry as Parquet, one file a split, each checked before anything is kept.

A development set that nobody gave is a part of the training examples, and a limit leaves a sample of a split.

python -m tasks.downstream.examples NAME
"""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from ipu_model.files import new_folder
from tasks.params.downstream import OwnDataParams
from tasks.params.entries import entry_argument, load_entry
from tasks.plan.kinds import TRAIN, DownstreamTask, part_of
from tasks.plan.main import run_main
from tasks.records.splits import Groups, sample, set_apart
from tasks.records.text_files import add_to_reading, read_reading
from tasks.stage import artifacts, streams


class ExamplesTask(DownstreamTask):
    """How examples are read."""

    groups: ClassVar[Groups] = ()
    """What stays together where development is a part of training."""
    first_labels: tuple[str, ...] = ()
    """Classes of the training examples that check_files looked at, in the order of their numbers."""
    has_all_labels: bool = True
    """Whether check_files looked at all training examples."""
    has_pairs: bool = False
    """Whether the examples are pairs of texts, as far as is known. For files, check_files sets it."""

    @property
    def apart(self) -> OwnDataParams | None:
        """The section `data` where it gives no development examples, so that they are a part of those of training."""
        data = self.entry.params.data
        return data if isinstance(data, OwnDataParams) and data.dev_is_apart else None

    @property
    def read_splits(self) -> tuple[str, ...]:
        """The splits that somebody gave."""
        return self.splits if self.apart is None else (TRAIN,)

    @abstractmethod
    def write_examples(self, folder: Path) -> str:
        """Read, check and write the examples to `folder`: a Parquet file for each of `read_splits`, and reading.json.

        Returns:
            What was made, in a line.

        Raises:
            InputError: what is wrong with them, with the place.
        """

    def complete(self, folder: Path) -> dict[str, int]:
        """Write what follows from all splits as they are in the end, such as the classes there are.

        Returns:
            What people should know of them, in words, and how often.

        Raises:
            InputError: what is left of a split is of no use.
        """
        return {}

    @abstractmethod
    def check_files(self) -> str:
        """What can be known of given files before a run: their names, with what was found in them.

        Raises:
            InputError: what is wrong with them.
        """


def make_examples(task: ExamplesTask, folder: Path) -> str:
    """Write the examples of an entry to `folder`, a Parquet file for each split, all or none.

    Returns:
        What was made, in a line.

    Raises:
        InputError: see `ExamplesTask.write_examples` and `ExamplesTask.complete`.
    """
    with new_folder(folder) as partial:
        said = [task.write_examples(partial)]
        notes = [*_set_apart(task, partial), *_sampled(task, partial)]
        numbers = task.complete(partial)
        add_to_reading(partial, {**dict(notes), **numbers}, [note for note, _ in notes])
        remarks = read_reading(partial)["remarks"]
    known = [f"{count:,} {what}" for what, count in numbers.items() if count]
    for text in (*remarks, *known):
        streams.note(text)
    return "; ".join([*said, *(f"{count:,} {what}" for what, count in notes if count), *known])


def _set_apart(task: ExamplesTask, folder: Path) -> list[tuple[str, int]]:
    if (data := task.apart) is None:
        return []
    [dev] = task.development
    train, apart = folder / f"{TRAIN}.parquet", folder / f"{dev}.parquet"
    keys = (task.entry.key("data", "dev_fraction"), task.entry.key("data", "dev_path"))
    found = set_apart(train, apart, task.groups, data.dev_fraction, data.seed, keys)
    asked = f"{data.dev_fraction:g} asked for, equal {found.by}s together, seed {data.seed}"
    return [(f"{task.record}s of {found.of:,} in train set apart as {dev} ({asked})", found.examples)]


def _sampled(task: ExamplesTask, folder: Path) -> list[tuple[str, int]]:
    data, notes = task.entry.params.data, []
    for split in task.splits:
        limit = data.limit_train if split == TRAIN else data.limit_dev
        if limit is not None and (total := sample(folder / f"{split}.parquet", limit, data.seed)) > limit:
            notes.append((f"{split} {task.record}s of {total:,}, a sample (seed {data.seed})", limit))
    return notes


def main() -> None:
    entry = load_entry(entry_argument("Read or generate the examples of a downstream task."))
    task: ExamplesTask = part_of(entry, "examples")
    started_at = time.perf_counter()
    said = make_examples(task, artifacts.examples_folder(task.entry.name))
    print(f"{task.entry.name}: {said}; {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    run_main(main)
