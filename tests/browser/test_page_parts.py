"""What the script of the pages does: values of plots, tables that sort and filter, the system's theme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium, parts_page


@pytest.fixture(scope="module")
def parts(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of all parts; each test leaves it as it was."""
    file: Path = tmp_path_factory.mktemp("parts") / "parts.html"
    file.write_text(parts_page.page(), encoding="utf-8")
    with chromium.window(browser) as page:
        yield chromium.opened(page, file)


def names(page: Page) -> list[str]:
    """Of the rows that are seen, from top to bottom."""
    return [row.text_content() or "" for row in page.locator("#kept tbody th").all() if row.is_visible()]


def test_a_table_sorts_by_figures_and_words_and_what_has_none_stays_last(parts: Page) -> None:
    score, name = parts.get_by_role("button", name="F1"), parts.get_by_role("button", name="name")
    score.click()
    assert names(parts) == ["base-10", "base-9", "large", "unfinished"]
    score.press("Enter")
    assert names(parts) == ["large", "base-9", "base-10", "unfinished"]
    assert parts.locator("th[aria-sort]").all_text_contents() == ["F1"]
    assert parts.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    name.press("Space")
    assert names(parts) == ["base-9", "base-10", "large", "unfinished"], "9 comes before 10"


def test_a_filter_keeps_the_rows_that_hold_every_word_and_says_how_many(parts: Page) -> None:
    given = parts.get_by_label("Keep rows with")
    assert parts.locator("#count").text_content() == "4 of 4 shown"
    given.fill("PODIUM base")
    assert set(names(parts)) == {"base-9", "base-10"}
    assert parts.locator("#count").text_content() == "2 of 4 shown"
    given.fill("<script>")
    assert names(parts) == ["base-10"], "a user's text is looked for as it is"
    given.fill("nowhere")
    assert names(parts) == []
    given.fill("")
    assert len(names(parts)) == 4


def test_the_value_under_the_pointer_stays_on_the_screen_at_both_ends_of_a_plot(parts: Page) -> None:
    plot = parts.locator("svg.plot").first
    plot.scroll_into_view_if_needed()
    points = plot.locator("[data-tip]")
    for point in (points.first, points.last):
        box = point.bounding_box()
        assert box is not None
        parts.mouse.move(box["x"], box["y"])
        tip = plot.locator("xpath=..").locator(".tip")
        assert (tip.text_content() or "").endswith("nats) " + (tip.text_content() or "").rsplit(" ", 1)[-1])
        seen, home = tip.bounding_box(), plot.locator("xpath=..").bounding_box()
        assert seen is not None
        assert home is not None
        assert home["x"] <= seen["x"]
        assert seen["x"] + seen["width"] <= home["x"] + home["width"] + 1
    parts.mouse.move(0, 0)
    assert plot.locator("xpath=..").locator(".tip").is_hidden()


def test_the_theme_follows_the_system_while_the_page_is_open(parts: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    parts.emulate_media(color_scheme="dark")
    dark = parts.evaluate(ground)
    parts.emulate_media(color_scheme="light")
    assert parts.evaluate(ground) != dark
