"""Tagged sentences, checked (sentences.py) and written as Parquet, one file per split, with labels.json and
reading.json."""

import math
from collections import Counter
from pathlib import Path

from tasks.downstream.ner.params import NerParams
from tasks.downstream.ner.schemas import SCHEMA
from tasks.downstream.ner.sentences import (
    TagStatistics,
    check_sentences,
    open_sentences,
    read_sentences,
    refuse_similar,
)
from tasks.downstream.reading import CheckedFiles, Reader, count_dev, count_seen, source_splits, split_params
from tasks.records.interpretation import Interpretation, write_reading
from tasks.records.labels import write_labels
from tasks.records.names import choose_spellings
from tasks.records.parquet import read_columns, write_records
from tasks.records.splits import require_known_labels
from tasks.records.tags import find_entities, make_labels
from tasks.stage.errors import InputError

ROW_GROUP = 4096
MAX_TYPES = 1000
"""More types indicate a wrong column."""
UNKNOWN = "dev entities with types not in train"


class NerReader(Reader):
    """Sentences from files or the Hub."""

    groups = (("document", ("document",)), ("sentence", ("tokens",)))

    def write_examples(self, folder: Path) -> str:
        params, section = self.entry.params_as(NerParams).data, self.entry.key("data")
        said, inputs, statistics = list[str](), dict[str, Interpretation](), dict[str, TagStatistics]()
        spellings = self._choose_spellings(whole=True)
        for split in source_splits(self.entry):
            counts = statistics.setdefault(split, TagStatistics(spellings=spellings))
            reading = inputs.setdefault(split, Interpretation())
            records = open_sentences(params, section, split, reading)
            sentences = read_sentences(records, params, counts, reading)
            count = write_records(sentences, folder / f"{split}.parquet", SCHEMA, ROW_GROUP)
            said.append(f"{count:,} {split} sentences with {counts.entities.total():,} entities")
        refuse_similar(params, section, statistics)
        return "; ".join([", ".join(said), *write_reading(folder, params.source, inputs).summary()])

    def _choose_spellings(self, *, whole: bool) -> dict[str, str]:
        """Return the types to rename if types that are spellings of one name are folded.

        Args:
            whole: read all sentences, not only the first.
        """
        params = self.entry.params_as(NerParams).data.model_copy(update={"tag_scheme": "auto"})
        if params.similar_labels != "fold":
            return {}
        type_counts = [
            check_sentences(params, self.entry.key("data"), split, Interpretation(), whole=whole)[0].entities
            for split in source_splits(self.entry)
        ]
        return choose_spellings({name: type_counts[0][name] for types in type_counts for name in types})

    def complete(self, folder: Path) -> dict[str, int]:
        """Write the labels of the training sentences to labels.json."""
        train, dev = (_types(folder / f"{split}.parquet") for split in self.entry.splits)
        self._check_dev(train, dev)
        self._require_types(train, MAX_TYPES)
        write_labels(folder, make_labels(train))
        return {UNKNOWN: sum(count for name, count in dev.items() if name not in train)}

    def _require_types(self, train: Counter[str], most: float) -> None:
        if not 1 <= len(train) <= most:
            section = self.entry.key("data")
            raise InputError(
                f"the training sentences have {len(train):,} entity types, 1 to {MAX_TYPES:,} are required. Check "
                f"{section}.train_path, whose last column is the tag, or {section}.columns"
            )

    def _check_dev(self, train: Counter[str], dev: Counter[str]) -> None:
        """Refuse development sentences without any entity type of the training sentences."""
        if train and split_params(self.entry) is None:
            require_known_labels(train, dev, self.entry.development[0], self.entry.key("data", "dev_path"))

    def check_files(self) -> CheckedFiles:
        """Check the first sentences of each file, all of a small one, and the types of files read as a whole."""
        params = self.entry.params_as(NerParams).data
        inputs = {split: Interpretation() for split in source_splits(self.entry)}
        section, spellings = self.entry.key("data"), self._choose_spellings(whole=False)
        results = [
            check_sentences(params, section, split, reading, spellings=spellings) for split, reading in inputs.items()
        ]
        refuse_similar(params, section, {split: counts for split, (counts, _) in zip(inputs, results, strict=True)})
        (train, is_whole_train), (dev, is_whole_dev) = results[0], results[-1]
        if is_whole_train:
            # If a part of the file is set aside, the training sentences may have fewer types than the file.
            self._require_types(train.entities, MAX_TYPES if split_params(self.entry) is None else math.inf)
        whole = [counts.entities for counts, is_whole in results if is_whole]
        keys = {split: counts.keys for split, (counts, is_whole) in zip(inputs, results, strict=True) if is_whole}
        if len(whole) == len(self.entry.splits):
            self._check_dev(*whole)
        return CheckedFiles(
            f"{params.train_path} and {params.dev_path or 'a part of it'}",
            inputs,
            make_labels(train.entities),
            is_whole_train,
            dev_count=count_dev(self.entry, dev.sentences) if is_whole_dev else None,
            seen=count_seen(keys),
        )


def _types(path: Path) -> Counter[str]:
    [tags] = read_columns(path, ("tags",), ROW_GROUP, "examples")
    return Counter(entity.type for sentence in tags for entity in find_entities(sentence))
