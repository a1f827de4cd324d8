"""Calls to the Hub: transient failures, waiting times, and advice in messages.

The client library retries some calls itself (silently, without jitter, for as long as Retry-After asks) and others
never. Podium retries no single call. A publish can restart at any point (transaction.py), so after a transient failure
it logs the wait, waits and restarts.
"""

import email.utils
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import disable_progress_bars, get_session, hf_raise_for_status

from tasks.stage.errors import PublishError

log = logging.getLogger(__name__)

T = TypeVar("T")

XET_SWITCH = "HF_HUB_DISABLE_XET"
COMMIT = re.compile(r"/api/(?:models|datasets|spaces)/.+/commit/")
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes of failures that may be transient."""
MOVED = frozenset({409, 412})
"""Status codes for a repository that changed after its head was read."""
UNEXPECTED = (KeyError, TypeError, AttributeError)
"""Exceptions of the client for a JSON answer with an unexpected structure."""
FAILURES = (httpx2.HTTPError, ConnectionError, RuntimeError, ValueError, *UNEXPECTED)
"""Exceptions of the client: HTTP and transport errors, offline mode, a rejected upload (RuntimeError around its cause),
an answer that is not JSON, a name or card that the Hub rejects (ValueError), an answer with an unexpected structure."""


@dataclass(frozen=True)
class Patience:
    """Number of attempts, and waiting times in seconds.

    If the Hub is down, a publish fails after five attempts and 7 to 15 s of waiting. Publishing again continues from
    there at no cost, so Podium waits only for short outages and reports longer ones early.
    """

    attempts: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 20.0
    longest_retry_after_s: float = 120.0
    """Limit for Retry-After; a longer one ends the publish, because the user should decide to wait that long."""
    longest_wait_in_all_s: float = 600.0
    """Limit for all waits of one publish together."""
    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    """Longest silence of the server."""
    commit_timeout_s: float = 300.0
    """Longest silence after a commit or a file was sent; the Hub may need a minute for a large one."""
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, attempt: int) -> float:
        """Return an exponential wait with jitter, so that publishers do not collide again; attempt counts from 0."""
        longest = min(self.longest_wait_s, self.first_wait_s * 2**attempt)
        return random.uniform(0.5, 1.0) * longest

    def timeout(self, silence_s: float) -> httpx2.Timeout:
        """Return the timeouts of one request."""
        return httpx2.Timeout(silence_s, connect=self.connect_timeout_s)


class Unanswered(RuntimeError):
    """Transient failure of a request; the original error is its `__cause__`.

    It is neither a transport error nor a status error, because the client library would retry on those.
    """


class SingleTryClient(httpx2.Client):
    """HTTP client that raises `Unanswered` for every transient failure."""

    def __init__(self, patience: Patience, **options: Any) -> None:
        super().__init__(timeout=patience.timeout(patience.read_timeout_s), **options)
        self._patience = patience

    def request(self, method: str, url: Any, **options: Any) -> httpx2.Response:
        """Send a request like httpx2, with longer timeouts for commits and files."""
        path = urlsplit(str(url)).path  # without the query: in an upload URL it grants write access
        if method == "PUT" or COMMIT.match(path):
            options["timeout"] = self._patience.timeout(self._patience.commit_timeout_s)
        try:
            response = super().request(method, url, **options)
            if response.status_code in PASSING:
                hf_raise_for_status(response)
            if method == "GET" and path.startswith("/api/") and response.is_success:
                response.json()  # an answer that is not JSON is the error page of a proxy or an overloaded server
        except (httpx2.TransportError, HfHubHTTPError, json.JSONDecodeError) as error:
            error.add_note(f"{method} {path}")
            raise Unanswered from error
        return response


def hub_client(endpoint: str, token: str, patience: Patience) -> Any:
    """Return an HfApi with timeouts (by default it waits forever) and without retries or progress bars.

    An empty `endpoint` is the public Hub. The token is sent to this endpoint only.
    """
    if XET_SWITCH not in os.environ:
        # Large files use Git LFS: the Hub, its mirrors and our tests support it, and files are hashed before upload.
        # HF_HUB_DISABLE_XET=0 selects Xet storage.
        constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DISABLE_TELEMETRY = True
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every URL, including the signatures of upload URLs
    hooks = get_session().event_hooks
    set_client_factory(lambda: SingleTryClient(patience, event_hooks=hooks, follow_redirects=True))
    return HfApi(endpoint=endpoint.rstrip("/") or None, token=token)


class CallFailed(PublishError):
    """Error for a failed call; its message gives the current state of the repository and the fix."""

    def __init__(self, text: str, step: str, error: Exception) -> None:
        super().__init__(text)
        self.step, self.error = step, error


@dataclass
class Caller:
    """Hub client that names the target in messages, hides the token, and waits before a publish restarts."""

    api: Any
    repository: str
    patience: Patience
    token: str
    _failed: Counter[str] = field(default_factory=Counter)
    _waited_s: float = 0.0

    @property
    def endpoint(self) -> str:
        """Address of the Hub for messages, without the user name and password that its URL may contain."""
        host = urlsplit(self.api.endpoint).netloc
        return str(self.api.endpoint).replace(host, host.rpartition("@")[2])

    def info(self, step: str, revision: str | None, state: str) -> Any:
        """Return the client's ModelInfo of a revision with the hashes of its files; see `request`."""
        return self.request(
            step, lambda: self.api.model_info(self.repository, revision=revision, files_metadata=True), state
        )

    def request(self, step: str, call: Callable[[], T], state: str) -> T:
        """Return the result of `call`.

        Args:
            state: state of the repository if the call fails, for messages.

        Raises:
            CallFailed: the call failed.
        """
        try:
            return call()
        except FAILURES as error:
            raise self.failed(step, error, state) from None

    def failed(self, step: str, error: Exception, state: str) -> CallFailed:
        """Return an error that names the failure, the current state of the repository and the fix."""
        error = cause(error)
        text = f"{step} failed for {self.repository} at {self.endpoint}: {summary(error)}. Now: {state}. "
        return CallFailed(self._hidden(text + advice(error, self.repository, self.endpoint)), step, error)

    def wait_after(self, failed: CallFailed) -> bool:
        """Log and wait after a failure: longer each time at the same step, or as long as the server asks.

        Return False, without waiting, if the failure is permanent, it was the last attempt, or the wait would exceed
        the limits.
        """
        error, patience, attempt = failed.error, self.patience, self._failed[failed.step]
        self._failed[failed.step] += 1
        retry_after = retry_after_s(error)
        seconds = patience.wait_s(attempt) if retry_after is None else retry_after + patience.wait_s(0)
        what = next(iter(getattr(error, "__notes__", ())), failed.step)
        last = attempt + 1 >= patience.attempts or self._waited_s + seconds > patience.longest_wait_in_all_s
        # An answer that is not JSON is the error page of a proxy or an overloaded server.
        may_pass = status(error) in PASSING | MOVED or isinstance(error, httpx2.TransportError | json.JSONDecodeError)
        if last or not may_pass or (retry_after or 0.0) > patience.longest_retry_after_s:
            return False
        self._waited_s += seconds
        log.warning(
            "%s: %s; retrying in %.1f s (attempt %d of %d)",
            what,
            self._hidden(summary(error)),
            seconds,
            attempt + 2,
            patience.attempts,
        )
        patience.sleep(seconds)
        return True

    def _hidden(self, text: str) -> str:
        """Return `text` without the token, in case a server sent the token back."""
        return text.replace(self.token, "***")


