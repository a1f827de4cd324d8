"""Standard streams of a command; a closed stream, a narrow encoding or a reader that stops must not end it.

All output for users goes through `say`, `note` or `printable`: file names, questions and parameters contain text of
users, and a terminal would interpret control characters in it.
"""

import contextlib
import io
import os
import select
import sys
import unicodedata
from collections.abc import Iterator

from tasks.stage.events import report

NOTE = "note: "
"""Prefix of lines that users must see."""
NEXT = "next: "
"""Prefix of the line with a suggested next step."""
SHOWN = "\t\n\u200c\u200d"
"""Tab, line end, and the zero-width non-joiner and joiner, which Persian, Hindi and others need."""


def prepare_streams() -> None:
    """Open closed streams onto /dev/null, for this process and its children, and make any text printable.

    Characters that the terminal cannot show are replaced by their code, as are file names that are not UTF-8.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # otherwise the next opened file would become a stream
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return the text with control characters and direction overrides escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in SHOWN or unicodedata.category(char) == "Zs" else ascii(char)[1:-1]
        for char in text
    )


def say(text: str) -> None:
    """Write a text to standard output, without adding a newline."""
    sys.stdout.write(printable(text))


def say_line(text: str) -> None:
    """Write a line to standard output and flush it, as a child process may write there next."""
    say(f"{text}\n")
    sys.stdout.flush()


def note(text: str, what: str = NOTE) -> None:
    """Write a line to standard error, such as a note about the command's output; a stage's run shows its notes."""
    if what == NOTE and report("note", text=printable(text)):
        return
    sys.stderr.write(f"{what}{printable(text)}\n")


def has_no_reader() -> bool:
    """Return True if standard output is a pipe whose reader has ended."""
    watch = select.poll()
    watch.register(1, 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


@contextlib.contextmanager
def outlive_output() -> Iterator[None]:
    """Discard standard output from the first failure to write to it in the body: a run then ends as it would have."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if not isinstance(error, BrokenPipeError):
            note(f"standard output cannot be written ({error.strerror}): the rest of it is lost")


def flush_output() -> None:
    """Flush standard output, or discard it if that fails; otherwise Python would exit with its own code."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
