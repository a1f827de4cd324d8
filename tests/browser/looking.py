"""What is wrong with a page in a real browser, in words: wide and narrow, light and dark, printed, by keyboard."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from axe_playwright_python.sync_playwright import Axe

from tests.browser import chromium

LARGEST = 1_000_000
PLOTS = 8
"""Plots of a page that are looked at with pointer and keys."""
TABS = 60
"""Controls of a page that are walked through with the Tab key."""
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
BEYOND = ("heading-order", "landmark-one-main", "tabindex", "empty-heading")
EVERY_RULE = {"runOnly": {"type": "tag", "values": TAGS}, "rules": {name: {"enabled": True} for name in BEYOND}}
OF_COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
OF_LAYOUT = {"runOnly": {"type": "rule", "values": ["target-size", "scrollable-region-focusable"]}}
LOOKING = Path(__file__).with_name("looking.js").read_text(encoding="utf-8")


def problems(browser, file, shows=""):
    """Everything that is wrong with the page in `file`; a good one has nothing, and shows the text `shows`."""
    wrong = [f"it has {file.stat().st_size:,} bytes"] if file.stat().st_size > LARGEST else []
    for phone in (False, True):
        with chromium.window(browser, phone=phone) as page:
            watched = watch(page, file)
            chromium.opened(page, file)
            page.evaluate("for (const box of document.querySelectorAll('[data-again]')) box.checked = false")
            for script in (Axe().axe_script, LOOKING):
                page.evaluate(script)
            wrong += [f"{'phone' if phone else 'desk'}: {problem}" for problem in _of_size(page, file, phone)]
            wrong += watched
            wrong += [] if shows in (page.text_content("body") or "") else [f"{shows!r} is not shown"]
    return list(dict.fromkeys(wrong))


def _of_size(page, file, phone):
    if not phone:
        yield from page.evaluate("looking.structure()")
        yield from _links(page, file)
        yield from _keyboard(page)
        for plot in page.locator("svg.plot").all()[:PLOTS]:
            yield from _plot(page, plot)
    page.evaluate("looking.unfold()")
    width = (chromium.PHONE if phone else chromium.DESKTOP)["width"]
    yield from page.evaluate("width => looking.tooWide(width)", width)
    yield from page.evaluate("looking.crowded()")
    in_light = OF_LAYOUT if phone else EVERY_RULE
    for scheme, rules in (("light", in_light), ("dark", OF_COLORS)):
        page.emulate_media(color_scheme=scheme)
        seen = [*_axe(page, rules), *page.evaluate("looking.faint()"), *page.evaluate("s => looking.theme(s)", scheme)]
        yield from (f"{scheme}: {problem}" for problem in seen)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, media="print")
        yield from (f"printed: {problem}" for problem in page.evaluate("looking.darkGrounds()"))


def _axe(page, rules):
    options = {**rules, "resultTypes": ["violations"]}
    violations = page.evaluate("async options => (await axe.run(options)).violations", options)
    return [
        f"axe {rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary'].splitlines()[1].strip()}"
        for rule in violations
        for node in rule["nodes"][:5]
    ]


def watch(page, file):
    """Return a list that fills with what a page says on its console and asks for, from before it is opened."""
    wrong, address = [], file.resolve().as_uri()

    def ask(url):
        if url.split("#")[0] != address and urlsplit(url).scheme not in ("data", "blob"):
            wrong.append(f"asks for {url}")

    def answer(dialog):
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def hear(line):
        wrong.extend([f"console {line.type}: {line.text}"] if line.type in ("error", "warning") else [])

    page.on("console", hear)
    page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    page.on("request", lambda request: ask(request.url))
    page.on("websocket", lambda socket: ask(socket.url))
    page.on("dialog", answer)
    page.context.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    return wrong


def _links(page, file):
    """Links that lead nowhere: to no file, to no place in it, or that are more than a link."""
    for link in page.evaluate("looking.links()"):
        parts = urlsplit(link["href"])
        if not link["href"]:
            yield f"an empty link: {link['text']!r}"
        elif parts.scheme in ("http", "https", "mailto"):
            continue
        elif parts.scheme:
            yield f"link {link['href']!r} is not a link to a page"
        elif not parts.path:
            if parts.fragment and not page.evaluate("id => !!document.getElementById(id)", unquote(parts.fragment)):
                yield f"link {link['href']!r} leads to no place on the page"
        elif not (file.resolve().parent / unquote(parts.path)).exists():
            yield f"link {link['href']!r} leads to no file"


def _keyboard(page):
    """Controls that the Tab key does not reach, in their order, or on which nothing shows that they are reached."""
    for control in page.evaluate("most => looking.controls(most)", TABS):
        page.keyboard.press("Tab")
        reached = page.evaluate("looking.reached()")
        if reached["name"] != control:
            yield f"the Tab key leads to {reached['name']}, not to {control}"
            break
        if not reached["shown"]:
            yield f"nothing shows the focus on {control}"


def _plot(page, plot):
    """A plot without names of its axes, or whose values neither pointer nor arrow keys show."""
    name = plot.get_attribute("aria-label") or "a plot"
    if plot.locator("text.title").count() < 2:
        yield f"{name}: an axis has no name"
    values = plot.locator("[data-tip]").evaluate_all("points => points.map(point => point.dataset.tip)")
    if not values:
        yield f"{name}: it shows no value"
        return
    plot.scroll_into_view_if_needed()
    tip, box = plot.locator("xpath=..").locator(".tip"), plot.locator("[data-tip]").nth(len(values) // 2).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    yield from _tip(name, "the pointer", tip, values)
    page.mouse.move(0, 0)
    plot.focus()
    page.keyboard.press("ArrowRight")
    yield from _tip(name, "an arrow key", tip, values[:1])
    page.keyboard.press("Escape")
    if tip.is_visible():
        yield f"{name}: Escape leaves the value there"


def _tip(name, what, tip, values):
    shown = tip.text_content() if tip.count() and tip.is_visible() else None
    if shown not in values:
        yield f"{name}: {what} shows {shown!r}"
    elif not re.search(r"\d", shown) or not re.search(r"[a-z%]", shown):
        yield f"{name}: {shown!r} is not a value with its unit"
