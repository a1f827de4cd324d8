"""Copies of a training's checkpoints at `checkpoint.remote`, from which another host resumes it.

Threads copy, from hard links, as the training may remove a checkpoint meanwhile: a remote that hangs or fails neither
delays nor ends it. A checkpoint that was fetched counts only with the very files that its manifest lists.
"""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ipu_model.core.files import link_or_copy, new_folder, parse_json, sha256_of
from tasks.stage.background import Background, format_error
from tasks.stage.errors import DeviceJobFailed, InputError, ParamsError, StagePaused
from tasks.stage.process import print_line

HASHES, LINKS, NAME = "sha256.json", "travelling", re.compile(r"step-\d{8}")
KEPT = 2
"""Checkpoints to keep: the newest, and the one before in case the newest is damaged."""
COPY_SECONDS, REMOVE_SECONDS = 1800.0, 60.0
AFTER_FAILURE_SECONDS, AFTER_SIGTERM_SECONDS = 60.0, 10.0
"""Time limits of the last copy; after SIGTERM, the host is about to kill the process."""
OnEvent = Callable[[Mapping[str, Any]], None]


class Remote:
    """Checkpoints of one run at a URL of any fsspec protocol, whose errors share no base class."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url, skip_instance_cache=True)

    def names(self) -> list[str]:
        """Return the names of all checkpoints, whole or not, newest first."""
        self._files.invalidate_cache()
        paths = self._files.ls(self._root, False) if self._files.exists(self._root) else []
        return sorted(filter(NAME.fullmatch, {PurePosixPath(path).name for path in paths}), reverse=True)

    def push(self, folder: Path) -> None:
        """Copy a checkpoint, then remove all but the newest KEPT."""
        self._files.put(f"{folder}/", f"{self._root}/{folder.name}/", recursive=True)
        for name in self.names()[KEPT:]:
            self._files.rm(f"{self._root}/{name}", recursive=True)

    def fetch(self, folder: Path) -> None:
        """Copy the newest whole checkpoint to a run folder unless that has one as new."""
        newest = max((path.name for path in folder.glob("step-*") if is_whole(path)), default="")
        for name in (name for name in self.names() if name > newest):
            with contextlib.suppress(InputError), new_folder(folder / name) as partial:
                for path in self._files.find(f"{self._root}/{name}"):
                    self._files.get_file(path, str(partial / PurePosixPath(path).name))
                print_line(f"{self._root}/{name}: fetched{'' if is_whole(partial) else ', damaged'}")
                if is_whole(partial):
                    return
                raise InputError(name)

    def remove(self) -> None:
        """Remove all checkpoints."""
        if self._files.exists(self._root):
            self._files.rm(self._root, recursive=True)


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint has exactly the files of its manifest, with their content."""
    with contextlib.suppress(OSError, ValueError):
        hashes = {path.name: sha256_of(path) for path in folder.iterdir() if path.name != HASHES}
        return bool(hashes) and hashes == parse_json((folder / HASHES).read_text(encoding="utf-8"))
    return False


def address_of(remote: str, root: Path) -> str:
    """Return the address of `checkpoint.remote`, which is relative to `root`, or refuse a protocol without library."""
    import fsspec

    if "://" not in remote:
        return str((root / remote).absolute())
    try:
        fsspec.get_filesystem_class(remote.partition("://")[0])
    except (ImportError, ValueError) as error:
        raise ParamsError(f"checkpoint.remote={remote!r} cannot be used: {error}") from None
    return remote.rstrip("/")


class Copies:
    """Copies of one run's checkpoints, one at a time; a failure is reported once, until a copy succeeds."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url, self._newest, self._arrived, self._is_lost = folder, url, "", "", False
        self._copy: Background | None = None

    def start(self, work: Callable[[Remote], object], failure: str) -> Background:
        """Begin work at the remote."""
        return Background(
            lambda: work(Remote(self._url)), lambda error: self.complain(f"{failure}; {format_error(error)}")
        )

    def complain(self, text: str) -> None:
        """Report a failure."""
        if not self._is_lost:
            print_line(f"checkpoint.remote {self._url}: {text}")
        self._is_lost = True

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Copy a checkpoint that was saved, unless an older one is being copied."""
        if event["event"] == "saved" and NAME.fullmatch(Path(event["path"]).name):
            self._newest = Path(event["path"]).name
            if self._copy is None or self._copy.ends(0.0):
                self._start_copy()

    def finish(self, seconds: float) -> None:
        """Wait for the copy of the newest checkpoint, and report if it is missing."""
        until = time.monotonic() + seconds
        if self._copy is not None and self._copy.ends(seconds) and self._newest != self._arrived:
            self._start_copy()
            self._copy.ends(until - time.monotonic())
        if self._newest != self._arrived:
            self._is_lost = False
            self.complain(f"{self._newest} is missing; another host continues from {self._arrived or 'the start'}")

    def _start_copy(self) -> None:
        links = self._folder / LINKS / self._newest
        shutil.rmtree(links.parent, ignore_errors=True)
        shutil.copytree(self._folder / self._newest, links, copy_function=link_or_copy)
        self._copy = self.start(lambda remote: self._push(remote, links), f"{links.name} was not copied")

    def _push(self, remote: Remote, links: Path) -> None:
        remote.push(links)
        self._arrived, self._is_lost = links.name, False


@contextlib.contextmanager
def sync_checkpoints(folder: Path, remote: str | None, key: str, root: Path = Path()) -> Iterator[OnEvent]:
    """Fetch the newest checkpoint before a training, and yield a function of its events that copies what they saved.

    `key` is the folder of the run at the remote.
    """
    if remote is None:
        yield lambda event: None
        return
    copies = Copies(folder, f"{address_of(remote, root)}/{key}")
    if not copies.start(lambda source: source.fetch(folder), "nothing was fetched").ends(COPY_SECONDS):
        copies.complain(f"nothing was fetched within {COPY_SECONDS:.0f} s")
    try:
        yield copies.on_event
        copies.start(Remote.remove, "checkpoints of this run remain there").ends(REMOVE_SECONDS)
    except StagePaused as paused:
        copies.finish(AFTER_SIGTERM_SECONDS if paused.in_a_hurry else COPY_SECONDS)
        raise
    except DeviceJobFailed:
        copies.finish(AFTER_FAILURE_SECONDS)
        raise
    finally:
        shutil.rmtree(folder / LINKS, ignore_errors=True)
