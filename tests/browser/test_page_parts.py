"""What the script of the pages does: values of plots, tables that sort and filter, the system's theme."""

import pytest

from tests.browser import chromium, parts_page
from tests.browser.pages import PAGES


@pytest.fixture(scope="module")
def parts(browser, tmp_path_factory):
    file = tmp_path_factory.mktemp("parts") / "parts.html"
    file.write_text(parts_page.page(), encoding="utf-8")
    with chromium.window(browser) as page:
        yield chromium.opened(page, file)


def names(page):
    return [row.text_content() or "" for row in page.locator("#kept tbody th").all() if row.is_visible()]


def test_a_table_sorts_by_figures_and_words_and_what_has_none_stays_last(parts):
    score, name = parts.get_by_role("button", name="F1"), parts.get_by_role("button", name="name")
    score.click()
    assert names(parts) == ["base-10", "base-9", "large", "unfinished"]
    score.press("Enter")
    assert names(parts) == ["large", "base-9", "base-10", "unfinished"]
    assert parts.locator("th[aria-sort]").all_text_contents() == ["F1"]
    assert parts.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    name.press("Space")
    assert names(parts) == ["base-9", "base-10", "large", "unfinished"], "9 comes before 10"


def test_a_filter_keeps_the_rows_that_hold_every_word_and_says_how_many(parts):
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


def test_the_value_under_the_pointer_stays_on_the_screen_at_both_ends_of_a_plot(parts):
    plot = parts.locator("svg.plot").first
    plot.scroll_into_view_if_needed()
    points = plot.locator("[data-tip]")
    for point in (points.first, points.last):
        box = point.bounding_box()
        parts.mouse.move(box["x"], box["y"])
        tip = plot.locator("xpath=..").locator(".tip")
        assert tip.text_content().endswith("nats) " + tip.text_content().rsplit(" ", 1)[-1])
        seen, home = tip.bounding_box(), plot.locator("xpath=..").bounding_box()
        assert home["x"] <= seen["x"]
        assert seen["x"] + seen["width"] <= home["x"] + home["width"] + 1
    parts.mouse.move(0, 0)
    assert plot.locator("xpath=..").locator(".tip").is_hidden()


def test_the_theme_follows_the_system_while_the_page_is_open(parts):
    ground = "getComputedStyle(document.body).backgroundColor"
    parts.emulate_media(color_scheme="dark")
    dark = parts.evaluate(ground)
    parts.emulate_media(color_scheme="light")
    assert parts.evaluate(ground) != dark


PATHS = "plot => [...plot.querySelectorAll('.series path.line:not(.raw)')].map((path) => path.getAttribute('d'))"


def test_curves_zoom_by_pointer_and_keys_and_smooth(page, tmp_path):
    chromium.opened(page, PAGES["comparison"](tmp_path))
    plot, slider = page.locator("#curves svg").first, page.get_by_label("Smoothing")
    plot.scroll_into_view_if_needed()
    whole, ticks, box = plot.evaluate(PATHS), plot.locator(".axis.x text").all_text_contents(), plot.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=3)
    page.mouse.up()
    assert plot.evaluate(PATHS) != whole
    shown = [float(text.replace(",", "")) for text in plot.locator(".axis.x text").all_text_contents()]
    assert 300 < shown[0] < shown[-1] < 600, shown
    plot.dblclick()
    assert (plot.evaluate(PATHS), plot.locator(".axis.x text").all_text_contents()) == (whole, ticks)
    plot.press("+")
    assert plot.evaluate(PATHS) != whole
    plot.press("0")
    assert plot.evaluate(PATHS) == whole
    page.get_by_role("button", name="zoom in").first.press("Enter")
    assert plot.evaluate(PATHS) != whole
    page.get_by_role("button", name="reset zoom").first.click()
    slider.fill("0.8")
    assert plot.evaluate(PATHS) != whole
    assert plot.locator("path.raw").evaluate_all("lines => lines.map((line) => line.getAttribute('d'))") == whole
    slider.fill("0")
    assert plot.evaluate(PATHS) == whole


def test_without_a_script_the_curves_are_a_plain_picture_with_a_legend(browser, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    page = chromium.opened(context.new_page(), PAGES["comparison"](tmp_path))
    assert page.locator("#curves svg path.line").count() > 0
    assert "slow, held-out" in page.locator("#curves .legend").first.inner_text()
    assert not page.locator("input[type=range]").is_visible()
    context.close()
