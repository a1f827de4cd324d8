"""Fork server: starts the stages of a run in processes that have imported their packages already.

    python -m tasks.stage.fork_server SOCKET MODULES

Most stages import packages for longer than they work. This process imports the modules of the coming stages once, and
calls `preload` of those that have it, while the first stages run. Only then it listens on the socket. A request
(tasks/stage/start.py) makes it fork; the new process runs a module as `python -m` does. The answer is the exit code, or
null if the requester must run the module itself, because a file has changed since its import.

A forked process keeps a second process in reserve for its device job, because it may have threads by then, and a
process with threads must not fork.
"""

import argparse
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ipu_model.distributed.process import limit_spinning
from tasks.stage.errors import FAILED, PodiumError
from tasks.stage.process import die_with_parent

MESSAGE_BYTES = 1 << 20
"""Maximum size of a request, of which the environment is the largest part."""


@dataclass
class ModuleCommand:
    """A module to run as `python -m` does. Its process group is that of the requester, whose signals reach it."""

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]
    group: int
    folder: str = "."
    """Current folder of the process."""

    def send(self, to: socket.socket, streams: Sequence[int]) -> None:
        """Send the command, with the standard streams of its process."""
        socket.send_fds(to, [json.dumps(asdict(self)).encode()], streams)

    def enter(self, streams: Sequence[int]) -> None:
        """Give this process, a fork, the group, streams, environment and folder of the command."""
        with contextlib.suppress(OSError):  # it is in the group, or the requester has ended
            os.setpgid(0, self.group)
        for stream, descriptor in enumerate(streams):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)

    def run(self) -> None:
        """Run the module in this process."""
        sys.argv = ["-m", *self.arguments]
        sys.modules.pop(self.module, None)
        gc.enable()
        _exit.code = FAILED  # of a traceback
        try:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            _exit.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            raise
        _exit.code = 0


class _Exit:
    """Last function of atexit, which is registered first. It skips freeing the modules, which takes 0.3 s."""

    code = 0

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(self.code)


_exit = _Exit()


def receive(requester: socket.socket) -> tuple[ModuleCommand, list[int]] | None:
    """Receive a command and the descriptors of its streams; None if the requester has ended."""
    content, streams, *_ = socket.recv_fds(requester, MESSAGE_BYTES, 3)
    return (ModuleCommand(**json.loads(content)), list(streams)) if content else None


class ReserveProcess:
    """Fork of this process that waits for the command of a device job; with the methods of Popen that a job needs."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _run_next(theirs)
        theirs.close()

    def start(self, module: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        """Run a module; its output is read from `stdout`."""
        command = ModuleCommand(module, arguments, environment, os.getpgrp(), os.getcwd())
        reader, writer = os.pipe()
        self.stdout = os.fdopen(reader, encoding="utf-8")
        try:
            command.send(self._socket, (0, writer, writer))
        finally:
            os.close(writer)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait until the process ends; return its exit code."""
        code = self._wait(0)
        assert code is not None
        return code

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


_reserve: list[ReserveProcess] = []


def take_reserve() -> ReserveProcess | None:
    """Return the reserve of this process, once; None if no fork server started this process."""
    return _reserve.pop() if _reserve else None


def _run_next(requester: socket.socket) -> None:
    """Run the next command in this process and exit; exit as well if there is none."""
    try:
        received = receive(requester)
    except KeyboardInterrupt:  # the whole group was stopped
        received = None
    if received is None:
        os._exit(0)
    requester.close()
    command, streams = received
    command.enter(streams)
    command.run()
    sys.exit()


class SourceFiles:
    """Versions of the imported files in the current folder."""

    def __init__(self, began_ns: int) -> None:
        """Record the files. One that changed after `began_ns`, when the imports began, may be newer than its import."""
        root = f"{Path.cwd()}{os.sep}"
        files = {str(getattr(module, "__file__", "")) for module in list(sys.modules.values())}
        project_files = (file for file in files if file.startswith(root) and "site-packages" not in file)
        self._versions = {file: _version(file) for file in project_files}
        self._are_as_imported = all(version and version[2] < began_ns for version in self._versions.values())

    def are_current(self) -> bool:
        """Return whether all files are as they were imported."""
        return self._are_as_imported and all(_version(file) == version for file, version in self._versions.items())


def _version(file: str) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        state = os.stat(file)
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns
    return None


def serve(listener: socket.socket, files: SourceFiles) -> tuple[ModuleCommand, list[int]]:
    """Fork for each request while `files` are current, and return the request in the new process.

    The process of a requester that ends gets SIGTERM.
    """
    while True:
        requester, _ = listener.accept()
        with requester:
            if (received := receive(requester)) is None:
                continue
            pid = os.fork() if files.are_current() else None
            if pid == 0:
                listener.close()
                return received
            for stream in received[1]:
                os.close(stream)
            code = None if pid is None else _wait(requester, pid)
            with contextlib.suppress(OSError):  # it has ended
                requester.send(json.dumps(code).encode())


def _wait(requester: socket.socket, pid: int) -> int:
    """Return the exit code of a process, which gets SIGTERM when the requester ends."""
    end = os.pidfd_open(pid)
    if end not in select.select([end, requester.fileno()], [], [])[0]:
        os.kill(pid, signal.SIGTERM)
    os.close(end)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Serve, and in a forked process, run its command."""
    parser = argparse.ArgumentParser(description="Start the stages of a run in forks that have imported their modules.")
    parser.add_argument("socket", help="path of the socket to listen on")
    parser.add_argument("modules", nargs="*", help="modules to import")
    words = parser.parse_args()
    atexit.register(_exit)
    die_with_parent()
    limit_spinning()  # before torch is imported
    gc.disable()
    began_ns = time.time_ns()
    for name in words.modules:
        with contextlib.suppress(ImportError, PodiumError):  # the stage will report what goes wrong
            getattr(importlib.import_module(name), "preload", lambda: None)()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(words.socket)
    listener.listen()
    command, streams = serve(listener, SourceFiles(began_ns))
    command.enter(streams)
    _reserve.append(ReserveProcess())
    command.run()


if __name__ == "__main__":
    from tasks.stage import fork_server  # stages import the module, of which __main__ is another copy

    fork_server.main()
