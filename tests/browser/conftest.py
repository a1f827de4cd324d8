"""One browser for the tests of a module."""

import pytest

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium.started() as started:
        yield started


@pytest.fixture
def page(browser):
    with chromium.window(browser) as window:
        yield window
