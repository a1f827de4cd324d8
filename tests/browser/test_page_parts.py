"""What the script of the pages does: values of plots, and curves that zoom."""

from tests.browser import chromium
from tests.browser.pages import PAGES


def test_the_value_under_the_pointer_stays_on_the_screen_at_both_ends_of_a_plot(page, tmp_path):
    plot = chromium.opened(page, PAGES["run, published"](tmp_path)).locator("svg.plot").first
    plot.scroll_into_view_if_needed()
    points, figure = plot.locator("[data-tip]"), plot.locator("xpath=..")
    tips = points.evaluate_all("points => points.map(point => point.dataset.tip)")
    tip, home = figure.locator(".tip"), figure.bounding_box()
    for point in (points.first, points.last):
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert tip.text_content() in tips
        seen = tip.bounding_box()
        assert home["x"] <= seen["x"]
        assert seen["x"] + seen["width"] <= home["x"] + home["width"] + 1
    page.mouse.move(0, 0)
    assert tip.is_hidden()


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
