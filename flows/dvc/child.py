"""Child process that imports DVC and answers requests on standard input, one JSON object per line.

flows/dvc/session.py starts this file by its path, in a checkout:

    python -P child.py dvc MARK [--wait-for-lock] [--forks DESCRIPTOR]

A reply is a line of standard output: MARK, then [kind, content] as JSON. `say` is a message for the user. `lock` has
the name and hash of a stage that is about to run, and is answered on standard input. `answer` or `failed` ends a
request. All other output comes from stages. The process ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dvc.stage.run
from dvc.dependency.param import BadParamFileError, ParamsDependency
from dvc.env import DVC_STAGE
from dvc.exceptions import DvcException
from dvc.fs import HTTPFileSystem, generic
from dvc.logger import ColorFormatter
from dvc.repo import Repo
from dvc.repo.reproduce import _reproduce_stage
from dvc.stage.cache import RunCacheNotFoundError, RunCacheNotSupported, StageCache, _can_hash, _get_stage_hash
from dvc.stage.decorators import unlocked_repo
from dvc.stage.exceptions import StageCmdFailedError

LOGGERS = ("dvc", "dvc_data", "dvc_objects")
"""Loggers whose handlers, set by DVC, write to standard output and error."""

MODULE_COMMAND = re.compile(r'python -m ([a-z_.]+)( "\$DVC_STAGE")?')
"""Commands of stages that the fork server can run."""
MARKER = "podium-store"
"""File in each remote that identifies it. It is missing if the remote's folder was moved or is not mounted."""

Say = Callable[[str], None]


class CommandFailed(StageCmdFailedError):
    """DVC's error of a failed command, plus its exit code, which DVC has only in the text."""

    def __init__(self, command: str, status: int | None = None) -> None:
        super().__init__(command, status)
        self.status = status


dvc.stage.run.StageCmdFailedError = CommandFailed


