"""Sentences with tags as Parquet, one file a split, with labels.json and reading.json; each is checked before anything
is kept (format.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.examples import ExamplesTask
from tasks.downstream.ner import about
from tasks.downstream.ner.format import check_sentences, read_sentences
from tasks.downstream.ner.labels import labels_of_types, write_labels
from tasks.downstream.ner.params import SentencesParams
from tasks.downstream.ner.sentences import SCHEMA, Found, Sentence
from tasks.downstream.task import TRAIN
from tasks.project.errors import InputError
from tasks.project.files import new_folder
from tasks.reading.text_files import Reading, write_reading

ROW_GROUP = 4096
MAX_TYPES = 1000
"""More are no types of entities."""
UNKNOWN = "entities of dev of types that train has not, which no model can find"


class Task(about.Task, ExamplesTask):
    """Sentences of files or of the Hub."""

    def write_examples(self, folder: Path) -> str:
        params = self.entry.params.data
        assert isinstance(params, SentencesParams)
        counts, found, reading = make_ner_data(params, folder, self.entry.key("data"))
        types = ", ".join(sorted(found[TRAIN].entities))
        said = [
            f"{count:,} {split} sentences with {found[split].entities.total():,} entities"
            for split, count in counts.items()
        ]
        return "; ".join([", ".join(said), f"types {types}", *reading.summary()])

    def check_files(self) -> str:
        """The first sentences of both files."""
        params = self.entry.params.data
        assert isinstance(params, SentencesParams)
        for split in self.splits:
            check_sentences(params, self.entry.key("data"), split)
        return f"{params.train_path} and {params.dev_path}"


def make_ner_data(
    params: SentencesParams, folder: Path, section: str
) -> tuple[dict[str, int], dict[str, Found], Reading]:
    """Write train.parquet, dev.parquet and labels.json to `folder`, all or none.

    Args:
        section: of params.yaml, for messages.

    Returns:
        Sentences of each split, what was seen of their tags, and what was counted on the way.

    Raises:
        InputError: sentences that cannot be used (all problems of the first file that has any), no entity to learn.
    """
    reading, counts = Reading(), {}
    found = {split: Found() for split in ("train", "dev")}
    with new_folder(folder) as partial:
        for split, seen in found.items():
            sentences = read_sentences(params, section, split, seen, reading)
            counts[split] = write_sentences(sentences, partial / f"{split}.parquet")
        types = found[TRAIN].entities
        if not 1 <= len(types) <= MAX_TYPES:
            raise InputError(
                f"the training sentences have entities of {len(types):,} types, required are 1 to {MAX_TYPES:,}: look "
                f"at {section}.train_path, whose last column is the tag, or at {section}.columns"
            )
        reading.counts[UNKNOWN] += sum(count for name, count in found["dev"].entities.items() if name not in types)
        write_labels(partial, labels_of_types(types))
        write_reading(partial, params.source, reading)
    return counts, found, reading


def write_sentences(sentences: Iterator[Sentence], path: Path) -> int:
    """Write sentences to a Parquet file; how many there are."""
    count = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        while group := list(itertools.islice(sentences, ROW_GROUP)):
            columns = dict(zip(SCHEMA.names, map(list, zip(*group, strict=True)), strict=True))
            writer.write_table(pa.Table.from_pydict(columns, schema=SCHEMA))
            count += len(group)
    return count
