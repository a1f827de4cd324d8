"""What a golden copy is compared with: text of which all that differs from host to host and run to run is masked."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.places import ROOT

COPIES = Path(__file__).parent / "copies"
WRITE = "PODIUM_WRITE_GOLDEN"
"""The environment variable that lets the tests write the copies instead of comparing them."""
Masks = Iterable[tuple[str, str]]
"""Regular expressions, each with what replaces what it matches."""

NUMBER = r"\d[\d,]*(?:\.\d+)?"
EVERYWHERE: Masks = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[+-]\d\d:?\d\d| UTC)?", "TIME"),
    (r"runs/logs/[\w-]+\.log", "runs/logs/LOG"),
)
SIZE = (rf"\b{NUMBER} (?:bytes|[kKMGT]B)\b", "SIZE")


def mask(text: str, places: Mapping[str, Path], more: Masks = ()) -> str:
    """Replace what differs between hosts and runs.

    Args:
        text: what a command printed, or the text of a page.
        places: folders that the text may name, each under the word that replaces it.
        more: masks that this text needs beyond those of every text; they come first.
    """
    words = {str(folder): name for name, folder in places.items()} | {sys.executable: "PYTHON", str(ROOT): "PODIUM"}
    for found in sorted(words, key=len, reverse=True):
        text = text.replace(found, words[found])
    for pattern, instead in (*more, *EVERYWHERE):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    for found, instead in ((socket.gethostname(), "HOST"), (getpass.getuser(), "USER")):
        text = re.sub(rf"(?<![\w./-]){re.escape(found)}(?![\w/-])", instead, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def require_same(name: str, text: str) -> None:
    """Compare a masked text with its golden copy, or write the copy where PODIUM_WRITE_GOLDEN=1.

    Raises:
        AssertionError: the two differ, or there is no copy.
    """
    path = COPIES / f"{name}.txt"
    if os.environ.get(WRITE) == "1":
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; write it: {WRITE}=1 pytest tests/golden"
    assert text == path.read_text(encoding="utf-8"), f"{path.name}: if on purpose, {WRITE}=1 pytest tests/golden"
