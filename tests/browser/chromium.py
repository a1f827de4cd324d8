"""The system's Chromium, driven by Playwright; nothing is downloaded, and no name but loopback's is found."""

import contextlib
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "PODIUM_TEST_BROWSER"
"""`required`: a host without a browser fails these tests instead of skipping them."""
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
DESKTOP = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}


def installed():
    """The path of the browser; where there is none, the test is skipped, or fails where one is required."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        missing = f"no {', '.join(NAMES[:-1])} or {NAMES[-1]} on PATH"
        assert os.environ.get(REQUIRED) != "required", f"{missing}, and {REQUIRED}=required"
        pytest.skip(missing)
    return browser


@contextlib.contextmanager
def started():
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=installed(), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def window(browser, *, phone=False, dark=False):
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        is_mobile=phone,
        has_touch=phone,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(10_000)
    try:
        yield context.new_page()
    finally:
        context.close()


def opened(page, file):
    page.goto(file.resolve().as_uri())
    return page
