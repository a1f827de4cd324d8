"""Checkpoint syncing: fetch a job's checkpoint from `checkpoint.remote` before training, and upload new ones during it.

    python -m tasks.host.checkpoint_sync fetch|push|remove URL FOLDER

A run can so resume where another host stopped. Child processes run this module as a program and copy one checkpoint at
a time from hard links, so that the job may remove a checkpoint during its upload: a remote that hangs or an error of
its library must neither slow down nor end a training. An unavailable remote is reported once, every later checkpoint
is tried again, and at the end a missing one is reported.

A checkpoint at the remote, a shared folder or a bucket, is complete or does not count, whichever process dies:

    URL/step-00001000/   the files of the checkpoint, and finally sha256.json, which makes the checkpoint complete
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec

from ipu_model.files import link_or_copy, new_folder, parse_json, sha256_of, write_json
from tasks.plan.main import run_main
from tasks.stage.errors import DeviceJobFailed, InputError, ParamsError, StagePaused
from tasks.stage.process import Say, describe_exit, die_with_parent, print_line, python_path

HASHES = "sha256.json"
"""File with the SHA-256 of a checkpoint's other files, by name."""
NAME = re.compile(r"step-(\d+)")
FILE = re.compile(r"[a-z][a-z0-9_]*\.(safetensors|json)")
"""Name of a checkpoint's file; a manifest from outside must not name other paths."""
KEPT = 2
"""Number of checkpoints to keep: the newest, and the previous one in case the newest is damaged."""
COPY_SECONDS = 1800.0
"""Timeout of a copy, after which a remote counts as unavailable."""
REMOVE_SECONDS = 60.0
AFTER_FAILURE_SECONDS = 60.0
"""Time that a failed job waits for the upload of its last checkpoint."""
AFTER_SIGTERM_SECONDS = 10.0
"""The same after SIGTERM, when the host is about to kill the process."""
LOG = "checkpoint-remote.log"


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
        step, manifest = step_of(folder), (folder / HASHES).read_bytes()
        path = self._path(step, HASHES)
        if not self._files.exists(path) or bytes(self._files.cat_file(path)) != manifest:
            self._remove(step)  # incomplete, or of another run
            self._files.makedirs(self._path(step), exist_ok=True)
            for name in parse_json(manifest.decode()):
                self._files.put_file(str(folder / name), self._path(step, name))
                found, sent = self._files.info(self._path(step, name))["size"], (folder / name).stat().st_size
                if found != sent:
                    raise InputError(f"{self._path(step, name)} has {found} bytes, but {sent} were sent")
            self._files.pipe_file(path, manifest)
        for old in set(self._folders()) - set(self.steps()[:KEPT]):
            self._remove(old)

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
    found = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name)]
    for path in sorted(found, key=step_of, reverse=True):
        with contextlib.suppress(OSError, InputError):  # a damaged one
            hashes = _read_hashes((path / HASHES).read_bytes(), str(path / HASHES))
            if all(sha256_of(path / name) == digest for name, digest in hashes.items()):
                return step_of(path)
    return 0


def _read_hashes(text: bytes, where: str) -> dict[str, str]:
    try:
        hashes: Any = parse_json(text.decode())
    except ValueError:
        hashes = None
    if not isinstance(hashes, dict) or not all(FILE.fullmatch(str(name)) for name in hashes) or not hashes:
        raise InputError(f"{where} is damaged")
    return {str(name): str(digest) for name, digest in hashes.items()}


