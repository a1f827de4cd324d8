"""The page of a running run in a browser: it shows updates in place until someone turns them off."""

import time

import pytest
from playwright.sync_api import expect

from flows.views import run_page
from flows.views.run_view import RunView
from ipu_model.core.files import write_text
from tests.browser import chromium, made_runs


def written(folder, state="running"):
    report, root = made_runs.run(folder, state)
    html = run_page.render_run(RunView(report, root, at_work=state == "running"))
    write_text(root / "reports/run.html", html)
    return root / "reports/run.html", html


def test_an_open_page_of_a_run_at_work_follows_it_and_stays_where_it_was_read(page, tmp_path, monkeypatch):
    monkeypatch.setattr(run_page, "REFRESH_S", 1)
    file, html = written(tmp_path)
    chromium.opened(page, file)
    page.locator("h2", has_text="Training").scroll_into_view_if_needed()
    at = page.evaluate("scrollY")
    assert at > 500
    write_text(file, html.replace("<h1>Run", "<h1>Later, run"))
    expect(page.locator("h1")).to_contain_text("Later, run", timeout=30_000)
    page.wait_for_load_state()
    assert abs(page.evaluate("scrollY") - at) < 5
    assert page.locator("[data-written]").is_hidden(), "it was written just now"


def test_a_page_that_nobody_writes_any_more_says_so(page, tmp_path):
    file, html = written(tmp_path)
    moment = f'data-written="{html.partition("data-written=")[2].split(chr(34))[1]}"'
    write_text(file, html.replace(moment, f'data-written="{time.time() - 600:.0f}"'))
    chromium.opened(page, file)
    assert "the run was killed" in page.locator("[data-written]").inner_text()


FIRST_SCREEN = {
    "running": ["running", "33 %", "2 min 05 s left", "update 500 of 1,500", "84.00"],
    "rejected": ["rejected", "84.50", "82.30 to 86.60", "is under the floor"],
    "published": ["published", "88.10", "better than the run of 2026-11-16 09:30: +4.10"],
    "cancelled": ["cancelled", "by Ctrl-C", "9 of 15 stages done"],
    "killed": ["killed", "9 of 15 stages done"],
}


@pytest.mark.parametrize("phone", [False, True])
@pytest.mark.parametrize("state", FIRST_SCREEN)
def test_the_first_screen_answers_how_it_is_going_whether_it_is_better_and_why_it_was_refused(
    browser, tmp_path, state, phone
):
    file, _ = written(tmp_path, state)
    with chromium.window(browser, phone=phone) as page:
        chromium.opened(page, file)
        height = (chromium.PHONE if phone else chromium.DESKTOP)["height"]
        for text in FIRST_SCREEN[state]:
            box = page.locator("main").get_by_text(text).first.bounding_box()
            assert box["y"] + box["height"] <= height, f"{text} is below the first screen"
