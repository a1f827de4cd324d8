"""Checkpoints in a shared folder or a bucket. A checkpoint there is complete or does not count, whichever process dies.

    python -m tasks.host.checkpoint_remote fetch|push|remove URL FOLDER

tasks/host/checkpoint_travel.py starts it as a separate process, because a remote that hangs or an error of its library
must neither slow down nor end a training. Standard output is for users.

    URL/step-00001000/   the files of the checkpoint, and finally sha256.json, which makes the checkpoint complete
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from ipu_model.files import new_folder, parse_json, sha256_of, write_json
from tasks.plan.main import run_main
from tasks.stage.errors import InputError

HASHES = "sha256.json"
"""File with the SHA-256 of a checkpoint's other files, by name."""
NAME = re.compile(r"step-(\d+)")
FILE = re.compile(r"[a-z][a-z0-9_]*\.(safetensors|json)")
"""Name of a checkpoint's file; a manifest from outside must not name other paths."""
KEPT = 2
"""Number of checkpoints to keep: the newest, and the previous one in case the newest is damaged."""


class Remote:
    """Checkpoints of one run at a URL of any fsspec protocol; a plain path is a folder.

    Raises:
        Exception: any error of the protocol's library; these errors share no base class.
    """

    def __init__(self, url: str) -> None:
        self._files, self._root = fsspec.core.url_to_fs(url)

    def steps(self) -> list[int]:
        """Return the updates of all complete checkpoints, newest first."""
        return [step for step in self._folders() if self._files.exists(self._path(step, HASHES))]

    def push(self, folder: Path) -> None:
        """Copy one checkpoint, then remove all but the newest KEPT."""
        step = step_of(folder)
        manifest = (folder / HASHES).read_bytes()
        if not self._holds(step, manifest):
            self._remove(step)  # incomplete, or of another run
            self._files.makedirs(self._path(step), exist_ok=True)
            for name in parse_json(manifest.decode()):
                self._files.put_file(str(folder / name), self._path(step, name))
                found, sent = self._files.info(self._path(step, name))["size"], (folder / name).stat().st_size
                if found != sent:
                    raise InputError(f"{self._path(step, name)} has {found} bytes, but {sent} were sent")
            self._files.pipe_file(self._path(step, HASHES), manifest)
        for old in self.steps()[KEPT:]:
            self._remove(old)
        for half in set(self._folders()) - set(self.steps()):
            self._remove(half)

    def fetch(self, folder: Path, say: Callable[[str], None]) -> int | None:
        """Copy the newest complete checkpoint to the run folder unless that has one as new; return its update."""
        here = newest_whole(folder)
        for step in self.steps():
            if step <= here:
                return None
            try:
                self._get(step, folder / f"step-{step:08d}")
            except InputError as error:
                say(f"{error}; skipping it")
                continue
            return step
        return None

    def remove_all(self) -> None:
        """Remove all checkpoints of the run, after its model is on disk."""
        for step in self._folders():
            self._remove(step)
        if self._files.exists(self._root):
            self._files.rm(self._root, recursive=True)

    def _get(self, step: int, target: Path) -> None:
        hashes = _read_hashes(self._files.cat_file(self._path(step, HASHES)), self._path(step, HASHES))
        with new_folder(target) as partial:
            for name, digest in hashes.items():
                self._files.get_file(self._path(step, name), str(partial / name))
                if sha256_of(partial / name) != digest:
                    raise InputError(f"{self._path(step, name)} is damaged")
            write_json(partial / HASHES, hashes)

    def _folders(self) -> list[int]:
        """Return the updates of all checkpoint folders, complete or not, newest first."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        found = (NAME.fullmatch(str(path).rstrip("/").rsplit("/", 1)[-1]) for path in self._files.ls(self._root, False))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _holds(self, step: int, manifest: bytes) -> bool:
        path = self._path(step, HASHES)
        return bool(self._files.exists(path)) and bytes(self._files.cat_file(path)) == manifest

    def _remove(self, step: int) -> None:
        """Remove a checkpoint, its manifest first, so that a partly removed one is incomplete."""
        if self._files.exists(self._path(step, HASHES)):
            self._files.rm_file(self._path(step, HASHES))
        if self._files.exists(self._path(step)):
            self._files.rm(self._path(step), recursive=True)

    def _path(self, step: int, name: str = "") -> str:
        return f"{self._root}/step-{step:08d}" + (f"/{name}" if name else "")


def step_of(folder: Path) -> int:
    """Return the update of a checkpoint.

    Raises:
        InputError: its name is not that of a checkpoint.
    """
    match = NAME.fullmatch(folder.name)
    if match is None:
        raise InputError(f"{folder} is not a checkpoint, whose name is like step-00000100")
    return int(match[1])


def newest_whole(folder: Path) -> int:
    """Return the update of the newest intact checkpoint in a run folder; 0 if there is none."""
    found = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name)] if folder.is_dir() else []
    return next((step_of(path) for path in sorted(found, key=step_of, reverse=True) if _is_whole(path)), 0)


def _is_whole(path: Path) -> bool:
    try:
        hashes = _read_hashes((path / HASHES).read_bytes(), str(path / HASHES))
        return all(sha256_of(path / name) == digest for name, digest in hashes.items())
    except (OSError, InputError):
        return False


def _read_hashes(text: bytes, where: str) -> dict[str, str]:
    try:
        hashes: Any = parse_json(text.decode())
    except ValueError:
        hashes = None
    if not isinstance(hashes, dict) or not all(FILE.fullmatch(str(name)) for name in hashes) or not hashes:
        raise InputError(f"{where} is damaged")
    return {str(name): str(digest) for name, digest in hashes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy checkpoints to or from a remote; a training starts it.")
    parser.add_argument("verb", choices=("fetch", "push", "remove"))
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    url, folder = arguments.url, arguments.folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    os.nice(10)
    if arguments.verb == "fetch":
        step = Remote(url).fetch(folder, _say)
        if step is not None:
            _say(f"fetched the checkpoint after update {step}")
    elif arguments.verb == "push":
        Remote(url).push(folder)
    else:
        Remote(url).remove_all()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    run_main(main)
