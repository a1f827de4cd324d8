"""What a run takes for its own of what others may have changed: verdicts, scores and models of stages it did not run.

DVC compares times and sizes of files that are there, and nothing at all of those that it restores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.project.dvc_records import require_judged
from tasks.project.errors import InputError


def set_aside_damaged(gates: Sequence[str], root: Path, say: Callable[[str], None]) -> None:
    """Before a run: what gates wrote, and what they judged, must hold the bytes that dvc.lock states.

    What does not is moved out of the way and said; DVC then restores it, or makes it anew.
    """
    for gate in gates:
        try:
            require_judged(gate, root)
        except InputError as error:
            say(str(error))


def require_restored(gates: Sequence[str], root: Path) -> None:
    """After a run that restored something: the same, of what came from DVC's cache or a remote.

    Raises:
        InputError: some hold other bytes; the message says what to do.
    """
    for gate in gates:
        require_judged(gate, root)
