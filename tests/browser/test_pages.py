"""Every page, wide and on a phone, light and dark, printed and by keyboard; planted text shows and does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.looking import problems
from tests.browser.pages import PAGES
from tests.browser.planted import SHOWN


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_right_on_every_screen_and_in_every_light(browser: Browser, tmp_path: Path, name: str) -> None:
    shows = "" if name == "no run" else SHOWN
    assert problems(browser, PAGES[name](tmp_path), shows=shows) == []
