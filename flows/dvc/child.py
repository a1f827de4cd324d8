"""The process that imports DVC. It answers the requests that come on its standard input, one JSON object a line.

flows/dvc/session.py starts this file by its path, in a checkout:

    python -P child.py dvc MARK [--wait-for-lock]

Replies are lines of standard output that have MARK before a kind and its content, as JSON: `say` holds a line for
people; `lock` holds the name and hash of a stage that is about to run, and is answered on standard input; `answer` ends
a request, and so does `failed`. All else that is printed is the stages' own. It ends where its input does.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dvc.stage.run
from dvc.dependency.param import BadParamFileError, ParamsDependency
from dvc.exceptions import DvcException
from dvc.fs import HTTPFileSystem, generic
from dvc.logger import ColorFormatter
from dvc.repo import Repo
from dvc.repo.reproduce import _reproduce_stage
from dvc.stage.cache import RunCacheNotFoundError, RunCacheNotSupported, StageCache, _can_hash, _get_stage_hash
from dvc.stage.decorators import unlocked_repo
from dvc.stage.exceptions import StageCmdFailedError

LOGGERS = ("dvc", "dvc_data", "dvc_objects")
"""DVC gives these handlers that write to standard output and error."""

MARKER = "podium-store"
"""A file in each remote, by which a cache knows it again: a folder that was moved away, or is not mounted, lacks it."""

Say = Callable[[str], None]


class CommandFailed(StageCmdFailedError):
    """DVC's error of a command, which keeps the exit code in its text alone."""

    def __init__(self, command: str, status: int | None = None) -> None:
        super().__init__(command, status)
        self.status = status


dvc.stage.run.StageCmdFailedError = CommandFailed


class StoreAway(DvcException):
    """The default remote is not the one that was there before."""


class RunCache(StageCache):
    """DVC's run-cache, which notes what becomes of each stage that changed: it is restored, or else it runs.

    Equal stages never run at the same time on one cache: the second waits for the first, and is restored.
    """

    def __init__(self, repo: Checkout) -> None:
        super().__init__(repo)
        self.keys: list[str] = []
        """Hashes of the stages whose entries `push` and `pull` copy."""

    def transfer(self, from_odb: Any, to_odb: Any, force: bool = True) -> list[tuple[str, str]]:
        """Copy the entries of some stages; a team's store has thousands, and DVC would copy them all each time."""
        if isinstance(from_odb.fs, HTTPFileSystem) or isinstance(to_odb.fs, HTTPFileSystem):
            raise RunCacheNotSupported("HTTP has no run-cache")
        copied = []
        for key in self.keys:
            place = ("runs", key[:2], key)
            folder = from_odb.fs.join(from_odb.path, *place)
            for source in from_odb.fs.find(folder) if from_odb.fs.exists(folder) else ():
                name = from_odb.fs.name(source)
                generic.copy(from_odb.fs, source, to_odb.fs, to_odb.fs.join(to_odb.path, *place, name))
                copied.append((key, name))
        return copied

    def restore(self, stage: Any, run_cache: bool = True, pull: bool = False, dry: bool = False) -> None:
        """Restore the outputs of a stage, or raise RunCacheNotFoundError."""
        looks = [lambda _: True, *([self._fetch] if pull else []), self._wait_here, self._wait_elsewhere]
        for look in looks if _can_hash(stage) else looks[:1]:
            if look(stage):
                with contextlib.suppress(RunCacheNotFoundError):
                    super().restore(stage, run_cache, pull, dry)
                    self.repo.verdicts[stage.addressing] = "restored"
                    return
        if pull:  # the remote may have gone away since, and then what it has is not to be made again
            try:
                self.repo.require_store()
            except OSError as error:
                raise StoreAway(str(error)) from error
        self.repo.verdicts[stage.addressing] = "ran"
        self.repo.say(f"Running stage '{stage.addressing}':")
        raise RunCacheNotFoundError(stage)

    def _fetch(self, stage: Any) -> bool:
        """Take what the remote knows of a stage; whether it knows anything."""
        self.keys = [_get_stage_hash(stage)]
        with contextlib.suppress(RunCacheNotSupported):
            return bool(self.pull(None))
        return False

    def _wait_here(self, stage: Any) -> bool:
        """Lock the command, parameters and inputs of a stage until its update ends; whether this host ran them."""
        folder = os.path.join(self.cache_dir, os.pardir, "podium-locks")
        os.makedirs(folder, exist_ok=True)
        file = os.open(os.path.join(folder, _get_stage_hash(stage)), os.O_WRONLY | os.O_CREAT)
        self.repo.held.callback(os.close, file)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        self.repo.say(f"stage {stage.addressing}: an equal stage is running on this host; waiting for it")
        unlocked_repo(lambda _: fcntl.flock(file, fcntl.LOCK_EX))(stage)
        return True

    def _wait_elsewhere(self, stage: Any) -> bool:
        """Lock the same on all hosts, and take what the remote has; whether another host ran them."""
        waited = unlocked_repo(lambda _: self.repo.lock_elsewhere(stage.addressing, _get_stage_hash(stage)))(stage)
        return bool(waited) and self._fetch(stage)


