"""The command line in this process, where the process is not what a test is about."""

import contextlib
import io
import subprocess
from unittest import mock

from flows import cli
from flows.runs import environment


def call_podium(*words):
    """Carry out a command as its process would, without the start of one."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(environment, "prepare_environment"),
    ):
        try:
            cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(words, code, *said)
