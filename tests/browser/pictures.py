"""`python -m tests.browser.pictures PROJECT [FOLDER]`: the pictures of the README, of the pages of a project that ran.

PROJECT is a checkout in which `podium run` came to its end, better with some runs next to that one; the picture of the
plan is of a recipe for IPUs.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.browser import chromium
from tests.places import ROOT

PRESET = "ipu-base-pod16-examples"
HEIGHTS = {"run-page": 1000, "index": 940, "evaluation": 940, "plan": 940}
"""Picture -> how much of the page it shows from its top, in pixels."""
LARGEST = 200_000
"""Bytes of a picture."""


def take(browser, page, picture):
    """A picture of the upper part of a page, in light colours."""
    with chromium.window(browser) as window:
        window.set_viewport_size({"width": 1400, "height": HEIGHTS[picture.stem]})
        chromium.opened(window, page).screenshot(path=picture)
    assert picture.stat().st_size < LARGEST, f"{picture} has {picture.stat().st_size:,} bytes"
    print(f"{picture}: {picture.stat().st_size:,} bytes")


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("project", type=Path)
    words.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs/pictures")
    given = words.parse_args()
    reports, [evaluation, *_] = given.project / "reports", sorted(given.project.glob("evaluation/*/report.html"))
    with tempfile.TemporaryDirectory() as kept, chromium.started() as browser:
        plan = Path(kept, "plan.html")
        command = [sys.executable, "-m", "flows", "plan", "--preset", PRESET, "--page", str(plan)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        pages = {"run-page": reports / "run.html", "index": reports / "index.html", "evaluation": evaluation}
        given.folder.mkdir(parents=True, exist_ok=True)
        for name, page in {**pages, "plan": plan}.items():
            take(browser, page, given.folder / f"{name}.png")


if __name__ == "__main__":
    main()
