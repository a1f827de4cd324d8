"""Calls to the Hub: which failures pass, how long to be patient, and what to tell a person.

One place retries, waits with jitter and says so: the client library retries some calls by itself (without jitter,
silently, as long as a Retry-After says) and others never. Here every request but a commit may be repeated: asking,
pre-uploading, uploading by hash, and creating what may be there already. A commit may have landed although its answer
was lost: whoever sent it must look (transaction.py).
"""

from __future__ import annotations

import email.utils
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import disable_progress_bars, get_session, hf_raise_for_status

from tasks.project.errors import PublishError

log = logging.getLogger(__name__)

T = TypeVar("T")

XET_SWITCH = "HF_HUB_DISABLE_XET"
COMMIT = re.compile(r"/api/(?:models|datasets|spaces)/.+/commit/")
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes that may be gone at the next try."""
MOVED = frozenset({409, 412})
"""Somebody else changed the repository since its head was read."""
UNEXPECTED = (KeyError, TypeError, AttributeError)
"""What the client raises when an answer is JSON and not laid out as it expects."""
FAILURES = (httpx2.HTTPError, ConnectionError, RuntimeError, ValueError, *UNEXPECTED)
"""What the client raises: HTTP and transport errors, offline mode, a refused upload (RuntimeError around its cause),
an answer that is no JSON, a name or a card that the Hub refuses (ValueError), an unexpected answer."""


@dataclass(frozen=True)
class Patience:
    """How often and how long to wait, in seconds.

    A Hub that is down ends a publish after five attempts and 7 to 15 s of waiting: publishing again goes on from
    there and costs nothing, so a person learns soon, and only a short disturbance is waited for.
    """

    attempts: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 20.0
    longest_retry_after_s: float = 120.0
    """A Retry-After above this ends the publish: a person should decide to wait that long."""
    longest_wait_in_all_s: float = 600.0
    """All waits of one publish together."""
    connect_timeout_s: float = 20.0
    read_timeout_s: float = 60.0
    """Silence of the server."""
    commit_timeout_s: float = 300.0
    """Silence after a commit or a file was sent: the Hub may take a minute over a large one."""
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, attempt: int) -> float:
        """Exponential, with jitter so that several publishers do not meet again; attempt counts from 0."""
        longest = min(self.longest_wait_s, self.first_wait_s * 2**attempt)
        return random.uniform(0.5, 1.0) * longest

    def timeout(self, silence_s: float) -> httpx2.Timeout:
        """For one request."""
        return httpx2.Timeout(silence_s, connect=self.connect_timeout_s)


class Unanswered(RuntimeError):
    """A request failed in a way that passes; the failure itself is the `__cause__`.

    Not a transport error: the client library would repeat that, and multiply our attempts by its own.
    """

    def __init__(self, repeated: bool) -> None:
        super().__init__("no usable answer")
        self.repeated = repeated
        """Tried as often as patience allows; False: sent once, and it may have been carried out."""


class Waits:
    """Waits between attempts: longer every time, or as long as the server asks; bounded in sum."""

    def __init__(self, patience: Patience, token: str) -> None:
        self.patience, self._token = patience, token
        self._left_s = patience.longest_wait_in_all_s
        self._lock = threading.Lock()

    def before_next(self, what: str, error: Exception, attempt: int) -> bool:
        """Wait after attempt number `attempt` (from 0), and say so.

        Returns:
            False, without waiting, when that was the last attempt or the wait would be longer than patience allows.
        """
        if attempt + 1 >= self.patience.attempts:
            return False
        asked = retry_after_s(error)
        if asked is not None and asked > self.patience.longest_retry_after_s:
            return False
        seconds = self.patience.wait_s(attempt) if asked is None else asked + self.patience.wait_s(0)
        with self._lock:  # large files are sent from several threads
            if seconds > self._left_s:
                return False
            self._left_s -= seconds
        log.warning(
            "%s: %s; again in %.1f s (attempt %d of %d)",
            what,
            self.hidden(summary(error)),
            seconds,
            attempt + 2,
            self.patience.attempts,
        )
        self.patience.sleep(seconds)
        return True

    def hidden(self, text: str) -> str:
        """`text` without the token, should a server have sent it back."""
        return text.replace(self._token, "***")


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


@dataclass(frozen=True)
class Caller:
    """Names the target in messages and hides the token; the client repeats."""

    api: Any
    """The Hub client."""
    repository: str
    waits: Waits

    @property
    def endpoint(self) -> str:
        """Of the Hub, as messages name it."""
        return shown(self.api.endpoint)

    def info(self, step: str, revision: str | None, state: str) -> Any:
        """The client's ModelInfo of a revision with the hashes of its files; see `asked`."""
        return self.asked(
            step, lambda: self.api.model_info(self.repository, revision=revision, files_metadata=True), state
        )

    def asked(self, step: str, call: Callable[[], T], state: str) -> T:
        """The result of `call`.

        Args:
            step: what was being done, for messages.
            state: what the repository looks like if this fails.

        Raises:
            PublishError: it failed, and not for a moment only.
        """
        try:
            return call()
        except FAILURES as error:
            raise self.failed(step, error, state) from None

    def failed(self, step: str, error: Exception, state: str) -> PublishError:
        """One message: what failed, what the repository looks like now, what to do."""
        text = f"{step} failed for {self.repository} at {self.endpoint}: {summary(error)}. Now: {state}. "
        return PublishError(self.waits.hidden(text + advice(error, self.repository, self.endpoint)))


