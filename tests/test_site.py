"""`make docs`: the site is built from the documents without a connection, whole, and loads nothing from outside."""

import os
import re
import subprocess
import sys

import pytest

from tests.places import ROOT

LOADS = re.compile(
    r'<(?:script|img|iframe|source|object)\b[^>]*?\s(?:src|data)="([^"]*)"'
    r'|<link\b(?![^>]*rel="(?:next|prev|index|search|canonical)")[^>]*?\shref="([^"]*)"'
)
"""What a browser fetches."""
NO_NETWORK = """
import socket, sys
def refuse(*words, **more): raise OSError("the documents are built without a connection")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-b", "html", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    return folder, done


@pytest.mark.soak
def test_the_site_is_built_without_a_warning(site):
    folder, done = site
    assert (done.returncode, done.stderr) == (0, "")
    made = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.html")}
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert made >= documents | {"made/commands", "made/parameters", "search"}


def test_no_page_loads_anything_from_outside(site):
    folder, _ = site
    html = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.html"))
    loaded = ["".join(groups) for groups in LOADS.findall(html)]
    assert len(loaded) > 100
    assert [address for address in loaded if re.match(r"(?:\w+:)?//", address)] == []
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_each_page_begins_with_its_question_which_the_first_page_lists():
    first, *others = [ROOT / "docs/index.md", *sorted((ROOT / "docs").glob("*.md"))]
    listed = first.read_text(encoding="utf-8")
    for path in others:
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        assert re.fullmatch(r"# [A-Z].*\?", title), path.name
        assert path == first or re.search(
            rf"^\| {re.escape(title[2:])} \| \[.*\]\({path.name}\) \|$", listed, re.MULTILINE
        )