class Checkout(Repo):
    """DVC's view of a checkout, which knows what became of the stages of the last update."""

    def __init__(self, say: Say, wait_for_lock: bool, lock_elsewhere: Callable[[str, str], bool]) -> None:
        """Read the configuration.

        Args:
            say: takes lines for people.
            wait_for_lock: while another DVC does the bookkeeping of a stage; else it fails after a few seconds.
            lock_elsewhere: waits until no other host runs a stage of this name and hash; whether one did.
        """
        super().__init__(_wait_for_lock=wait_for_lock)
        self.say, self.lock_elsewhere, self.stage_cache = say, lock_elsewhere, RunCache(self)
        self.verdicts: dict[str, str] = {}
        self.held = contextlib.ExitStack()
        """Locks of the stage that is being updated."""

    def ready(self) -> None:
        """Answer: DVC is imported, and its configuration read."""

    def require_store(self, make: bool = False) -> None:
        """Compare the default remote with the one that this cache has seen under its address.

        Args:
            make: mark a new one, as something is to be pushed.

        Raises:
            DvcException: it is another one, or none.
        """
        remote = self.cloud.get_remote()
        marker = remote.fs.join(remote.path, MARKER)
        address = hashlib.sha256(remote.fs.unstrip_protocol(marker).encode()).hexdigest()[:16]
        record = Path(self.cache.legacy.path, "podium-stores", address)
        found = remote.fs.read_text(marker) if remote.fs.exists(marker) else ""
        if not record.exists():
            if found:
                record.parent.mkdir(parents=True, exist_ok=True)
                record.write_text(found)
            elif make:
                # Recorded next time, as two hosts may do this at once. A push says so where nothing may be written.
                with contextlib.suppress(OSError):
                    remote.fs.makedirs(remote.path, exist_ok=True)
                    remote.fs.write_text(marker, uuid.uuid4().hex)
        elif found != record.read_text():
            raise StoreAway(
                f"{marker} is {'not there' if not found else 'that of another store'}: bring the remote back, or mount "
                f"it; if it was replaced on purpose, remove {record}"
            )

    def pull(self, targets: str | Sequence[str], **options: Any) -> Any:
        """Restore outputs from the remote; DVC does so for a stage of which nothing else changed."""
        pulled = super().pull(targets, **options)
        if isinstance(targets, str):
            self.verdicts[targets] = "restored"
        return pulled

    def push(self, targets: Sequence[str], **options: Any) -> Any:
        """Copy outputs to the remote, and what the run-cache knows of their stages.

        It is looked for afterwards, too: DVC makes a folder again that was moved away meanwhile.
        """
        self.require_store(make=True)
        stages = [stage for target in targets for stage in self.stage.collect(target)]
        self.stage_cache.keys = [_get_stage_hash(stage) for stage in stages if _can_hash(stage)]
        pushed = super().push(targets, **options)
        self.require_store()
        return pushed

    def update_stage(self, stage: str, pull: bool, alone: bool) -> dict[str, Any]:
        """Bring a stage up to date.

        Args:
            stage: its name.
            pull: take what is missing from the remote.
            alone: what the stage reads is up to date.

        Returns:
            `verdict`, and `lost`: names of stages whose outputs are not in the cache, though DVC raised nothing.
        """
        self.verdicts, lost = {}, []
        self.stage_cache.keys = []

        def reproduce(one: Any, **options: Any) -> Any:
            try:
                with self.held:
                    done = _reproduce_stage(one, **options)
            except BadParamFileError as error:
                error.files = [dep.def_path for dep in one.deps if isinstance(dep, ParamsDependency)]
                raise
            if self.verdicts.get(one.addressing) == "ran" and not one.outs_cached():
                lost.append(one.addressing)
            return done

        self.reproduce([stage], single_item=alone, pull=pull, repro_fn=reproduce)
        return {"verdict": self.verdicts.get(stage, "skipped"), "lost": lost}

    def changed(self) -> list[str]:
        """Return the stages whose own inputs, parameters, command or outputs changed, without those after them."""
        return list(self.status())  # of all stages: of several, DVC looks at what they need once for each


class _Handler(logging.Handler):
    """Passes warnings and errors on."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(ColorFormatter(log_colors=False))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


def _failure(error: BaseException) -> dict[str, Any]:
    """Return why a request failed: a command's exit code, files without parameters, or a remote that is away."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for one in causes:
        if isinstance(one, CommandFailed):
            return {"code": one.status}
    logging.getLogger("dvc").error("", exc_info=error)
    files = [name for one in causes for name in getattr(one, "files", ())]
    return {"code": None, "files": files, "away": any(isinstance(one, StoreAway) for one in causes)}


def main(mark: str, wait_for_lock: bool) -> None:
    """Answer requests until there are no more.

    Args:
        mark: begins a reply, behind what a stage may have left of a line.
        wait_for_lock: see `Checkout`.
    """
    requests = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a stage that reads its input must not read requests

    def reply(kind: str, content: Any) -> None:
        sys.stdout.write(f"{mark}{json.dumps([kind, content])}\n")
        sys.stdout.flush()

    def say(text: str) -> None:
        for line in text.split("\n"):  # what is short is written at once, whoever else writes there
            reply("say", line)

    def lock_elsewhere(stage: str, fingerprint: str) -> bool:
        reply("lock", [stage, fingerprint])
        return bool(json.loads(next(requests)))

    for name in LOGGERS:
        logging.getLogger(name).handlers = [_Handler(say)]
    checkout: Checkout | None = None
    for line in requests:
        request = json.loads(line)
        try:
            checkout = checkout or Checkout(say, wait_for_lock, lock_elsewhere)
            answer = getattr(checkout, request.pop("do"))(**request)
        except (DvcException, OSError) as error:
            reply("failed", _failure(error))
        else:
            reply("answer", answer)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Answer the requests about a checkout that standard input holds.")
    parser.add_argument("dvc", help="the word dvc, for who looks for one at work")
    parser.add_argument("mark", help="what begins a reply")
    parser.add_argument("--wait-for-lock", action="store_true", help="of another DVC")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # asked to end while no stage is at work here
        main(asked.mark, asked.wait_for_lock)


if __name__ == "__main__":
    _main()
