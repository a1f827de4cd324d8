"""The page of a running run in a browser: it shows updates in place until someone turns them off."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from flows.views import run_page
from flows.views.run_view import RunView
from ipu_model.files import write_text
from tests.browser import chromium, made_runs


def _written(folder: Path) -> tuple[Path, str]:
    report, root = made_runs.run(folder, "running")
    html = run_page.render_run(RunView(report, root, at_work=True))
    file = root / "reports/run.html"
    write_text(file, html)
    return file, html


def test_an_open_page_of_a_run_at_work_follows_it_and_stays_where_it_was_read(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "REFRESH_S", 1)
    file, html = _written(tmp_path)
    chromium.opened(page, file)
    page.locator("h2", has_text="Training").scroll_into_view_if_needed()
    at = page.evaluate("scrollY")
    assert at > 500
    write_text(file, html.replace("<h1>Run", "<h1>Later, run"))
    expect(page.locator("h1")).to_contain_text("Later, run", timeout=30_000)
    page.wait_for_load_state()
    assert abs(page.evaluate("scrollY") - at) < 5
    assert page.locator("[data-written]").is_hidden(), "it was written just now"


def test_a_page_that_nobody_writes_any_more_says_so(page: Page, tmp_path: Path) -> None:
    file, html = _written(tmp_path)
    said = f'data-written="{html.partition("data-written=")[2].split(chr(34))[1]}"'
    write_text(file, html.replace(said, f'data-written="{time.time() - 600:.0f}"'))
    chromium.opened(page, file)
    assert "the run was killed" in page.locator("[data-written]").inner_text()
