"""Checks of pre-training data: the corpus (data/corpus/*.parquet with document_id, title, text), and its rows.

Legend: n rows of L tokens, P masks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.params.schema import ValidateParams
from tasks.records.interpretation import read_reading
from tasks.records.layouts import MORE_DOCUMENTS
from tasks.records.parquet import list_corpus_files
from tasks.rows.row_files import IGNORED
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, Frame, Label, TotalFeature, Totals
from tasks.validation.row_checks import Columns, RowData, RowSequences, RowSource, count_per_row
from tasks.validation.text_features import FilePart, ParquetFiles

SCHEMA = pa.schema([("document_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
FEW_WORDS = 30
"""Characters that the longest document must exceed, five or six words: sentence pairs need more than titles."""
MAX_OTHER_FORMAT = 0.1
"""Share of documents that may begin like another format: texts of the web may have a few."""
ADVICE = "check corpus.path, corpus.text_column and corpus.layout in params.yaml"
ENOUGH_SEQUENCES = 100
"""Sequences from which the share of random next sentences is meaningful."""
RANDOM_NEXT_SHARE = (0.05, 0.95)
"""The target is one half; documents too short for two segments raise the share, so only useless data are refused."""


class CorpusData(ParquetFiles):
    """Documents of a corpus folder."""

    name, record, measured = "corpus", "document", ("documents",)
    texts: ClassVar[Mapping[str, str]] = {"id": "document_id", "title": "title", "text": "text"}

    def __init__(self, folder: Path, limits: ValidateParams) -> None:
        files = {path.name: path for path in list_corpus_files(folder)}
        super().__init__(files, SCHEMA, f"columns {', '.join(SCHEMA.names)} of type string", "the corpus stage")
        self.total_checks = (
            DataCheck(
                "documents",
                "rows",
                f"at least {limits.min_documents:,} documents",
                MORE_DOCUMENTS,
                minimum=limits.min_documents,
            ),
            DataCheck(
                "ids_unique",
                "document_id",
                "unique ids",
                "two inputs may contain the same documents: check corpus.path",
            ),
            DataCheck(
                "control_characters",
                "text",
                f"at most {limits.max_control_share:.4g} of all characters are control characters or U+FFFD",
                "the files may be binary or not UTF-8: check corpus.path, or raise validate.max_control_share",
                maximum=limits.max_control_share,
            ),
            DataCheck(
                "plain_text",
                "text",
                f"at most {MAX_OTHER_FORMAT:.4g} of the documents begin like JSON, HTML, PDF or RTF",
                "the files may have another format than their names say: check corpus.path and corpus.layout",
                maximum=MAX_OTHER_FORMAT,
            ),
            DataCheck(
                "longest_document",
                "text",
                f"the longest document has more than {FEW_WORDS} characters",
                f"these may be titles or single lines, not documents: {ADVICE}",
                minimum=FEW_WORDS + 1,
            ),
        )
        most = limits.max_document_characters
        size = f"at most {most:,} characters in a document"
        whole = f"the text was not split into documents: {ADVICE}, or raise validate.max_document_characters"
        self.record_checks = (*self.text_checks(ADVICE), DataCheck("document_size", "text", size, whole, maximum=most))

    def _label(self, part: FilePart, batch: pa.RecordBatch, first: int, offset: int) -> str:
        key = batch.column("document_id")[offset].as_py() or ""
        return key.strip() or f"document number {part.before + first + offset}"

    def _features(self, name: str, batch: pa.RecordBatch, label: Label) -> Frame:
        characters = text_features.count_characters(batch.column("text"))
        control = text_features.count_controls(batch.column("text"))
        self.tally.histograms["documents"].add(characters)
        self.tally.counts["control"] += int(control.sum())
        other = np.flatnonzero(text_features.begins_as_other_format(batch.column("text")))
        self.tally.counts["other format"] += len(other)
        self.tally.lists["other format"] += [label(i) for i in other[:3].tolist()]
        worst = np.argsort(-control, kind="stable")[:3].tolist()
        self.tally.lists["worst"] += [(-int(control[i]), label(i)) for i in worst if control[i]]
        return {"document_size": characters}

    def totals(self) -> Totals:
        lengths, control = self.tally.histograms["documents"], self.tally.counts["control"]
        worst = [f"{name}: {-count:,} control characters" for count, name in sorted(self.tally.lists["worst"])[:3]]
        return {
            "documents": TotalFeature(lengths.count),
            "ids_unique": self.repeated_ids(),
            "control_characters": TotalFeature(control / max(1, lengths.sum), examples=worst),
            "plain_text": TotalFeature(
                self.tally.counts["other format"] / max(1, lengths.count),
                examples=self.tally.lists["other format"][:3],
            ),
            "longest_document": TotalFeature(lengths.largest),
        }

    def numbers(self) -> dict[str, object]:
        lengths = self.tally.histograms["documents"]
        return {
            "documents": lengths.count,
            "characters": lengths.sum,
            "mean characters of a document": lengths.mean,
            "median": lengths.quantile(0.5),
            "longest": lengths.largest,
            "control characters and U+FFFD": self.tally.counts["control"],
            "files": len(self.files),
            **self.reading,
        }

    def notes(self) -> list[str]:
        return [f"{self.reading[what]:,} {what}, for example {text}" for what, text in self.examples.items()]


class MaskedLmRows(RowData):
    """Rows for masked language modelling: checks of masked positions and their labels."""

    kinds: ClassVar[tuple[str, ...]] = ("masked_lm",)

    def __init__(self, source: RowSource, masked_fraction: float) -> None:
        """Open the rows."""
        super().__init__(source)
        manifest = self.manifest
        # The number of masked tokens in a sequence is rounded up, and at least one.
        most = masked_fraction + manifest.sequences / max(1, manifest.real_tokens)
        self.total_checks += (
            DataCheck("masked_tokens", "masked_labels", "at least one masked token", self.advice, minimum=1),
            DataCheck(
                "masked_share",
                "masked_labels",
                f"at most {most:.4g} of the real tokens: masked_fraction "
                f"{masked_fraction:.4g} and one more token per sequence",
                f"check pretrain_rows.masked_fraction; {self.advice}",
                maximum=most,
            ),
        )
        real = "masked positions are real tokens, not padding"
        self.record_checks += (
            DataCheck("masked_in_sequence", "masked_positions", real, self.advice),
            DataCheck("masked_once", "masked_positions", "no position masked twice", self.advice),
        )

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        positions, used = rows["masked_positions"].astype(np.int64), rows["masked_labels"] != IGNORED
        self.tally.histograms["masked"].add(used.sum(axis=1))
        length = sequences.real.shape[1]
        inside = (positions >= 0) & (positions < length)
        is_real = np.take_along_axis(sequences.real, np.clip(positions, 0, length - 1), axis=1)
        # Unused slots get unique values, so that equal neighbours are positions masked twice.
        ordered = np.sort(np.where(used, positions, -1 - length - np.arange(positions.shape[1])), axis=1)
        return {
            "masked_in_sequence": count_per_row(used & inside & ~is_real),
            "masked_once": count_per_row(ordered[:, 1:] == ordered[:, :-1]),
        }

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        positions, labels = row["masked_positions"].astype(np.int64) - start, row["masked_labels"]
        inside = (labels != IGNORED) & (positions >= 0) & (positions < len(tokens))
        masked = zip(positions[inside], self.decode(labels[inside]), strict=True)
        return ", ".join(f"{tokens[position]} was {token}" for position, token in masked)

    @property
    def _figures(self) -> dict[str, float]:
        masked = self.tally.histograms["masked"].sum
        return {"masked_tokens": masked, "masked_share": masked / max(1, self.manifest.real_tokens)}

    def totals(self) -> Totals:
        return {**super().totals(), **{name: TotalFeature(value) for name, value in self._figures.items()}}

    def numbers(self) -> dict[str, object]:
        return {
            **super().numbers(),
            **read_reading(self.folder)["numbers"],
            "masked tokens": self._figures["masked_tokens"],
            "share of masked tokens": round(self._figures["masked_share"], 4),
        }

    def notes(self) -> list[str]:
        return [*super().notes(), *read_reading(self.folder)["remarks"]]

    def histograms(self) -> list[dict[str, Any]]:
        masked = self.tally.histograms["masked"].histogram("Masked tokens in a row", "tokens")
        return [*super().histograms(), masked]


class PretrainRows(MaskedLmRows):
    """Rows of sentence pairs: also checks of next-sentence labels."""

    kinds: ClassVar[tuple[str, ...]] = ("pretrain",)

    def __init__(self, source: RowSource, masked_fraction: float) -> None:
        super().__init__(source, masked_fraction)
        low, high = RANDOM_NEXT_SHARE if self.manifest.sequences >= ENOUGH_SEQUENCES else (0.0, 1.0)
        self.total_checks += (
            DataCheck(
                "random_next_share",
                "next_sentence_labels",
                f"between {low:.4g} and {high:.4g} of the sequences have a random next sentence"
                + ("" if low else f" (stricter for {ENOUGH_SEQUENCES} or more sequences)"),
                "documents of one sentence have no next sentence: set pretrain_rows.next_sentence to false, as for "
                "Thai and other text that does not mark where sentences end, or check corpus.layout",
                minimum=low,
                maximum=high,
            ),
        )
        self.record_checks += (
            DataCheck("next_sentences", "next_sentence_labels", "a label for every sequence", self.advice),
        )

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        labels = rows["next_sentence_labels"]
        present = sequences.present(labels.shape[1])
        self.tally.counts["random_next"] += int((present & (labels == 1)).sum())
        return {
            **super().kind_features(rows, sequences),
            "next_sentences": count_per_row(present & (labels == IGNORED)),
        }

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        following = "random next sentence" if row["next_sentence_labels"][slot] == 1 else "real next sentence"
        return f"{following}; {super().describe_label(row, slot, start, tokens)}"

    @property
    def _figures(self) -> dict[str, float]:
        share = self.tally.counts["random_next"] / max(1, self.manifest.sequences)
        return {**super()._figures, "random_next_share": share}

    def numbers(self) -> dict[str, object]:
        share = round(self._figures["random_next_share"], 4)
        return {**super().numbers(), "share of random next sentences": share}


ROW_CHECKS = {kind: checks for checks in (MaskedLmRows, PretrainRows) for kind in checks.kinds}
