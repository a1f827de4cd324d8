"""Which DVC is at work on this host: what it has not finished is not to be judged, and its leftovers are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil


def at_work(root: Path) -> list[int]:
    """Process ids of every DVC whose current folder is `root`."""
    return [pid for pid, here in dvc_processes() if here is not None and here.samefile(root)]


def dvc_processes() -> Iterator[tuple[int, Path | None]]:
    """Process id and current folder of every DVC on this host; None: this user may not see the folder."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words, cwd = process.info["cmdline"] or [], process.info["cwd"]
        if "dvc" not in words and not any(word.endswith("/dvc") for word in words[:2]):
            continue
        here = None if cwd is None else Path(cwd)
        if here is None or here.exists():
            yield process.pid, here
