"""Links between pages, and the links at the head of a page: its run, all runs, its document."""

import os
from pathlib import Path
from urllib.parse import quote

from tasks.stage import artifacts

DOCS = Path("docs")


def relative_link(path: Path, folder: Path) -> str:
    """Return a path as a link from a page in `folder`; no part of it can be mistaken for a URL scheme."""
    words = quote(os.path.relpath(path, folder))
    return words if "/" in words else f"./{words}"


def make_head_links(folder: Path, project: Path, document: str, run: Path | None = None) -> list[tuple[str, str]]:
    """Return names and addresses of the links at the head of a page in `folder`, to files that exist.

    `document` in docs/ explains the page; `run` is the folder of its run, if it has one.
    """
    places = {"All runs": project / artifacts.INDEX_PAGE, "Docs": project / DOCS / document}
    if run is not None:
        places = {"Run": run / artifacts.RUN_PAGE, **places}
    return [(name, relative_link(path, folder)) for name, path in places.items() if path.is_file()]