class ForkServerClient:
    """Connection to the fork server of the run (tasks/stage/fork_server.py), which starts stages quickly."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests, self._is_ready = requests, False
        self._start_command = dvc.stage.run._run

    def run(self, executable: str, command: str, env: dict[str, str], **options: Any) -> None:
        """Run the command of a stage in the fork server, or as DVC does if the server cannot."""
        module = MODULE_COMMAND.fullmatch(command)
        if module is None or (code := self._fork(module[1], [env[DVC_STAGE]] if module[2] else [], env)) is None:
            self._start_command(executable, command, env=env, **options)
        elif code:
            raise CommandFailed(command, code)

    def _fork(self, module: str, arguments: list[str], environment: dict[str, str]) -> int | None:
        """Return the exit code, or None if there is no server, or it did not start the stage."""
        command = {"module": module, "arguments": arguments, "environment": environment, "group": os.getpgrp()}
        try:
            self._is_ready = self._is_ready or bool(self._requests.recv(64, socket.MSG_DONTWAIT))  # or BlockingIOError
            socket.send_fds(self._requests, [json.dumps(command).encode()], (0, 1, 2))
        except OSError:  # no server, it is still importing, or the environment is too long for it
            return None
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does: only the stage handles it
        try:
            reply = self._requests.recv(64)
        finally:
            signal.signal(signal.SIGINT, before)
        return json.loads(reply) if reply else -signal.SIGKILL


class RemoteChanged(DvcException):
    """The default remote is missing, or is not the one seen before."""


class RunCache(StageCache):
    """DVC's run-cache that records whether a changed stage is restored or runs.

    Equal stages never run at the same time on one cache: the second waits for the first and is then restored.
    """

    def __init__(self, repo: CheckoutRepo) -> None:
        super().__init__(repo)
        self.keys: list[str] = []
        """Hashes of the stages whose entries `push` and `pull` copy."""

    def transfer(self, from_odb: Any, to_odb: Any, force: bool = True) -> list[tuple[str, str]]:
        """Copy the entries in `keys`. DVC would copy all entries each time, and a shared store has thousands."""
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
        looks = [lambda _: True, *([self._fetch] if pull else []), self._lock_here, self._lock_everywhere]
        for look in looks if _can_hash(stage) else looks[:1]:
            if look(stage):
                with contextlib.suppress(RunCacheNotFoundError):
                    super().restore(stage, run_cache, pull, dry)
                    self.repo.verdicts[stage.addressing] = "restored"
                    return
        if pull:  # if the remote has become unavailable, do not recompute what it has
            try:
                self.repo.require_store()
            except OSError as error:
                raise RemoteChanged(str(error)) from error
        self.repo.verdicts[stage.addressing] = "ran"
        self.repo.say(f"Running stage '{stage.addressing}':")
        raise RunCacheNotFoundError(stage)

    def _fetch(self, stage: Any) -> bool:
        """Fetch the run-cache entries of a stage from the remote; return whether it has any."""
        self.keys = [_get_stage_hash(stage)]
        with contextlib.suppress(RunCacheNotSupported):
            return bool(self.pull(None))
        return False

    def _lock_here(self, stage: Any) -> bool:
        """Lock an equal stage on this host until the update ends; return whether another process was running it."""
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

    def _lock_everywhere(self, stage: Any) -> bool:
        """Lock an equal stage on all hosts; return whether another host ran it and the remote has the result."""
        waited = unlocked_repo(lambda _: self.repo.lock_elsewhere(stage.addressing, _get_stage_hash(stage)))(stage)
        return bool(waited) and self._fetch(stage)


class CheckoutRepo(Repo):
    """DVC repository of a checkout, with the verdicts of the stages in the last update."""

    def __init__(self, say: Say, wait_for_lock: bool, lock_elsewhere: Callable[[str, str], bool]) -> None:
        """Read the configuration.

        Args:
            wait_for_lock: wait while another DVC holds the repository lock; otherwise fail after a few seconds.
            lock_elsewhere: waits until no other host runs a stage of this name and hash; returns whether one did.
        """
        super().__init__(_wait_for_lock=wait_for_lock)
        self.say, self.lock_elsewhere, self.stage_cache = say, lock_elsewhere, RunCache(self)
        self.verdicts: dict[str, str] = {}
        self.held = contextlib.ExitStack()
        """Locks of the stage that is being updated."""

    def ready(self) -> None:
        """Do nothing: the answer shows that DVC is imported and its configuration read."""

    def require_store(self, make: bool = False) -> None:
        """Require that the default remote is the one this cache has seen at its address.

        Args:
            make: put a marker into a new remote, before the first push.

        Raises:
            DvcException: the remote is missing or is another one.
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
                # Recorded at the next call, as two hosts may write a marker here. A push reports a read-only remote.
                with contextlib.suppress(OSError):
                    remote.fs.makedirs(remote.path, exist_ok=True)
                    remote.fs.write_text(marker, uuid.uuid4().hex)
        elif found != record.read_text():
            raise RemoteChanged(
                f"{marker} {'is missing' if not found else 'belongs to another store'}: restore or mount the remote; "
                f"if you replaced it on purpose, remove {record}"
            )

    def pull(self, targets: str | Sequence[str], **options: Any) -> Any:
        """Restore outputs from the remote. DVC calls this for a stage whose only change is missing outputs."""
        pulled = super().pull(targets, **options)
        if isinstance(targets, str):
            self.verdicts[targets] = "restored"
        return pulled

    def push(self, targets: Sequence[str], **options: Any) -> Any:
        """Copy outputs and the run-cache entries of their stages to the remote.

        The remote is checked again afterwards: if its folder was moved meanwhile, DVC has created a new one.
        """
        self.require_store(make=True)
        stages = [stage for target in targets for stage in self.stage.collect(target)]
        self.stage_cache.keys = [_get_stage_hash(stage) for stage in stages if _can_hash(stage)]
        pushed = super().push(targets, **options)
        self.require_store()
        return pushed

    def update_stage(self, stage: str, pull: bool, single: bool, run: dict[str, str]) -> dict[str, Any]:
        """Bring a stage up to date.

        Args:
            pull: fetch missing data from the remote.
            single: the stages it depends on are up to date.
            run: variables that tell the stage about the run.

        Returns:
            `verdict`, and `lost`: names of stages whose outputs did not reach the cache, though DVC raised no error.
        """
        os.environ.update(run)
        self.verdicts, lost = {}, []
        self.stage_cache.keys = []
        self._link_outputs()

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

        self.reproduce([stage], single_item=single, pull=pull, repro_fn=reproduce)
        return {"verdict": self.verdicts.get(stage, "skipped"), "lost": lost}

    def _link_outputs(self) -> None:
        """Make DVC hard-link new outputs into its cache where the disk has no reflinks, for which it copies them."""
        odb = self.cache.local
        with contextlib.suppress(OSError):  # reported when the stage's outputs are written
            found = generic.test_links(odb.cache_types, odb.fs, odb.path, odb.fs, os.path.join(self.tmp_dir, MARKER))
            odb.cache_types = found or odb.cache_types

    def changed(self) -> list[str]:
        """Return the stages whose own inputs, parameters, command or outputs changed, not those that depend on them."""
        return list(self.status())  # of all stages; for a selection, DVC would check shared dependencies repeatedly