def may_have_landed(error: BaseException) -> bool:
    """Whether a commit that failed so may be in the repository nevertheless, or be refused for another one's sake.

    Either way the repository tells, and the commit may be tried again after a look at it.
    """
    if status(error) in MOVED:
        return True
    found: BaseException | None = error
    while found is not None and not isinstance(found, Unanswered):
        found = found.__cause__
    return passes(error) and not (isinstance(found, Unanswered) and found.repeated)


def cause(error: BaseException) -> BaseException:
    """The HTTP failure behind the client's RuntimeError("Error while uploading ..."), else the error itself."""
    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def status(error: BaseException) -> int | None:
    """HTTP status code behind an error; None when there was no answer."""
    found = cause(error)
    if isinstance(found, HfHubHTTPError | httpx2.HTTPStatusError):
        return int(found.response.status_code)
    return None


def passes(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later."""
    code = status(error)
    if code is not None:
        return code in PASSING
    # An answer that is no JSON is the error page of a proxy or of an overloaded server.
    return isinstance(cause(error), httpx2.TransportError | json.JSONDecodeError)


def retry_after_s(error: BaseException) -> float | None:
    """Seconds of the Retry-After header (a number or a date), None when the server named none."""
    found = cause(error)
    if not isinstance(found, HfHubHTTPError | httpx2.HTTPStatusError):
        return None
    text = found.response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def summary(error: BaseException) -> str:
    """One line: status and the server's own words, or the kind of the transport failure."""
    found = cause(error)
    code = status(found)
    if code is not None:
        said = getattr(found, "server_message", None)
        return f"status {code}{f' ({said})' if said else ''}"
    text = " ".join(str(found).split())
    return f"{type(found).__name__}{f' ({text[:300]})' if text else ''}"


def advice(error: BaseException, repository: str, endpoint: str) -> str:
    """What a person can do about it."""
    code = status(error)
    again = "publish again later: the same command goes on from there"
    if code is None:
        found = cause(error)
        if isinstance(found, (httpx2.TransportError, ConnectionError, json.JSONDecodeError, *UNEXPECTED)):
            return (
                f"Is {endpoint} reachable from here and a Hub? HF_ENDPOINT names it, HF_HUB_OFFLINE must not be "
                f"set; then {again}"
            )
        return "Correct what the message names (publish.repository, publish.license, publish.language)"
    by_status = {
        400: "The Hub refuses the content; the message says which part",
        401: f"HF_TOKEN is not accepted there, or {repository} is not visible to it: make a token with write access "
        "and export it as HF_TOKEN",
        402: "The account's plan does not allow this",
        403: f"HF_TOKEN may not write to {repository}: use a token with write access to it, of a user who may "
        "(organisations give roles), or set publish.repository to your own name space",
        404: f"Check publish.repository ({repository}): the user or organisation must exist and be visible to HF_TOKEN",
        409: f"Something else is changing {repository}: {again}",
        412: f"Others commit to {repository} all the time: {again}",
        413: "The Hub does not take files or commits this large: ask for more room, or publish a smaller model",
        429: f"The Hub limits the rate of this account: {again}",
    }
    return by_status.get(code, f"The Hub is in trouble: {again}" if code >= 500 else "See the status code")


def shown(endpoint: str) -> str:
    """The endpoint without user name and password, should the URL carry them."""
    parts = urlsplit(endpoint)
    return endpoint.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else endpoint
