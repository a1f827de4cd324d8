"""Child process that imports DVC and answers requests about one checkout: JSON objects, one a line, on a socket.

flows/dvc/session.py starts this file by its path, in the checkout:

    python -P child.py dvc DESCRIPTOR

A reply is [kind, content]. `running` has the name of a stage whose command DVC runs; `say` a message for the user;
`answer` or `failed` ends a request. Stages write to the standard output of this process, which nothing else uses. The
process ends when the socket closes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dvc.dependency.param import BadParamFileError, ParamsDependency
from dvc.exceptions import DvcException
from dvc.fs import HTTPFileSystem, generic
from dvc.logger import ColorFormatter
from dvc.repo import Repo, lock_repo
from dvc.stage.cache import RunCacheNotFoundError, StageCache, _can_hash, _get_stage_hash
from dvc.stage.exceptions import StageCmdFailedError

LOGGERS = ("dvc", "dvc_data", "dvc_objects")
"""Loggers whose handlers, set by DVC, write to standard output and error."""
EXIT_CODE = re.compile(r"exited with (-?[0-9]+)$")
"""End of DVC's error of a command, which has the exit code only in its text."""
MARKER = "podium-store"
"""File in each remote that identifies it. It is missing if the remote's folder was moved or is not mounted."""

Reply = Callable[[str, Any], None]


class RemoteChanged(DvcException):
    """The default remote is missing, or is not the one seen before."""


class RunCache(StageCache):
    """DVC's run-cache, of which single entries are copied: DVC would copy all each time, and a store has thousands.

    What needs names that DVC keeps private is here.
    """

    def __init__(self, repo: CheckoutRepo) -> None:
        super().__init__(repo)
        self.keys: list[str] = []
        """Hashes of the stages whose entries `push` and `pull` copy."""
        self.has_run = False
        """True if DVC found no entry, and runs the command of the stage."""

    def key_of(self, stage: Any) -> str | None:
        """Return the hash of a stage's command, parameters, inputs and names of outputs; None if it has none."""
        with contextlib.suppress(DvcException, OSError):  # an input is missing: DVC reports it when the stage runs
            stage.save_deps()
        return _get_stage_hash(stage) if _can_hash(stage) else None

    def transfer(self, from_odb: Any, to_odb: Any, force: bool = True) -> list[tuple[str, str]]:
        """Copy the entries in `keys`; a remote by HTTP has none."""
        copied: list[tuple[str, str]] = []
        if isinstance(from_odb.fs, HTTPFileSystem) or isinstance(to_odb.fs, HTTPFileSystem):
            return copied
        for key in self.keys:
            parts = ("runs", key[:2], key)
            folder = from_odb.fs.join(from_odb.path, *parts)
            for source in from_odb.fs.find(folder) if from_odb.fs.exists(folder) else ():
                name = from_odb.fs.name(source)
                generic.copy(from_odb.fs, source, to_odb.fs, to_odb.fs.join(to_odb.path, *parts, name))
                copied.append((key, name))
        return copied

    def restore(self, stage: Any, run_cache: bool = True, pull: bool = False, dry: bool = False) -> None:
        """Restore the outputs of a stage, or raise RunCacheNotFoundError."""
        try:
            super().restore(stage, run_cache, pull, dry)
        except RunCacheNotFoundError:
            if pull:  # if the remote has become unavailable, do not recompute what it has
                self.repo.require_store()
            self.has_run = True
            self.repo.reply("running", stage.addressing)
            raise


