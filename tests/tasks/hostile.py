"""Thirteen texts that would be more than text where someone forgot to escape, and readers of what came out."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

from tasks.pages.render import page_script

HOSTILE = {
    "element": "<script>alert(1)</script><style>*{display:none}</style>",
    "end of an attribute": "\"><img src=x onerror=alert(1)> ' onmouseover='alert(2)",
    "entity": "&lt;b&gt; &#60;i&#62; <!-- <![CDATA[ </style></title>",
    "lines": "a\n\n# Heading\n\n<h1>b</h1>\r\n- item\n\n    code",
    "fences": "``` ` ```` ~~~\n```\nafter",
    "table": "a | b |\n|---|---|\n| c \\| d |",
    "links": "[a](javascript:alert(1)) ![b](http://example.invalid/c.png) <http://example.invalid> www.example.invalid",
    "formula": '=HYPERLINK("http://example.invalid";"a")',
    "command": "@SUM(1+1)*cmd|' /C calc'!A0",
    "front matter": "---\nlicense: other\ntags: [a, b]\n---\n",
    "template": "{{ 7*7 }} {name} %s $(id) ${HOME} `id` ; rm -rf ~ # \\",
    "formulas": r"\(x\) \\(\alpha\\) $$ y $$ $z$ \[w\] \begin{a}",
    "unseen": "\u202egpj.exe\u2066 \x1b[31m\x00\x07 \ud800 \u2028 \uffff",
}
"""What it tries -> the text."""


class Page(HTMLParser):
    """What a browser would build: elements with their attributes' names, in order; and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.values: list[str] = []
        html.encode("utf-8")  # halves of a character cannot be written
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", ()))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")

    def handle_data(self, data: str) -> None:
        self.text += data


def without_own_script(html: str) -> str:
    """A page without the one script that every page has, and that its policy names by a hash of it."""
    script = f"<script>{page_script()}</script>"
    digest = base64.b64encode(hashlib.sha256(page_script().encode()).digest()).decode()
    assert html.count(script) == 1
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    return html.replace(script, "")
