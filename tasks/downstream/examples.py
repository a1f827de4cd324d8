"""Stage examples: the examples of an entry as Parquet, one file a split, each checked before anything is kept.

python -m tasks.downstream.examples NAME
"""

from __future__ import annotations

import argparse
import time
from abc import abstractmethod
from pathlib import Path

from tasks.downstream.entries import entry_of
from tasks.downstream.task import DownstreamTask, part_of
from tasks.project import artifacts
from tasks.project.main import run_main
from tasks.project.params import load_params


class ExamplesTask(DownstreamTask):
    """How examples are read."""

    @abstractmethod
    def write_examples(self, folder: Path) -> str:
        """Read, check and write the examples to `folder`, a Parquet file for each split and reading.json, all or none.

        Returns:
            What was made, in a line.

        Raises:
            InputError: what is wrong with them, with the place.
        """

    @abstractmethod
    def check_files(self) -> str:
        """What can be known of given files before a run: their names, with what was found in them.

        Raises:
            InputError: what is wrong with them.
        """


def main() -> None:
    parser = argparse.ArgumentParser(description="Read or generate the examples of a downstream task.")
    parser.add_argument("name", help="the entry, or what its stage is called")
    task: ExamplesTask = part_of(entry_of(load_params(), parser.parse_args().name), "examples")
    started_at = time.perf_counter()
    said = task.write_examples(artifacts.examples_folder(task.entry.name))
    print(f"{task.entry.name}: {said}; {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    run_main(main)
