"""Checks of a corpus: data/corpus/*.parquet with document_id, title, text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.params.schema import ValidateParams
from tasks.records.parquet import list_corpus_files
from tasks.records.text_files import read_reading
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, DataSet, Frame, TotalFeature, Totals
from tasks.validation.example_files import ParquetFiles
from tasks.validation.histograms import Histogram

SCHEMA = pa.schema([("document_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
FEW_WORDS = 30
"""Characters that the longest document must exceed, five or six words: sentence pairs need more than titles."""
ADVICE = "check corpus.path, corpus.text_column and corpus.layout in params.yaml"


def open_corpus(folder: Path, limits: ValidateParams) -> DataSet:
    """Open the corpus in `folder`; with corpus.source: none it must be empty."""
    return EmptyCorpus(folder) if read_reading(folder)["source"] == "none" else CorpusData(folder, limits)


class EmptyCorpus(DataSet):
    """Empty corpus of a plan whose pre-training rows come from prepared data."""

    name, record = "corpus", "document"
    prerequisites = (
        DataCheck(
            "no_files", "*.parquet", "no documents: corpus.source is none", "delete the folder and run the corpus stage"
        ),
    )

    def __init__(self, folder: Path) -> None:
        self.files = sorted(path.name for path in Path(folder).glob("*.parquet"))

    def prepare(self) -> Totals:
        return {"no_files": TotalFeature(len(self.files), examples=self.files)}

    def numbers(self) -> dict[str, Any]:
        return {"documents": 0}


class CorpusData(ParquetFiles):
    """Documents of a corpus folder."""

    name, record = "corpus", "document"
    texts: ClassVar[Mapping[str, str]] = {"id": "document_id", "title": "title", "text": "text"}

    def __init__(self, folder: Path, limits: ValidateParams) -> None:
        files = {path.name: path for path in list_corpus_files(folder)}
        super().__init__(files, SCHEMA, f"columns {', '.join(SCHEMA.names)} of type string", "the corpus stage")
        self.total_checks = _total_checks(limits)
        most = limits.max_document_characters
        size = f"at most {most:,} characters in a document"
        whole = f"the text was not split into documents: {ADVICE}, or raise validate.max_document_characters"
        self.record_checks = (*self.text_checks(ADVICE), DataCheck("document_size", "text", size, whole, maximum=most))
        self._lengths = {"documents": Histogram()}
        self._control = 0
        self._worst: list[tuple[int, str]] = []

    def _labels(self, name: str, batch: pa.RecordBatch) -> list[str]:
        ids, first = text_features.to_strings(batch.column("document_id")), sum(self._count.values())
        return [key.strip() or f"document number {number}" for number, key in enumerate(ids, first)]

    def _features(self, name: str, batch: pa.RecordBatch, labels: Sequence[str]) -> Frame:
        characters = text_features.count_characters(batch.column("text"))
        control = text_features.count_controls(batch.column("text"))
        self._lengths["documents"].add(characters)
        self._control += int(control.sum())
        worst = np.argsort(-control, kind="stable")[:3]
        self._worst += [(-int(control[i]), labels[i]) for i in worst if control[i]]
        self._worst = sorted(self._worst)[:3]
        return {"document_size": characters}

    def totals(self) -> Totals:
        lengths = self._lengths["documents"]
        worst = [f"{label}: {-count:,} control characters" for count, label in self._worst]
        return {
            "documents": TotalFeature(lengths.count),
            "ids_unique": self.repeated_ids(),
            "control_characters": TotalFeature(self._control / max(1, lengths.sum), examples=worst),
            "longest_document": TotalFeature(lengths.largest),
        }

    def numbers(self) -> dict[str, Any]:
        lengths = self._lengths["documents"]
        return {
            "documents": lengths.count,
            "characters": lengths.sum,
            "mean characters of a document": lengths.mean,
            "median": lengths.quantile(0.5),
            "longest": lengths.largest,
            "control characters and U+FFFD": self._control,
            "files": len(self.files),
            **self.reading,
        }


def _total_checks(limits: ValidateParams) -> tuple[DataCheck, ...]:
    return (
        DataCheck(
            "documents",
            "rows",
            f"at least {limits.min_documents:,} documents",
            "add text (corpus.path, corpus.demo_documents), or lower validate.min_documents",
            minimum=limits.min_documents,
        ),
        DataCheck(
            "ids_unique", "document_id", "unique ids", "two inputs may contain the same documents: check corpus.path"
        ),
        DataCheck(
            "control_characters",
            "text",
            f"at most {limits.max_control_share:.4g} of all characters are control characters or U+FFFD",
            "the files may be binary or not UTF-8: check corpus.path, or raise validate.max_control_share",
            maximum=limits.max_control_share,
        ),
        DataCheck(
            "longest_document",
            "text",
            f"the longest document has more than {FEW_WORDS} characters",
            f"these may be titles or single lines, not documents: {ADVICE}",
            minimum=FEW_WORDS + 1,
        ),
    )
