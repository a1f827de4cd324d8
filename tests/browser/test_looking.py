"""What looks at pages finds what is wrong with them: each defect planted by itself in a page that has none."""

import pytest

from tests.browser.looking import problems

GOOD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; } body { background: #fff; color: #111; }
@media screen and (prefers-color-scheme: dark) { body { background: #111; color: #eee; } a { color: #8bf; } }
</style></head>
<body><main><h1>A page</h1><p><a href="#there">to there</a> <a href="https://example.org/">elsewhere</a></p>
<p id="there">Here.</p></main></body></html>
"""


DEFECTS = {
    "nothing": [],
    "what is asked for": [
        ("</main>", "<script>console.error('oh')</script></main>", "console error: oh"),
        ("</main>", "<script>nothing.there()</script></main>", "script: nothing is not defined"),
        ("</main>", "<script>fetch('https://example.org/x').catch(() => {})</script></main>", "asks for https://example"),
        ("</main>", "<img src='other.png' alt=''></main>", "asks for file://"),
        ("</main>", "<script>alert('here')</script></main>", "dialog: here"),
        ("</style>", "p { background: url(https://example.org/x.png) }</style>", "a style takes https://example.org/x"),
        ("Here.", f"<!--{'x' * 1_000_000}-->", "it has 1,000,"),
    ],
    "what is seen": [
        ("</main>", "<p style='width:600px'>wide</p></main>", "phone: it is 6"),
        ("Here.", "<span style='color:#999'>faint</span>", "axe color-contrast: span"),
        ("#8bf", "#338", "dark: axe color-contrast: "),
        ("Here.", "<svg width='90' height='20'><text y='15' fill='#999'>axis</text></svg>", '"axis" in a picture'),
        ("@media screen and", "@media", "printed: <body> has a dark ground"),
        ("</main>", "<svg class='plot' tabindex='0' aria-label='loss'></svg></main>", "loss: an axis has no name"),
        ("</main>", "<svg class='plot' tabindex='0'><text y='9' data-tip='2'>xx</text></svg></main>", "a plot: the p"),
        ("</main>", "<svg aria-label='b'><text y='9'>aa</text><text y='9'>b</text></svg></main>", 'b: "aa" and'),
        ("</main>", "<svg aria-label='c'><text x='-9' y='9'>cut</text></svg></main>", 'c: "cut" is cut off'),
    ],
    "how it is built": [
        ("</main>", "<button></button></main>", "axe button-name: button"),
        ("#there", "#nowhere", "leads to no place"),
        ("</main>", "<a href='gone.html'>gone</a></main>", "leads to no file"),
        ("</main>", "<a href='javascript:alert(1)'>run</a></main>", "is not a link to a page"),
        ("<h1>A page</h1>", "", "it has 0 h1"),
        (' lang="en"', "", "it states no language"),
        ("<title>A page</title>", "", "it has no title"),
        ("</style>", "a:focus { outline: none }</style>", "nothing shows the focus on <a> to there"),
        ("Here.", "<b data-planted>x</b>", "text became <b>"),
        ("Here.", "<b onclick='1'>x</b>", "<b> has onclick"),
        ("<p id", "<p id='there'>twice</p><p id", "two elements are called there"),
    ],
    "another order": [
        ("</main>", "<button tabindex='3'>x</button></main>", "the Tab key leads to <button> x"),
        ("@media screen", "@media print", "dark: the ground does not follow"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("group", DEFECTS)
def test_every_defect_is_named(browser, tmp_path, group):
    html = GOOD
    for before, after, _ in DEFECTS[group]:
        assert before in html
        html = html.replace(before, after + before if before == "Here." else after, 1)
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    named = problems(browser, file)
    assert [words for _, _, words in DEFECTS[group] if not any(words in problem for problem in named)] == [], named
    assert group != "nothing" or named == []