def cause(error: Exception) -> Exception:
    """Return the HTTP failure behind the client's RuntimeError("Error while uploading ..."), or the error itself."""
    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def status(error: Exception) -> int | None:
    """Return the HTTP status code of an error, or None if there was no answer."""
    answer = getattr(error, "response", None)
    return None if answer is None else int(answer.status_code)


def retry_after_s(error: Exception) -> float | None:
    """Return the seconds of the Retry-After header (a number or a date), or None if there is no such header."""
    if (answer := getattr(error, "response", None)) is None:
        return None
    text = answer.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def summary(error: Exception) -> str:
    """Return one line: status and message of the server, or type and text of the transport failure."""
    if (code := status(error)) is not None:
        message = getattr(error, "server_message", None)
        return f"status {code}{f' ({message})' if message else ''}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f' ({text[:300]})' if text else ''}"


FORBIDDEN = {
    r"quota|storage|limit|billing|payment": "The account has no room for this: free storage on the Hub, or have its "
    "limit raised; private repositories count apart (publish.private)",
    r"resource group": "The organisation assigns its repositories to resource groups: ask an administrator for write "
    "access in the group of {repository}, or for a repository in a group of yours",
}
"""Pattern in the Hub's message with status 403 -> advice; any other is about rights."""


def advice(error: Exception, repository: str, endpoint: str) -> str:
    """Return the fix for a failure."""
    code = status(error)
    again = "publish again later; the same command continues from there"
    if code is None:
        if isinstance(error, (httpx2.TransportError, ConnectionError, json.JSONDecodeError, *UNEXPECTED)):
            return (
                f"Check that {endpoint} (HF_ENDPOINT) is a Hub and reachable from this host, and that HF_HUB_OFFLINE "
                f"is not set; then {again}"
            )
        return "Correct the setting that the message names (publish.repository, publish.license or publish.language)"
    if code == 403:
        message = getattr(error, "server_message", None) or ""
        for pattern, fix in FORBIDDEN.items():
            if re.search(pattern, message, re.IGNORECASE):
                return fix.format(repository=repository)
    by_status = {
        400: "The Hub rejects the content; correct the part that the message names",
        401: f"The Hub does not accept HF_TOKEN, or {repository} is not visible to it: create a token with write "
        "access and export it as HF_TOKEN",
        402: "The account's plan does not allow this",
        403: f"HF_TOKEN may not write to {repository}: use a token with write access of a user who may write "
        "there (organisations assign roles), or set publish.repository to your own namespace",
        404: f"Check publish.repository ({repository}): the user or organisation must exist and be visible to HF_TOKEN",
        409: f"Another process is changing {repository}: {again}",
        412: f"Others keep committing to {repository}: {again}",
        413: "The Hub does not accept files or commits of this size: request a higher limit or publish a smaller model",
        429: f"The Hub limits the request rate of this account: {again}",
    }
    return by_status.get(code, f"The Hub has an internal error: {again}" if code >= 500 else "See the status code")
