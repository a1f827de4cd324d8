"""What a corpus must be: data/corpus/*.parquet with document_id, title, text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.project.errors import InputError
from tasks.project.params import ValidateParams
from tasks.reading.text_files import read_reading
from tasks.validation import text_features
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Totals, differing, gathered
from tasks.validation.histograms import Lengths

SCHEMA = pa.schema([("document_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
FEW_WORDS = 30
"""Characters that the longest document must exceed: five or six words. Sentence pairs need more than titles."""
LOOK = "look at corpus.path, corpus.text_column and corpus.layout in params.yaml"


def corpus_data(folder: Path, limits: ValidateParams) -> DataSet:
    """The corpus in `folder`; one that is there to hold nothing (corpus.source: none) is judged as such."""
    return NoCorpus(folder) if read_reading(folder)["source"] == "none" else CorpusData(folder, limits)


class NoCorpus:
    """The folder of a plan whose rows of pre-training are prepared elsewhere."""

    name, record = "corpus", "document"
    record_checks: Sequence[Check] = ()
    prerequisites: Sequence[Check] = (
        Check(
            "no_files",
            "*.parquet",
            "no document: corpus.source is none",
            "delete the folder and run the corpus stage",
            maximum=0,
        ),
    )
    total_checks: Sequence[Check] = ()

    def __init__(self, folder: Path) -> None:
        self.files = sorted(path.name for path in Path(folder).glob("*.parquet"))

    def prepare(self) -> Totals:
        return Totals({"no_files": len(self.files)}, {"no_files": self.files})

    def frames(self) -> Iterator[Frame]:
        return iter(())

    def totals(self) -> Totals:
        return Totals()

    def statistics(self) -> dict[str, Any]:
        return {"numbers": {"documents": 0}, "histograms": []}


class CorpusData:
    """The documents of a corpus folder."""

    name, record = "corpus", "document"

    def __init__(self, folder: Path, limits: ValidateParams) -> None:
        self.files = sorted(Path(folder).glob("*.parquet"))
        if not self.files:
            raise InputError(f"{folder} holds no .parquet file: run the corpus stage first")
        self.limits = limits
        self.reading: dict[str, int] = read_reading(folder)["numbers"]
        self.prerequisites: Sequence[Check] = (
            Check(
                "schema",
                "document_id, title, text",
                f"columns {', '.join(SCHEMA.names)} of type string",
                f"{folder} was written by something else than the corpus stage: delete it and run that stage",
                maximum=0,
            ),
        )
        self.total_checks: Sequence[Check] = _total_checks(limits)
        self.record_checks: Sequence[Check] = _record_checks(limits)
        self._ids = text_features.Keys()
        self._lengths = Lengths()
        self._control = 0
        self._worst: list[tuple[int, str]] = []

    def prepare(self) -> Totals:
        differences = [text for path in self.files for text in text_features.schema_differences(path, SCHEMA)]
        return Totals({"schema": len(differences)}, {"schema": differences}, {"schema": differing(differences)})

    def frames(self) -> Iterator[Frame]:
        return gathered(
            self._features(batch) for path in self.files for batch in text_features.batches(path, SCHEMA.names)
        )

    def _features(self, batch: pa.RecordBatch) -> Frame:
        ids = text_features.strings(batch.column("document_id"))
        no_id = text_features.is_missing(batch.column("document_id"))
        characters = text_features.characters(batch.column("text"))
        control = text_features.control_characters(batch.column("text"))
        first = self._lengths.count
        labels = [key.strip() or f"document number {first + i}" for i, key in enumerate(ids)]
        self._ids.add(ids[no_id == 0])
        self._lengths.add(characters)
        self._control += int(control.sum())
        worst = np.argsort(-control, kind="stable")[:3]
        self._worst += [(-int(control[i]), labels[i]) for i in worst if control[i]]
        self._worst = sorted(self._worst)[:3]
        return {
            RECORD: np.array(labels, dtype=object),
            "ids_present": no_id,
            "titles_present": batch.column("title").is_null().to_numpy(zero_copy_only=False).astype(np.int64),
            "texts_present": text_features.is_missing(batch.column("text")),
            "document_size": characters,
        }

    def totals(self) -> Totals:
        repeated, examples = self._ids.repetitions(
            lambda: (
                text_features.strings(batch.column(0))
                for path in self.files
                for batch in text_features.batches(path, ["document_id"])
            )
        )
        worst = [f"{label}: {-count:,} such characters" for count, label in self._worst]
        return Totals(
            {
                "documents": self._lengths.count,
                "ids_unique": repeated,
                "control_characters": self._control / max(1, self._lengths.sum),
                "longest_document": self._lengths.largest,
            },
            {"ids_unique": examples, "control_characters": worst},
            {"ids_unique": f"{repeated:,} of {self._lengths.count:,} documents repeat an id"},
        )

    def statistics(self) -> dict[str, Any]:
        lengths = self._lengths
        return {
            "numbers": {
                "documents": lengths.count,
                "characters": lengths.sum,
                "mean characters of a document": lengths.mean,
                "median": lengths.quantile(0.5),
                "longest": lengths.largest,
                "control characters and U+FFFD": self._control,
                "files": len(self.files),
                **self.reading,
            },
            "histograms": [lengths.histogram("Length of documents", "characters")],
        }


def _total_checks(limits: ValidateParams) -> tuple[Check, ...]:
    return (
        Check(
            "documents",
            "rows",
            f"at least {limits.min_documents:,} documents",
            "give more text (corpus.path, corpus.demo_documents), or lower validate.min_documents",
            minimum=limits.min_documents,
        ),
        Check(
            "ids_unique",
            "document_id",
            "no id twice",
            "two inputs may hold the same documents: look at corpus.path",
            maximum=0,
        ),
        Check(
            "control_characters",
            "text",
            f"at most {limits.max_control_share:.4g} of all characters are control characters or U+FFFD",
            "the files are binary or of another encoding than UTF-8: look at corpus.path, "
            "or raise validate.max_control_share",
            maximum=limits.max_control_share,
        ),
        Check(
            "longest_document",
            "text",
            f"the longest document has more than {FEW_WORDS} characters",
            f"these are titles or lines, not documents: {LOOK}",
            minimum=FEW_WORDS + 1,
        ),
    )


def _record_checks(limits: ValidateParams) -> tuple[Check, ...]:
    return (
        Check("ids_present", "document_id", "no id is null or empty", LOOK, maximum=0),
        Check("titles_present", "title", "no title is null (an empty one is fine)", LOOK, maximum=0),
        Check("texts_present", "text", "no text is null or empty", LOOK, maximum=0),
        Check(
            "document_size",
            "text",
            f"at most {limits.max_document_characters:,} characters in a document",
            f"the text was not cut into documents: {LOOK}, or raise validate.max_document_characters",
            maximum=limits.max_document_characters,
        ),
    )
