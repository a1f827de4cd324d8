"""Standard input, output and error of a command: closed, narrow or no longer read, none of them may end it.

What a command says to people goes through `say`, `note` or `printable`: names of files, questions and parameters are
words of users, and a terminal obeys what it takes for a command of its own.
"""

from __future__ import annotations

import io
import os
import select
import sys
import unicodedata

NOTE = "note: "
"""Begins a line that people must see; of what stages print, these lines are always shown."""
NEXT = "next: "
"""Begins the line that says what is useful next."""
JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner."""


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


def printable(text: str) -> str:
    """A text without what a terminal would take for a command, and without what turns the direction of others."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char) else ascii(char)[1:-1] for char in text)


def _is_shown(char: str) -> bool:
    """Whether a terminal shows it, or the room for it; Persian, Hindi and others join and part letters by JOINERS."""
    return char.isprintable() or char in f"\t\n{JOINERS}" or unicodedata.category(char) == "Zs"


def say(text: str) -> None:
    """Say something on standard output, where it ends as the text does."""
    sys.stdout.write(printable(text))


def say_line(text: str) -> None:
    """Say a line on standard output at once, as what is started next may write there, too."""
    say(f"{text}\n")
    sys.stdout.flush()


def note(text: str, what: str = NOTE) -> None:
    """Say a line beside what was asked for, on standard error."""
    sys.stderr.write(f"{what}{printable(text)}\n")


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
