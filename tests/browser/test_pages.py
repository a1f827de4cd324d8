"""Every page, wide and on a phone, light and dark, printed and by keyboard; planted text shows and does nothing."""

import pytest

from tests.browser import chromium, hostile_pages
from tests.browser.looking import LOOKING, problems
from tests.browser.pages import PAGES
from tests.browser.planted import EVIL, SHOWN, missing


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_right_on_every_screen_and_in_every_light(browser, tmp_path, name):
    shows = "" if name == "no run" else SHOWN
    assert problems(browser, PAGES[name](tmp_path), shows=shows) == []


@pytest.mark.parametrize("name", hostile_pages.PAGES)
def test_text_of_users_is_text_in_every_place_of_a_page(page, tmp_path, name):
    make, places = hostile_pages.PAGES[name]
    chromium.opened(page, make(tmp_path))
    assert missing(page.text_content("html") or "", places) == []
    _use(page)
    page.evaluate(LOOKING)
    assert page.evaluate("looking.structure()") == []
    assert [link for link in page.evaluate("looking.links()") if "javascript:" in link["href"]] == []


def _use(page):
    """Everything by which the page's script shows more of the text: values of plots, tables of what is chosen."""
    for plot in page.locator("svg.plot").all():
        plot.focus()
        page.keyboard.press("ArrowRight")
    for control in page.locator("summary, thead button, .pick input").all():
        if control.is_visible():  # a column may have been taken away by the one before it
            control.click()
    for field in page.locator("input.filter").all():
        field.fill(EVIL)
