"""Compare texts with golden copies; what differs between hosts and runs is masked in both."""

import difflib
import os
import re
import sys
from pathlib import Path

from tests.places import ROOT
from tests.tasks.hostile import Page

COPIES = Path(__file__).parent / "copies"
WRITE = "PODIUM_WRITE_GOLDEN"

LONGEST = 300
NUMBER = r"\d[\d,]*(?:\.\d+)?"
EVERYWHERE = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[+-]\d\d(?::?\d\d)?| [A-Z]{3,5}\b)?", "TIME"),
    (r"runs/logs/[\w-]+\.log", "runs/logs/LOG"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r"(?i)(python) +\d+\.\d+\.\d+\w*", r"\1 VERSION"),
)
DURATION = (rf"\b{NUMBER} (?:ms|s|min|h)\b(?: \d+ (?:s|min)\b)?", "DURATION")
SIZE = (rf"\b{NUMBER} (?:bytes|[kKMGT]B)\b", "SIZE")


def mask(text, places, more=()):
    """Replace what differs between hosts and runs: folders by the words for them, then by patterns, `more` first."""
    words = {str(folder): name for name, folder in places.items()} | {sys.executable: "PYTHON", str(ROOT): "PODIUM"}
    for found in sorted(words, key=len, reverse=True):
        text = text.replace(found, words[found])
    for pattern, instead in (*more, *EVERYWHERE):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def text_of(html):
    """Return the words of a page, a line for each line of its source that has some; long lines are cut."""
    html = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    html = re.sub(r"</t[dh]>", " |", html).replace("<", " <")
    lines = (" ".join(line.split()) for line in Page(html).text.splitlines())
    return "\n".join(line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in lines if line)


def require_same(name, text):
    """Compare a masked text with its golden copy, or write the copy where PODIUM_WRITE_GOLDEN=1."""
    path = COPIES / f"{name}.txt"
    if os.environ.get(WRITE) == "1":
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    changes = "\n".join(difflib.unified_diff(kept, text.splitlines(), f"{path.name}, kept", "now", n=1, lineterm=""))
    assert not changes, f"if this change is on purpose, {WRITE}=1 pytest tests/golden, and commit the copies\n{changes}"
