"""Checks of pre-training rows: masked tokens and next sentences. Legend: n rows of L tokens, P masks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tasks.records.text_files import read_reading
from tasks.rows.row_files import IGNORED
from tasks.validation.checks import DataCheck, TotalFeature, Totals
from tasks.validation.histograms import Histogram
from tasks.validation.row_checks import Columns, RowData, RowSequences, RowSource

ENOUGH_SEQUENCES = 100
"""Sequences from which the share of random next sentences is meaningful."""
RANDOM_NEXT_SHARE = (0.05, 0.95)
"""The target is one half; documents too short for two segments raise the share, so only useless data are refused."""


class PretrainRows(RowData):
    """Pre-training rows: checks of masked positions and their labels, and of next-sentence labels."""

    kinds: ClassVar[tuple[str, ...]] = ("pretrain",)

    def __init__(self, source: RowSource, masked_fraction: float) -> None:
        """Open the rows.

        Args:
            masked_fraction: pretrain_rows.masked_fraction.
        """
        super().__init__(source)
        self.total_checks += self._label_checks(masked_fraction)
        real = "masked positions are real tokens, not padding"
        self.record_checks += (
            DataCheck("masked_in_sequence", "masked_positions", real, self.advice),
            DataCheck("masked_once", "masked_positions", "no position masked twice", self.advice),
            DataCheck("next_sentences", "next_sentence_labels", "a label for every sequence", self.advice),
        )
        self._masked_per_row, self._random_next = Histogram(), 0

    def _label_checks(self, masked_fraction: float) -> tuple[DataCheck, ...]:
        manifest = self.manifest
        # The number of masked tokens in a sequence is rounded up, and at least one.
        most = masked_fraction + manifest.sequences / max(1, manifest.real_tokens)
        low, high = RANDOM_NEXT_SHARE if manifest.sequences >= ENOUGH_SEQUENCES else (0.0, 1.0)
        return (
            DataCheck("masked_tokens", "masked_labels", "at least one masked token", self.advice, minimum=1),
            DataCheck(
                "masked_share",
                "masked_labels",
                f"at most {most:.4g} of the real tokens: masked_fraction "
                f"{masked_fraction:.4g} and one more token per sequence",
                f"check pretrain_rows.masked_fraction; {self.advice}",
                maximum=most,
            ),
            DataCheck(
                "random_next_share",
                "next_sentence_labels",
                f"between {low:.4g} and {high:.4g} of the sequences have a random next sentence"
                + ("" if low else f" (stricter for {ENOUGH_SEQUENCES} or more sequences)"),
                "documents of one sentence have no next sentence: check corpus.layout",
                minimum=low,
                maximum=high,
            ),
        )

    def kind_features(self, rows: Columns, found: RowSequences) -> Columns:
        labels = rows["next_sentence_labels"]
        present = found.present(labels.shape[1])
        self._masked_per_row.add((rows["masked_labels"] != IGNORED).sum(axis=1))
        self._random_next += int((present & (labels == 1)).sum())
        return {**mask_features(rows, found), "next_sentences": (present & (labels == IGNORED)).sum(axis=1)}

    @property
    def _figures(self) -> dict[str, float]:
        masked, manifest = self._masked_per_row.sum, self.manifest
        return {
            "masked_tokens": masked,
            "masked_share": masked / max(1, manifest.real_tokens),
            "random_next_share": self._random_next / max(1, manifest.sequences),
        }

    def totals(self) -> Totals:
        return {**super().totals(), **{name: TotalFeature(value) for name, value in self._figures.items()}}

    def numbers(self) -> dict[str, Any]:
        return {
            **super().numbers(),
            **read_reading(self.folder)["numbers"],
            "masked tokens": self._figures["masked_tokens"],
            "share of masked tokens": round(self._figures["masked_share"], 4),
            "share of random next sentences": round(self._figures["random_next_share"], 4),
        }

    def histograms(self) -> list[dict[str, Any]]:
        return [*super().histograms(), self._masked_per_row.histogram("Masked tokens in a row", "tokens")]


def mask_features(rows: Columns, found: RowSequences) -> Columns:
    """Return the features [n] of the masked_positions that have masked_labels."""
    positions, used = rows["masked_positions"].astype(np.int64), rows["masked_labels"] != IGNORED
    length = found.real.shape[1]
    inside = (positions >= 0) & (positions < length)
    is_real = np.take_along_axis(found.real, np.clip(positions, 0, length - 1), axis=1)
    # Unused slots get unique values, so that equal neighbours are positions masked twice.
    own = np.sort(np.where(used, positions, -1 - length - np.arange(positions.shape[1])), axis=1)
    return {
        "masked_in_sequence": (used & inside & ~is_real).sum(axis=1),
        "masked_once": (own[:, 1:] == own[:, :-1]).sum(axis=1),
    }
