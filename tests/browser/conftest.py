"""One browser for the tests of a module.

Playwright keeps an event loop running in the process, where tests of other folders could not run theirs.
"""

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
    """An empty page of the width of a desk."""
    with chromium.window(browser) as found:
        yield found
