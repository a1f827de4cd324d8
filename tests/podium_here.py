"""The command line in this process, where the process is not what a test is about."""

import contextlib
import io
import subprocess
from unittest import mock

from flows import cli
from flows.runs import environment


def call_podium(*words):
    """Carry out a command as its process would, without the start of one."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    prepare = mock.patch.object(environment, "prepare_environment")
    code = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), prepare:
        try:
            cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, *(stream.buffer.getvalue().decode() for stream in streams))
