"""The bars of an evaluation: who points at one, or hears the page read, is told the intervals that it draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser import chromium, evaluations

TOLD = re.compile(r"F1 [\d.]+, 95% interval ([\d.]+) to ([\d.]+); EM [\d.]+, 95% interval [\d.]+ to [\d.]+")


def test_each_bar_of_a_slice_tells_its_intervals(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(evaluations.questions(), encoding="utf-8")
    bars = chromium.opened(page, file).locator(".bars svg:has(.interval)")
    told = page.get_by_role("img", name=TOLD)
    assert told.count() == bars.count() > 5
    for bar in told.all():
        low, high = TOLD.fullmatch(bar.locator("title").text_content() or "").groups()  # type: ignore[union-attr]
        ends = bar.locator(".interval").first
        drawn = [float(ends.get_attribute(name) or "") for name in ("x1", "x2")]
        assert drawn == pytest.approx([float(low), float(high)], abs=0.055), "drawn to hundredths, told in tenths"
