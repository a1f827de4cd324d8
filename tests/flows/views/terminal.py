"""A terminal as people have one: a command in its foreground, keys that are typed, and what stands on it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = b"\x03"
COLUMNS = 120


class Terminal:
    """A command in the foreground of a terminal of its own; the terminal is its standard input, output and error."""

    def __init__(self, words, cwd, environment):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_at_a_terminal,
        )
        os.close(theirs)
        self.raw = ""

    def type(self, keys):
        """Press keys; Ctrl-C reaches every process in the foreground, as the kernel does it."""
        os.write(self._ours, keys)

    def hang_up(self):
        """Close the terminal, as a lost connection does, which sends SIGHUP; returns the exit code of the command."""
        os.close(self._ours)
        return self.process.wait(timeout=120.0)

    def wait_for(self, pattern, seconds=120.0):
        """Read on until something was written that `pattern` finds.

        Raises:
            TimeoutError: it did not come.
        """
        until = time.monotonic() + seconds
        while not re.search(pattern, ESCAPE.sub("", self.raw)):
            if time.monotonic() > until or not self._read(until - time.monotonic()):
                raise TimeoutError(f"{pattern!r} did not come; the terminal shows:\n{self.plain()}")

    def end(self, seconds=120.0):
        """Read until the command ends; returns its exit code.

        Raises:
            TimeoutError: it did not end.
        """
        until = time.monotonic() + seconds
        while self._read(until - time.monotonic()):
            pass
        try:
            return self.process.wait(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it did not end in {seconds:g} s; the terminal shows:\n{self.plain()}") from None
        finally:
            os.close(self._ours)

    def plain(self):
        """What was written, without escape codes; a line that was written over keeps its last words only."""
        lines = ESCAPE.sub("", self.raw).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines)

    def _read(self, seconds):
        """Take what comes next; False where the command has closed the terminal, or nothing came in time."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # Linux: everybody has closed the other end
            return False
        self.raw += found.decode(errors="replace")
        return bool(found)


def _at_a_terminal():
    """As a shell starts a command in its foreground, whatever started these tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
