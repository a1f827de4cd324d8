"""Calls of the Prefect server that outlive a server that is gone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from prefect.exceptions import PrefectHTTPStatusError

PATIENCE_S = 900.0
"""How long a server may be away: a restart or an upgrade, not a lost machine."""
WAIT_S = 3.0

UNREACHED = (httpx.TransportError, PrefectHTTPStatusError)
"""What a call raises when the server is away, or answers with an error."""

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer], say: Callable[[str], None], patience_s: float = PATIENCE_S) -> Answer:
    """What `call` returns; while the server does not answer, or answers with 5xx, it is called again.

    Args:
        call: asks the Prefect API; may be repeated.
        say: takes a line when the server is lost and when it is back.
        patience_s: seconds after which the server's last error is raised.

    Raises:
        httpx.TransportError, PrefectHTTPStatusError: the server stayed away, or it refused.
    """
    lost_at: float | None = None
    while True:
        try:
            answer = call()
        except UNREACHED as error:
            if isinstance(error, PrefectHTTPStatusError) and error.response.status_code < 500:
                raise
            now = time.monotonic()
            if lost_at is None:
                lost_at = now
                say(f"the Prefect server does not answer ({type(error).__name__}); waiting up to {patience_s:.0f} s")
            if now - lost_at > patience_s:
                raise
            time.sleep(WAIT_S)
        else:
            if lost_at is not None:
                say(f"the Prefect server is back after {time.monotonic() - lost_at:.0f} s")
            return answer
