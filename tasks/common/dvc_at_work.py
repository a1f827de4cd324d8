"""Which DVC is at work on this host: what it has not finished is not to be judged, and its leftovers are its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def at_work(root: Path) -> list[int]:
    """Process ids of every DVC whose current folder is `root`."""
    return [process for process, here in dvc_processes() if here is not None and here.samefile(root)]


def dvc_processes() -> Iterator[tuple[int, Path | None]]:
    """Process id and current folder (None: not ours to see) of every DVC on this host (Linux; elsewhere none)."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"dvc" not in words and not any(word.endswith(b"/dvc") for word in words[:2]):
                continue
            here: Path | None = (process / "cwd").resolve(strict=True)
        except PermissionError:
            here = None
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        yield int(process.name), here
