"""Calls to the Hub: which failures pass, how long to be patient, and what to tell a person.

The client library retries some calls by itself (without jitter, silently, as long as a Retry-After says) and others
never. Here no single call is retried: a publish may begin again at any point (transaction.py), so after a failure that
passes it waits, says so, and does.
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
    """At each step of a publish."""
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

    Not a transport error, nor one of a status: the client library would repeat the request by itself.
    """


class SingleTryClient(httpx2.Client):
    """Raises `Unanswered` in place of every failure that passes."""

    def __init__(self, patience: Patience, **options: Any) -> None:
        super().__init__(timeout=patience.timeout(patience.read_timeout_s), **options)
        self._patience = patience

    def request(self, method: str, url: Any, **options: Any) -> httpx2.Response:
        """As httpx2's, with more time for commits and files."""
        path = urlsplit(str(url)).path  # never the query: that of an upload URL is a right to write
        if method == "PUT" or COMMIT.match(path):
            options["timeout"] = self._patience.timeout(self._patience.commit_timeout_s)
        try:
            response = super().request(method, url, **options)
            if response.status_code in PASSING:
                hf_raise_for_status(response)
            if method == "GET" and path.startswith("/api/") and response.is_success:
                response.json()  # what is no JSON is the error page of a proxy or of an overloaded server
        except (httpx2.TransportError, HfHubHTTPError, json.JSONDecodeError) as error:
            error.add_note(f"{method} {path}")
            raise Unanswered from error
        return response


def hub_client(endpoint: str, token: str, patience: Patience) -> Any:
    """An HfApi with time-outs (its own default waits for ever), without retries and progress bars.

    Args:
        endpoint: URL of the Hub; empty: the public one.
        token: sent to this endpoint only.
        patience: how long to wait for an answer.
    """
    if XET_SWITCH not in os.environ:
        # Large files go by git LFS: one path for the Hub, its mirrors and our tests, hashed before it is sent.
        # HF_HUB_DISABLE_XET=0 chooses Xet storage.
        constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DISABLE_TELEMETRY = True
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every URL, signatures of upload URLs included
    hooks = get_session().event_hooks
    set_client_factory(lambda: SingleTryClient(patience, event_hooks=hooks, follow_redirects=True))
    return HfApi(endpoint=endpoint.rstrip("/") or None, token=token)


class CallFailed(PublishError):
    """A call failed; the message says what the repository looks like now, and what to do."""

    def __init__(self, text: str, step: str, error: Exception) -> None:
        super().__init__(text)
        self.step, self.error = step, error


@dataclass
class Caller:
    """Names the target in messages, hides the token, and waits before a publish begins again."""

    api: Any
    """The Hub client."""
    repository: str
    patience: Patience
    token: str
    _failed: Counter[str] = field(default_factory=Counter)
    """Step -> how often it failed."""
    _waited_s: float = 0.0

    @property
    def endpoint(self) -> str:
        """Of the Hub, as messages name it."""
        return hide_password(self.api.endpoint)

    def info(self, step: str, revision: str | None, state: str) -> Any:
        """The client's ModelInfo of a revision with the hashes of its files; see `asked`."""
        return self.request(
            step, lambda: self.api.model_info(self.repository, revision=revision, files_metadata=True), state
        )

    def request(self, step: str, call: Callable[[], T], state: str) -> T:
        """The result of `call`.

        Args:
            step: what was being done, for messages.
            state: what the repository looks like if this fails.

        Raises:
            CallFailed: it failed.
        """
        try:
            return call()
        except FAILURES as error:
            raise self.failed(step, error, state) from None

    def failed(self, step: str, error: Exception, state: str) -> CallFailed:
        """One message: what failed, what the repository looks like now, what to do."""
        error = cause(error)
        text = f"{step} failed for {self.repository} at {self.endpoint}: {summary(error)}. Now: {state}. "
        return CallFailed(self._hidden(text + advice(error, self.repository, self.endpoint)), step, error)

    def wait_after(self, failed: CallFailed) -> bool:
        """Wait after a failure, longer every time at the same step, or as long as the server asks; and say so.

        Returns:
            False, without waiting, when it does not pass, or that was the last attempt, or the wait would be longer
            than patience allows.
        """
        error, patience, attempt = failed.error, self.patience, self._failed[failed.step]
        self._failed[failed.step] += 1
        asked = retry_after_s(error)
        seconds = patience.wait_s(attempt) if asked is None else asked + patience.wait_s(0)
        what = next(iter(getattr(error, "__notes__", ())), failed.step)
        last = attempt + 1 >= patience.attempts or self._waited_s + seconds > patience.longest_wait_in_all_s
        if last or not may_pass(error) or (asked or 0.0) > patience.longest_retry_after_s:
            return False
        self._waited_s += seconds
        log.warning(
            "%s: %s; again in %.1f s (attempt %d of %d)",
            what,
            self._hidden(summary(error)),
            seconds,
            attempt + 2,
            patience.attempts,
        )
        patience.sleep(seconds)
        return True

    def _hidden(self, text: str) -> str:
        """`text` without the token, should a server have sent it back."""
        return text.replace(self.token, "***")


def cause(error: Exception) -> Exception:
    """The HTTP failure behind the client's RuntimeError("Error while uploading ..."), else the error itself."""
    while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _answer(error: Exception) -> httpx2.Response | None:
    return error.response if isinstance(error, HfHubHTTPError | httpx2.HTTPStatusError) else None


def status(error: Exception) -> int | None:
    """HTTP status code of an error; None when there was no answer."""
    answer = _answer(error)
    return None if answer is None else int(answer.status_code)


def may_pass(error: Exception) -> bool:
    """Whether the same may succeed a moment later, once the repository was looked at again."""
    # An answer that is no JSON is the error page of a proxy or of an overloaded server.
    return status(error) in PASSING | MOVED or isinstance(error, httpx2.TransportError | json.JSONDecodeError)


def retry_after_s(error: Exception) -> float | None:
    """Seconds of the Retry-After header (a number or a date), None when the server named none."""
    if (answer := _answer(error)) is None:
        return None
    text = answer.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def summary(error: Exception) -> str:
    """One line: status and the server's own words, or the kind of the transport failure."""
    if (code := status(error)) is not None:
        said = getattr(error, "server_message", None)
        return f"status {code}{f' ({said})' if said else ''}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f' ({text[:300]})' if text else ''}"


def advice(error: Exception, repository: str, endpoint: str) -> str:
    """What a person can do about it."""
    code = status(error)
    again = "publish again later: the same command goes on from there"
    if code is None:
        if isinstance(error, (httpx2.TransportError, ConnectionError, json.JSONDecodeError, *UNEXPECTED)):
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


def hide_password(endpoint: str) -> str:
    """The endpoint without user name and password, should the URL carry them."""
    parts = urlsplit(endpoint)
    return endpoint.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else endpoint
