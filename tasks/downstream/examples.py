"""Stage examples: write the examples of an entry as Parquet, one file per split, after checking each one.

The examples of all splits are validated before they replace older ones.

Without a development set, a part of the training examples is set aside. A limit keeps a sample of a split.

python -m tasks.downstream.examples NAME
"""

import time
from collections.abc import Callable
from pathlib import Path

from ipu_model.core.files import new_folder
from ipu_model.core.units import format_count
from tasks.downstream.kind import kind_of
from tasks.downstream.reading import Reader, split_params
from tasks.params.entries import ENTRY_SECTIONS, TRAIN, Entry, entry_argument, find_entry
from tasks.params.schema import load_sections
from tasks.plan.main import run_main
from tasks.records.interpretation import add_to_reading, read_reading
from tasks.records.splits import Groups, sample_examples, split_off_dev
from tasks.stage import artifacts, streams
from tasks.validation.validate import validate_new_data


def make_examples(reader: Reader, folder: Path, validate: Callable[[Path], None] = lambda folder: None) -> str:
    """Write the examples of an entry to `folder`, a Parquet file for each split, all or none; return a summary line.

    Args:
        validate: called with the complete examples before they become `folder`.

    Raises:
        InputError: see `Reader.write_examples` and `Reader.complete`.
        DataInvalid: `validate` rejects them.
    """
    with new_folder(folder) as partial:
        said = [reader.write_examples(partial)]
        notes = [*_set_apart(reader.entry, reader.groups, partial), *_sampled(reader.entry, partial)]
        numbers = reader.complete(partial)
        add_to_reading(partial, {**dict(notes), **numbers}, [note for note, _ in notes])
        known = [format_count(count, what) for what, count in numbers.items() if count]
        for text in (*read_reading(partial)["remarks"], *known):
            streams.note(text)
        validate(partial)
    return "; ".join([*said, *(f"{count:,} {what}" for what, count in notes if count), *known])


def _set_apart(entry: Entry, groups: Groups, folder: Path) -> list[tuple[str, int]]:
    if (data := split_params(entry)) is None:
        return []
    [dev] = entry.development
    train, apart = folder / f"{TRAIN}.parquet", folder / f"{dev}.parquet"
    keys = (entry.key("data", "dev_fraction"), entry.key("data", "dev_path"))
    division = split_off_dev(train, apart, groups, data.dev_fraction, data.seed, keys)
    asked = f"dev_fraction {data.dev_fraction:g}, grouped by {division.grouping}, seed {data.seed}"
    return [(f"of {division.total:,} training {entry.record}s set aside as {dev} ({asked})", division.examples)]


def _sampled(entry: Entry, folder: Path) -> list[tuple[str, int]]:
    data, notes = entry.params.data, []
    for split in entry.splits:
        limit = data.limit_train if split == TRAIN else data.limit_dev
        if limit is not None and (total := sample_examples(folder / f"{split}.parquet", limit, data.seed)) > limit:
            notes.append((f"of {total:,} {split} {entry.record}s sampled (seed {data.seed})", limit))
    return notes


def main() -> None:
    params = load_sections(*ENTRY_SECTIONS, "validate_")
    entry = find_entry(params, entry_argument("Read or generate, and validate, the examples of a downstream task."))
    kind = kind_of(entry)
    started_at = time.perf_counter()

    def validate(folder: Path) -> None:
        print(validate_new_data(entry.verdict(), lambda: [kind.example_data(entry, folder)]))

    said = make_examples(kind.reader(entry), artifacts.EXAMPLES / entry.name, validate)
    print(f"{entry.name}: {said}; {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    run_main(main)
