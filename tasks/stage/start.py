"""Start a stage: in a fork of the run's fork server if that has imported the module, otherwise in this process.

python -m tasks.stage.start MODULE [ARGUMENT ...]
"""

import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence

FORKS = "PODIUM_FORKS"
"""Variable with the path of the fork server's socket (tasks/stage/fork_server.py). `dvc repro` sets none."""


def run_in_fork(module: str, arguments: Sequence[str]) -> int | None:
    """Run a module in the fork server; return its exit code, negative for a signal.

    Returns:
        None if the module did not run: there is no server, it is still importing, or a file has changed since.
    """
    if not (path := os.environ.get(FORKS)):
        return None
    process = {"group": os.getpgrp(), "folder": os.getcwd()}
    command = {"module": module, "arguments": [*arguments], "environment": {**os.environ}, **process}
    handler = signal.getsignal(signal.SIGINT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(path)
            from tasks.stage.process import die_with_parent  # slow to import

            die_with_parent()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the stage, which is in this process group, handles it
            socket.send_fds(server, [json.dumps(command).encode()], (0, 1, 2))
        except OSError:  # or the environment is too long for a message
            signal.signal(signal.SIGINT, handler)
            return None
        reply = server.recv(64)
    signal.signal(signal.SIGINT, handler)
    return json.loads(reply) if reply else -signal.SIGKILL


def main() -> None:
    """Run the module that the arguments name, and end as it does."""
    module, *arguments = sys.argv[1:]
    code = run_in_fork(module, arguments)
    if code is None:
        sys.argv = ["-m", *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
