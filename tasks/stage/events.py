"""Events that a stage reports to the run that started it: started, progress, note, paused or failed.

An event is a JSON object in one datagram to the Unix socket that PODIUM_EVENTS names. `dvc repro` names none.
"""

import json
import os
import socket
from typing import Any

EVENTS = "PODIUM_EVENTS"
"""Variable with the path of the run's socket."""
MAX_TEXT = 16_000
"""Maximum characters of a text in an event; a datagram may have about 200,000 bytes."""


def report(event: str, **facts: Any) -> bool:
    """Report an event; return whether a run received it."""
    if not (path := os.environ.get(EVENTS)):
        return False
    short = {name: fact[:MAX_TEXT] if isinstance(fact, str) else fact for name, fact in facts.items()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(json.dumps({"event": event, **short}).encode(), path)
        except OSError:  # the run has ended
            return False
    return True


def report_progress(share: float, text: str) -> bool:
    """Report the finished share of a stage, 0 to 1, with a text for users; return whether a run received it."""
    return report("progress", percent=round(100 * share), text=text)