@contextlib.contextmanager
def sync_checkpoints(
    folder: Path, remote: str | None, key: str, root: Path = Path(), say: Say = print_line
) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Sync checkpoints around a training job: fetch the newest one, then upload each new one; yield the event handler.

    Args:
        folder: run folder of the job.
        remote: `checkpoint.remote`; None: no syncing.
        key: path of the run at the remote, equal on all hosts and unique per run.
        root: base of a relative remote folder.
        say: receives messages for users.

    Raises:
        ParamsError: no installed library supports the remote's protocol.
    """
    if remote is None:
        yield None
        return
    uploader = _Uploader(folder, f"{address_of(remote, root)}/{key}", say)
    uploader.fetch()
    try:
        yield uploader.on_event
    except StagePaused as paused:
        uploader.finish(AFTER_SIGTERM_SECONDS if paused.in_a_hurry else COPY_SECONDS)
        raise
    except DeviceJobFailed:
        uploader.finish(AFTER_FAILURE_SECONDS)
        raise
    else:
        uploader.remove_all()
    finally:
        uploader.close()


def address_of(remote: str, root: Path) -> str:
    """Return the address of `checkpoint.remote` for its library.

    Raises:
        ParamsError: no installed library supports its protocol.
    """
    if "://" not in remote:
        return str((root / remote).absolute())
    protocol = remote.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise ParamsError(f"checkpoint.remote={remote!r} cannot be used: {error}") from None
    return remote.rstrip("/")


class _Uploader:
    """Uploads checkpoints of one run to one remote, the newest first, one at a time."""

    def __init__(self, folder: Path, url: str, say: Say) -> None:
        self._folder, self._url, self._say = folder, url, say
        self._staging = folder / "travelling"
        self._newest: Path | None = None
        self._under_way: tuple[subprocess.Popen[str], int, float] | None = None
        """Upload process, update of its checkpoint, and deadline."""
        self._arrived = 0
        """Update of the newest uploaded checkpoint."""
        self._failed = 0
        """Update of the last failed upload, which is not retried; the next checkpoint is tried."""
        self._in_trouble = False
        shutil.rmtree(self._staging, ignore_errors=True)  # left by a killed job

    def fetch(self) -> None:
        """Fetch the newest remote checkpoint if it is newer than that of the run folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        said, failure = self._run("fetch", COPY_SECONDS)
        for line in said:
            self._say(f"{self._url}: {line}")
        if failure:
            self._complain(f"nothing was fetched, continuing with the local checkpoints; {failure}")

    def on_event(self, event: dict[str, Any]) -> None:
        """Check the running upload; start the next one when a checkpoint was saved."""
        if event["event"] == "saved" and NAME.fullmatch(Path(event["path"]).name):
            self._newest = Path(event["path"])
        self._look_after()

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for the upload of the newest checkpoint."""
        until = time.monotonic() + seconds
        self._failed = 0
        for _ in range(2):  # the running upload may be of an older checkpoint, or have been stopped with the job
            self._look_after()
            if self._under_way is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._under_way[0].wait(timeout=max(0.0, until - time.monotonic()))
        self._collect()
        if not self._has_arrived() and self._newest is not None:
            held = f"its newest is after update {self._arrived}" if self._arrived else "this job uploaded none"
            self._say(
                f"checkpoint.remote {self._url} lacks the checkpoint after update {step_of(self._newest)}; {held}. "
                "Another host can resume only from there"
            )

    def remove_all(self) -> None:
        """Remove the run's checkpoints from the remote, after its model is on disk."""
        self.close()
        _, failure = self._run("remove", REMOVE_SECONDS)
        if failure:
            self._say(f"checkpoints of this run remain in {self._url}: {failure}")

    def close(self) -> None:
        """Stop the running upload."""
        if self._under_way is not None:
            self._under_way[0].kill()
            self._under_way[0].wait()
            self._under_way = None
        shutil.rmtree(self._staging, ignore_errors=True)

    def _has_arrived(self) -> bool:
        return self._newest is None or self._arrived >= step_of(self._newest)

    def _look_after(self) -> None:
        self._collect()
        if self._under_way is not None or self._newest is None or self._has_arrived():
            return
        if step_of(self._newest) != self._failed and (packed := self._pack(self._newest)) is not None:
            self._under_way = (self._start("push", packed), step_of(packed), time.monotonic() + COPY_SECONDS)

    def _collect(self) -> None:
        if self._under_way is None:
            return
        process, step, too_late = self._under_way
        if process.poll() is None and time.monotonic() > too_late:
            process.kill()
            process.wait()
        if process.poll() is None:
            return
        self._under_way = None
        if process.returncode == 0:
            self._arrived = max(self._arrived, step)
            self._in_trouble = False
        else:
            self._failed = step
            self._complain(f"the checkpoint after update {step} was not uploaded; {self._reason(process)}")

    def _pack(self, checkpoint: Path) -> Path | None:
        """Hard-link the files, so that they stay during the upload; None if the job has removed them already."""
        shutil.rmtree(self._staging, ignore_errors=True)
        packed = self._staging / checkpoint.name
        try:
            shutil.copytree(checkpoint, packed, copy_function=link_or_copy)
        except OSError:
            return None
        return packed if (packed / HASHES).is_file() else None

    def _run(self, verb: str, seconds: float) -> tuple[list[str], str | None]:
        """Run the program with a timeout; return its output, and the reason if it failed."""
        process = self._start(verb, self._folder, stdout=subprocess.PIPE)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        return said.splitlines(), self._reason(process) if process.returncode else None

    def _start(self, verb: str, folder: Path, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
        environment.pop("DVC_STAGE", None)  # it is not a stage itself
        with (self._folder / LOG).open("w", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tasks.host.checkpoint_sync", verb, self._url, str(folder)],
                stdout=stdout,
                stderr=log,
                text=True,
                env=environment,
                preexec_fn=die_with_parent,
            )

    def _reason(self, process: subprocess.Popen[str]) -> str:
        """Return the last line that the process logged: our error, or the end of a library's traceback."""
        lines = (self._folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix("error: ") if said else describe_exit(process.returncode)

    def _complain(self, text: str) -> None:
        if not self._in_trouble:
            self._say(f"checkpoint.remote {self._url}: {text}")
        self._in_trouble = True


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
        if (step := Remote(url).fetch(folder, print_line)) is not None:
            print_line(f"fetched the checkpoint after update {step}")
    elif arguments.verb == "push":
        Remote(url).push(folder)
    else:
        Remote(url).remove_all()


if __name__ == "__main__":
    run_main(main)
