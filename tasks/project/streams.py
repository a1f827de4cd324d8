"""Standard input, output and error of a command: closed, narrow or no longer read, none of them may end it."""

from __future__ import annotations

import io
import os
import select
import sys


def settle() -> None:
    """Open closed streams onto nothing, for this process and its children, and let any text be printed.

    A terminal that cannot show a character gets its number instead; a name of a file that is not UTF-8, too.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # else the next file that is opened would be taken for a stream
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has ended."""
    watch = select.poll()
    watch.register(1, 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


def finish() -> None:
    """Write what is left for standard output, or nowhere if that fails: Python would end with a code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
