"""The page of a verdict: everything a person needs in one file, and nothing from elsewhere."""

import copy
import re
from html.parser import HTMLParser

import pytest

from tasks.validation.validate import render_page
from tests.tasks.hostile import without_own_script
from tests.tasks.validation.verdicts import VERDICT

EVIL = "<script>alert('x')</script>\"&"


class Elements(HTMLParser):
    """Tags in order, their attributes, and whether every element is closed where it must be."""

    VOID = {"meta", "br"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def failed_verdict():
    verdict = copy.deepcopy(VERDICT)
    verdict["valid"] = False
    verdict["checks"][0].update(ok=False, found=EVIL, examples=[EVIL], advice="check corpus.path", failed=2)
    verdict["not_checked"] = ["ids_unique"]
    return verdict


@pytest.mark.parametrize("verdict", [VERDICT, failed_verdict()], ids=["valid", "not valid"])
def test_the_page_is_whole_and_loads_nothing(verdict):
    html = without_own_script(render_page(verdict))
    elements = Elements(html)
    tags = {tag for tag, _ in elements.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not [attributes for _, attributes in elements.seen if "src" in attributes]
    styles = [attributes["style"] for _, attributes in elements.seen if "style" in attributes]
    assert all(re.fullmatch(r"margin-left:[\d.]+%;width:[\d.]+%", style) for style in styles)
    assert [attributes["href"] for _, attributes in elements.seen if "href" in attributes] == ["#content"]
    assert not re.search(r"url\(|@import|https?://(?!www.w3.org/2000/svg)", html)


def test_bars_are_as_long_as_their_share_and_say_their_range():
    elements = Elements(render_page(VERDICT))
    widths = [attributes["style"].partition("width:")[2] for _, attributes in elements.seen if "style" in attributes]
    assert widths[:2] == ["0.30%", "100.00%"]
    assert elements.text.index("10 to 19") < elements.text.index("20 and more") < elements.text.index("1,000")
    assert "Bins widen downwards" in elements.text
