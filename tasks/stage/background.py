"""Background work of a stage that must neither delay nor end it: trackers, and copies of checkpoints."""

import contextlib
import os
import re
import threading
from collections.abc import Callable
from types import TracebackType

SECRET = re.compile(r"pass(word|phrase)?$|secret|token|credential|key", re.IGNORECASE)
"""Environment variables whose values must never be printed."""
SHORTEST_SECRET = 6


class Background(threading.Thread):
    """A thread that may hang, as it ends with the process, and whose error, of any library, goes to `on_error`."""

    def __init__(self, work: Callable[[], object], on_error: Callable[[BaseException], None]) -> None:
        super().__init__(daemon=True)
        self._work, self._on_error = work, on_error
        self.start()

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._fail)
            self._work()

    def _fail(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is not None:
            self._on_error(error)
        return True

    def ends(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether the work has ended."""
        self.join(max(0.0, seconds))
        return not self.is_alive()


def format_error(error: BaseException) -> str:
    """Format an error: its class and the first line of its message, at most 300 characters, without secrets."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {redact(text)[:300]}"


def redact(text: str) -> str:
    """Replace user and password in URLs, and secrets from the environment, by ***."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "***")
    return re.sub(r"://[^/@\s]+@", "://***@", text)
