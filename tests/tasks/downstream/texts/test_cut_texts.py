"""Texts that are longer than a row: counted with their tokens, noted from 1 %, and refused above a limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.gate.advice import TrainingFacts, advise
from tasks.downstream.gate.gate import CUT
from tasks.rows.row_files import CutTexts


@pytest.mark.parametrize(
    ("lengths", "row_length", "share", "tokens", "length"),
    [([10] * 99 + [30], 16, 0.01, 14 / 1020, 16), ([20] * 10, 16, 1.0, 0.2, 24), ([5, 600], 512, 0.5, 88 / 605, 512)],
)
def test_the_share_of_cut_texts_and_tokens_and_the_length_that_keeps_them(
    tmp_path: Path, lengths: list[int], row_length: int, share: float, tokens: float, length: int
) -> None:
    cut = CutTexts(row_length)
    for part in np.array_split(np.array(lengths), 3):
        cut.add(part)
    cut.write(tmp_path)
    kept = CutTexts.read(tmp_path)
    assert kept is not None
    assert (kept.share, kept.token_share) == (share, pytest.approx(tokens))
    warning = kept.warn(positions=512)
    assert CUT in warning
    assert f"rows.row_length={length} leaves" in warning


def test_rows_that_hold_all_texts_have_no_warning() -> None:
    cut = CutTexts(16)
    cut.add(np.array([16] * 1000 + [17] * 9))
    assert cut.warn(512) == ""


def test_a_rejection_names_cut_texts_first() -> None:
    facts = TrainingFacts([0.7, 0.3], 10, 3.0, 1e-5, 1e-5)
    note = "train rows: 90 of 90 texts (100.0%) are longer than rows of 64 tokens"
    assert advise(facts, ["min_accuracy"], None, 40, "text", [note])[0].text == f"{note}."
