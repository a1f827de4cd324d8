"""The page of all runs in a browser: it sorts, filters, says the command that compares, and is quick with 500 runs."""

from flows.views import index_page
from tests.browser import chromium
from tests.browser.looking import LOOKING, watch
from tests.browser.pages import all_runs
from tests.flows.views.shown_runs import shown


def looked_at(page, folder, runs):
    file = folder / "index.html"
    file.write_text(index_page.render_index(folder, runs), encoding="utf-8")
    return chromium.opened(page, file)


def four(folder):
    return [shown(number, "", folder) for number in range(4)]


def names(page):
    return page.locator("#runs tbody tr:visible th").all_inner_texts()


def drawn(page):
    every = "lines => lines.filter(line => line.style.display !== 'none').map(line => line.dataset.run)"
    return set(page.locator("svg [data-run]").evaluate_all(every))


def test_heads_sort_by_figures_and_words_and_words_filter_rows_and_plots(page, tmp_path):
    runs = [shown(number, "", tmp_path) for number in (8, 9, 10)]
    runs[0].record.ended = None
    looked_at(page, tmp_path, runs)
    name, score, duration = (page.get_by_role("button", name=head) for head in ("name", "score", "duration"))
    name.press("Space")
    assert names(page) == ["run-8", "run-9", "run-10"], "9 comes before 10"
    score.click()
    assert names(page) == ["run-10", "run-8", "run-9"]
    score.press("Enter")
    assert names(page) == ["run-9", "run-8", "run-10"]
    assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    for _ in range(2):
        duration.click()
        assert names(page)[-1] == "run-8", "what nobody knows stays last"
    places = {"run-8": "0", "run-9": "1", "run-10": "2"}
    for words, left in (("REJECTED run", {"run-9"}), ("nowhere", set()), ("", {*places})):
        page.get_by_role("searchbox").fill(words)
        assert {*names(page)} == left
        assert page.locator("#count").inner_text() == f"{len(left)} of 3 shown"
        assert drawn(page) == {places[name] for name in left}


def test_a_run_is_one_line_and_opens_by_click_and_by_keyboard(page, tmp_path):
    looked_at(page, tmp_path, four(tmp_path))
    heights = page.locator("#runs tbody tr:visible").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert (len(heights), max(heights) <= 40) == (4, True), heights
    assert page.locator("#runs time").first.inner_text().endswith(" ago")
    details = page.locator("#runs .more").nth(1)
    assert not details.is_visible()
    summary = page.locator("summary[aria-label='details of run-1']")
    summary.focus()
    page.keyboard.press("Enter")
    assert details.is_visible()
    assert "exact match 70.00" in details.inner_text()
    page.get_by_role("button", name="score").click()
    assert page.locator("#runs tbody tr:visible").nth(2).evaluate("row => row.className") == "more", (
        "it moves with its run"
    )
    page.locator("#runs tbody tr:visible").nth(1).locator(".badge").click()
    assert not details.is_visible()
    page.get_by_role("searchbox").fill("run-3")
    assert page.locator("#runs tbody tr:visible").count() == 1


def test_a_person_chooses_columns_and_the_page_remembers_them(page, tmp_path):
    file = all_runs(3, tmp_path)

    def cells():
        chromium.opened(page, file)
        page.locator("#columns summary").click()
        return page.locator("#runs tbody tr:not(.more)").first.locator("td:visible")

    assert "cpu" not in cells().all_inner_texts()
    page.get_by_label("device").check()
    page.get_by_label("duration").uncheck()
    kept = cells().all_inner_texts()
    assert ("cpu" in kept, "12 min 31 s" in kept) == (True, False)
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('no storage'); } })")
    shown = cells()
    page.get_by_label("device").check()
    assert "cpu" in shown.all_inner_texts()


def test_the_table_is_cut_at_no_width(page, tmp_path):
    looked_at(page, tmp_path, four(tmp_path))
    for width in (390, 600, 768, 1001, 1100, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        cut = page.locator(".scroll").first.evaluate("box => box.scrollWidth - box.clientWidth")
        assert cut <= 0, (width, cut)


def test_chosen_runs_are_drawn_alone_and_can_be_compared(page, tmp_path):
    looked_at(page, tmp_path, four(tmp_path))
    page.get_by_role("checkbox", name="select run-1").check()
    assert drawn(page) == {"1"}
    assert not page.locator("#picked").is_visible()
    page.get_by_role("checkbox", name="select run-3").check()
    assert page.locator("#command").inner_text() == "podium compare run-1 run-3"
    page.get_by_role("button", name="Clear selection").click()
    assert drawn(page) == {"0", "1", "2", "3"}


def test_five_hundred_runs_open_filter_fit_a_phone_and_stay_text(browser, tmp_path):
    file = all_runs(500, tmp_path)
    assert file.stat().st_size < 1_000_000
    with chromium.window(browser, phone=True) as page:
        wrong = watch(page, file)
        chromium.opened(page, file).evaluate(LOOKING)
        assert page.evaluate("looking.structure()") == []
        assert page.evaluate("width => looking.tooWide(width)", chromium.PHONE["width"]) == []
        page.get_by_role("searchbox").fill("rejected")
        assert page.locator("#count").inner_text() == "250 of 500 shown"
    assert wrong == []
