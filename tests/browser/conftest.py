"""One browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started() as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with chromium.window(browser) as found:
        yield found
