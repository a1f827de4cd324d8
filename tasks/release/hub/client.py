"""The Hub client with patience of its own: one place that retries, waits with jitter and says so.

The client library retries some calls by itself (without jitter, silently, as long as a Retry-After says) and others
never. Here every request but a commit may be repeated: asking, pre-uploading, uploading by hash, and creating what
may be there already. A commit may have landed although its answer was lost: whoever sent it must look (transaction.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import disable_progress_bars, get_session, hf_raise_for_status

from tasks.release.hub.calls import PASSING, Unanswered, Waits

XET_SWITCH = "HF_HUB_DISABLE_XET"
COMMIT = re.compile(r"/api/(?:models|datasets|spaces)/.+/commit/")


class PatientClient(httpx2.Client):
    """Repeats what may be repeated; see the module."""

    def __init__(self, waits: Waits, **options: Any) -> None:
        super().__init__(**options)
        self._waits = waits

    def request(self, method: str, url: Any, **options: Any) -> httpx2.Response:
        """As httpx2's, but a failure that passes is an `Unanswered`, after as many attempts as patience allows."""
        path = urlsplit(str(url)).path  # never the query: that of an upload URL is a right to write
        commit = bool(COMMIT.match(path))
        if commit or method == "PUT":
            options["timeout"] = self._waits.patience.timeout(self._waits.patience.commit_timeout_s)
        body: Any = options.get("data")
        start = body.tell() if hasattr(body, "seek") else 0
        attempt = 0
        while True:
            try:
                return self._answer(method, url, path, **options)
            except (httpx2.TransportError, HfHubHTTPError, json.JSONDecodeError) as error:
                if commit or not self._waits.before_next(f"{method} {path}", error, attempt):
                    raise Unanswered(repeated=not commit) from error
            attempt += 1
            if hasattr(body, "seek"):
                body.seek(start)

    def _answer(self, method: str, url: Any, path: str, **options: Any) -> httpx2.Response:
        response = super().request(method, url, **options)
        if response.status_code in PASSING:
            hf_raise_for_status(response)
        if method == "GET" and path.startswith("/api/") and response.is_success:
            response.json()  # what is no JSON is the error page of a proxy or of an overloaded server
        return response


def hub_client(endpoint: str, token: str, waits: Waits) -> Any:
    """An HfApi with time-outs (its own default waits for ever), our retries and no progress bars.

    Args:
        endpoint: URL of the Hub; empty: the public one.
        token: sent to this endpoint only.
        waits: decides on repetitions.
    """
    if XET_SWITCH not in os.environ:
        # Large files go by git LFS: one path for the Hub, its mirrors and our tests, hashed before it is sent.
        # HF_HUB_DISABLE_XET=0 chooses Xet storage.
        constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DISABLE_TELEMETRY = True
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every URL, signatures of upload URLs included
    hooks = get_session().event_hooks
    timeout = waits.patience.timeout(waits.patience.read_timeout_s)
    set_client_factory(lambda: PatientClient(waits, event_hooks=hooks, follow_redirects=True, timeout=timeout))
    return HfApi(endpoint=endpoint.rstrip("/") or None, token=token)
