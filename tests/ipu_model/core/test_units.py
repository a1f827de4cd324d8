"""Counts for people."""

from __future__ import annotations

import pytest

from ipu_model.core.units import format_count


@pytest.mark.parametrize(
    ("count", "what", "text"),
    [
        (2, "blank lines skipped", "2 blank lines skipped"),
        (1, "blank lines skipped", "1 blank line skipped"),
        (1, "entries", "1 entry"),
        (1, "answers whose spaces are not at answer_start", "1 answer whose spaces are not at answer_start"),
        (0, "files", "0 files"),
        (12345, "rows", "12,345 rows"),
    ],
)
def test_a_count_of_one_is_in_the_singular(count: int, what: str, text: str) -> None:
    assert format_count(count, what) == text