class _Handler(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(ColorFormatter(log_colors=False))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


def _failure(error: BaseException) -> dict[str, Any]:
    """Return why a request failed: exit code of a command, files with invalid parameters, or an unavailable remote."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for one in causes:
        if isinstance(one, CommandFailed):
            return {"code": one.status}
    logging.getLogger("dvc").error("", exc_info=error)
    files = [name for one in causes for name in getattr(one, "files", ())]
    return {"code": None, "files": files, "away": any(isinstance(one, RemoteChanged) for one in causes)}


def main(mark: str, wait_for_lock: bool) -> None:
    """Answer requests until standard input closes.

    Args:
        mark: prefix of a reply. It may follow an unfinished line of a stage.
    """
    requests = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a stage that reads standard input must not consume requests

    def reply(kind: str, content: Any) -> None:
        sys.stdout.write(f"{mark}{json.dumps([kind, content])}\n")
        sys.stdout.flush()

    def say(text: str) -> None:
        for line in text.split("\n"):  # short writes are atomic, even if stages write to the same pipe
            reply("say", line)

    def lock_elsewhere(stage: str, fingerprint: str) -> bool:
        reply("lock", [stage, fingerprint])
        return bool(json.loads(next(requests)))

    for name in LOGGERS:
        logging.getLogger(name).handlers = [_Handler(say)]
    checkout: CheckoutRepo | None = None
    for line in requests:
        request = json.loads(line)
        try:
            checkout = checkout or CheckoutRepo(say, wait_for_lock, lock_elsewhere)
            answer = getattr(checkout, request.pop("do"))(**request)
        except (DvcException, OSError) as error:
            reply("failed", _failure(error))
        else:
            reply("answer", answer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer requests about a checkout from standard input.")
    parser.add_argument("dvc", help="the word dvc, which marks the process as a running DVC")
    parser.add_argument("mark", help="prefix of replies")
    parser.add_argument("--wait-for-lock", action="store_true", help="wait for the lock of another DVC")
    parser.add_argument("--forks", type=int, help="descriptor of the socket to the fork server")
    arguments = parser.parse_args()
    if arguments.forks is not None:
        dvc.stage.run._run = ForkServerClient(socket.socket(fileno=arguments.forks)).run
    with contextlib.suppress(KeyboardInterrupt):  # stopped while no stage is running here
        main(arguments.mark, arguments.wait_for_lock)