class CheckoutRepo(Repo):
    """DVC repository of a checkout, with the requests that it answers."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply, self.stage_cache = reply, RunCache(self)

    def ready(self) -> None:
        """Do nothing: the answer shows that DVC is imported and its configuration read."""

    def require_store(self, make: bool = False) -> None:
        """Require that the default remote is the one this cache has seen at its address; `make` marks a new remote.

        Raises:
            RemoteChanged: the remote is missing or is another one.
        """
        remote = self.cloud.get_remote()
        marker = remote.fs.join(remote.path, MARKER)
        address = hashlib.sha256(remote.fs.unstrip_protocol(marker).encode()).hexdigest()[:16]
        record = Path(self.cache.legacy.path, "podium-stores", address)
        try:
            known = remote.fs.read_text(marker) if remote.fs.exists(marker) else ""
        except OSError as error:
            raise RemoteChanged(str(error)) from error
        if not record.exists():
            if known:
                record.parent.mkdir(parents=True, exist_ok=True)
                record.write_text(known)
            elif make:
                # Recorded at the next call, as two hosts may write a marker here. A push reports a read-only remote.
                with contextlib.suppress(OSError):
                    remote.fs.makedirs(remote.path, exist_ok=True)
                    remote.fs.write_text(marker, uuid.uuid4().hex)
        elif known != record.read_text():
            raise RemoteChanged(
                f"{marker} {'is missing' if not known else 'belongs to another store'}: restore or mount the remote; "
                f"if you replaced it on purpose, remove {record}"
            )

    def push(self, targets: Sequence[str]) -> Any:
        """Copy outputs and the run-cache entries of their stages to the remote.

        The remote is checked again afterwards: if its folder was moved meanwhile, DVC has created a new one.
        """
        self.require_store(make=True)
        stages = [stage for target in targets for stage in self.stage.collect(target)]
        self.stage_cache.keys = [key for stage in stages if (key := self.stage_cache.key_of(stage))]
        # DVC copies an entry before its outputs: a host that is lost in between would leave an entry without them.
        pushed = super().push(targets)
        self.stage_cache.push(None)
        self.require_store()
        return pushed

    def find_key(self, stage: str) -> str | None:
        """Return the hash by which the run-cache knows a stage; None if it is unchanged, or cannot be hashed."""
        with lock_repo(self):
            [dvc_stage] = self.stage.collect(stage)
            return self.stage_cache.key_of(dvc_stage) if dvc_stage.changed() else None

    def update(self, stage: str, key: str | None, pull: bool, run: dict[str, str]) -> dict[str, Any]:
        """Bring a stage with the hash `key` up to date whose inputs are.

        Args:
            pull: fetch missing data from the remote.
            run: variables that tell the stage about the run.

        Returns:
            `verdict`: ran, restored or skipped; and `lost`, whether outputs did not reach the cache, though DVC raised
            no error.
        """
        os.environ.update(run)
        self.stage_cache.keys, self.stage_cache.has_run = [key] if key else [], False
        self._link_outputs()
        with lock_repo(self):
            was_whole = all(out.exists for dvc_stage in self.stage.collect(stage) for out in dvc_stage.outs)
        changed = self.reproduce([stage], single_item=True, pull=pull)
        if self.stage_cache.has_run:
            return {"verdict": "ran", "lost": not all(dvc_stage.outs_cached() for dvc_stage in changed)}
        return {"verdict": "restored" if changed or not was_whole else "skipped", "lost": False}

    def _link_outputs(self) -> None:
        """Make DVC hard-link new outputs into its cache where the disk has no reflinks, for which it copies them."""
        odb = self.cache.local
        with contextlib.suppress(OSError):  # reported when the stage's outputs are written
            types = generic.test_links(odb.cache_types, odb.fs, odb.path, odb.fs, os.path.join(self.tmp_dir, MARKER))
            odb.cache_types = types or odb.cache_types

    def changed(self) -> list[str]:
        """Return the stages whose own inputs, parameters, command or outputs changed, not those that depend on them."""
        return list(self.status())  # of all stages; for a selection, DVC would check shared dependencies repeatedly


class _Handler(logging.Handler):
    def __init__(self, reply: Reply) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(ColorFormatter(log_colors=False))
        self._reply = reply

    def emit(self, record: logging.LogRecord) -> None:
        self._reply("say", self.format(record))


def _describe_failure(error: BaseException, stage: str | None, repo: CheckoutRepo | None) -> dict[str, Any]:
    """Return why a request failed: exit code of a command, files with invalid parameters, or an unavailable remote."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, StageCmdFailedError) and (code := EXIT_CODE.search(str(cause))):
            return {"code": int(code[1])}
    logging.getLogger("dvc").error("", exc_info=error)
    files: list[str] = []
    if repo is not None and stage is not None and any(isinstance(cause, BadParamFileError) for cause in causes):
        [dvc_stage] = repo.stage.collect(stage)
        files = [dep.def_path for dep in dvc_stage.deps if isinstance(dep, ParamsDependency)]
    return {"code": None, "files": files, "away": any(isinstance(cause, RemoteChanged) for cause in causes)}


def main(connection: socket.socket) -> None:
    """Answer requests until the socket closes."""

    def reply(kind: str, content: Any) -> None:
        connection.sendall(f"{json.dumps([kind, content])}\n".encode())

    handler = _Handler(reply)
    for name in LOGGERS:
        logging.getLogger(name).handlers = [handler]
    checkout: CheckoutRepo | None = None
    for line in connection.makefile(encoding="utf-8"):
        request = json.loads(line)
        try:
            checkout = checkout or CheckoutRepo(reply)
            answer = getattr(checkout, request.pop("do"))(**request)
        except (DvcException, OSError) as error:
            reply("failed", _describe_failure(error, request.get("stage"), checkout))
        else:
            reply("answer", answer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer requests about a checkout on a socket.")
    parser.add_argument("dvc", help="the word dvc, which marks the process as a running DVC")
    parser.add_argument("descriptor", type=int, help="descriptor of the socket")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # stopped while no stage is running here
        main(socket.socket(fileno=arguments.descriptor))
