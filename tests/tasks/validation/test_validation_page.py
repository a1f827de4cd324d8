"""The page of a verdict: everything a person needs in one file, and nothing from elsewhere."""

import copy
import re

import pytest

from tasks.validation.validate import render_page
from tests.tasks.hostile import Page, without_own_script
from tests.tasks.validation.verdicts import VERDICT

EVIL = "<script>alert('x')</script>\"&"


def attributes(page: Page, wanted: str) -> list[str]:
    names = [name for _, names in page.elements for name in names]
    return [value for name, value in zip(names, page.values, strict=True) if name == wanted]


def failed_verdict():
    verdict = copy.deepcopy(VERDICT)
    verdict["valid"] = False
    verdict["checks"][0].update(ok=False, found=EVIL, examples=[EVIL], advice="check corpus.path", failed=2)
    verdict["not_checked"] = ["ids_unique"]
    return verdict


@pytest.mark.parametrize("verdict", [VERDICT, failed_verdict()], ids=["valid", "not valid"])
def test_the_page_is_whole_and_loads_nothing(verdict):
    html = without_own_script(render_page(verdict))
    page = Page(html)
    tags = [tag for tag, _ in page.elements if tag not in ("meta", "br")]
    assert not {*tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    opened: list[str] = []
    for tag in tags:
        if tag.startswith("/"):
            assert f"/{opened.pop()}" == tag
        else:
            opened.append(tag)
    assert opened == []
    assert all(re.fullmatch(r"margin-left:[\d.]+%;width:[\d.]+%", style) for style in attributes(page, "style"))
    assert (attributes(page, "href"), attributes(page, "src")) == (["#content"], [])
    assert not re.search(r"url\(|@import|https?://(?!www.w3.org/2000/svg)", html)


def test_bars_are_as_long_as_their_share_and_say_their_range():
    page = Page(render_page(VERDICT))
    widths = [style.partition("width:")[2] for style in attributes(page, "style")]
    assert widths[:2] == ["0.30%", "100.00%"]
    assert page.text.index("10 to 19") < page.text.index("20 and more") < page.text.index("1,000")
    assert "Bins widen downwards" in page.text
