"""The bars of an evaluation: who points at one, or hears the page read, is told the intervals that it draws."""

import re
from datetime import date

import pytest

from tests.browser import chromium, evaluations

LABEL = re.compile(r"[\w -]*[\w1] [\d.]+, 95% interval ([\d.]+) to ([\d.]+)(; .* 95% interval [\d.]+ to [\d.]+)*")
KINDS = ("questions", "classes", "several_labels", "values", "entities")


def report(page, place, kind):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(getattr(evaluations, kind)(), encoding="utf-8")
    return chromium.opened(page, place)


@pytest.mark.parametrize("kind", KINDS)
def test_each_bar_of_a_slice_tells_its_intervals(page, tmp_path, kind):
    bars = report(page, tmp_path / "report.html", kind).locator(".bars svg:has(.interval)")
    labelled = page.get_by_role("img", name=LABEL)
    assert labelled.count() == bars.count() > 0
    for bar in labelled.all():
        low, high = LABEL.fullmatch(bar.locator("title").text_content()).groups()[:2]
        ends = bar.locator(".interval").first
        drawn = [float(ends.get_attribute(name)) for name in ("x1", "x2")]
        assert drawn == pytest.approx([float(low), float(high)], abs=0.055), "drawn to hundredths, told in tenths"
        printed = bar.locator("xpath=following-sibling::span[1]/small").inner_text()
        assert printed == f"{low}–{high}", "no pointer is needed to read it"


def test_near_duplicates_need_no_sideways_scrolling_on_a_phone(page, tmp_path):
    page.set_viewport_size(chromium.PHONE)
    table = report(page, tmp_path / "report.html", "classes").get_by_role("region", name="near-duplicates by source")
    assert table.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert table.locator("[data-name='share']").count() > 0


@pytest.mark.parametrize(
    ("place", "run", "index"),
    [
        ("runs/checkouts/w1/evaluation/squad/report.html", "runs/checkouts/w1/reports/run.html", "reports/index.html"),
        ("evaluation/squad/report.html", "reports/run.html", "reports/index.html"),
        ("published/w1/evaluation/report.html", "", ""),
        ("evaluation-w1-dev/report.html", "", ""),
    ],
)
def test_links_lead_back_to_the_run_from_where_the_page_is(page, tmp_path, place, run, index):
    file = tmp_path / "a project" / place
    links = report(page, file, "values").locator(".top a")
    shown = {link.text_content(): link.evaluate("link => link.href") for link in links.all() if link.is_visible()}
    facts = [fact.inner_text().split("\n") for fact in page.locator(".about [data-fact]:visible").all()]
    today = f"{date.fromtimestamp(file.stat().st_mtime):%-d %B %Y}"
    of_run = [["Run", "w1"]] if "checkouts" in place else []
    assert facts == ([*of_run, ["Date", today]] if run else []), "from the place and the time of the file"
    wanted = {"Run": run, "All runs": index, "Docs": index and "docs/evaluation.md"}
    assert shown == {name: (tmp_path / "a project" / path).as_uri() for name, path in wanted.items() if path}
