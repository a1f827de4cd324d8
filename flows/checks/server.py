"""The Prefect server that a run reports to, where one is named, and the settings that every connection reads.

    python -m flows.checks.server

asks it, with the settings that the run itself would use.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from urllib.parse import urlsplit

from flows.checks.probes import FAR_S, Finding, Question, ok, problem
from flows.runs.run_request import RunRequest
from flows.server.local_server import URL, may_be_named, profiles_path
from tasks.stage.errors import InputError
from tasks.stage.process import takes_no_words

CERTIFICATES = "SSL_CERT_FILE"
PROXIES = ("http", "https", "all")
SCHEMES = ("http", "https", "socks5", "socks5h")
SECONDS = 5.0
NONE_IS_NAMED = f"{URL} is not set: name the server, for example http://127.0.0.1:4200/api, which `make server` starts"


def settings(request: RunRequest) -> Iterator[Finding]:
    """Proxies and certificates."""
    for text in _troubles():
        yield problem("network", text)


def is_usable() -> bool:
    """Whether it is worth asking anybody."""
    return not list(_troubles())


def _troubles() -> Iterator[str]:
    path = os.environ.get(CERTIFICATES)
    if path:
        try:
            ssl.create_default_context(cafile=path)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or error.reason if isinstance(error, ssl.SSLError) else error.strerror
            yield f"{CERTIFICATES}={path} holds no certificates that can be read ({reason}): correct it, or unset it"
    for kind, url in urllib.request.getproxies().items():
        if kind not in PROXIES:
            continue
        scheme, variable = urlsplit(url if "://" in url else f"http://{url}").scheme, f"{kind}_proxy"
        if scheme not in SCHEMES:
            yield f"{variable} (or {variable.upper()}) names a proxy of the kind {scheme!r}: {', '.join(SCHEMES)} exist"
        elif scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
            yield (
                f"{variable} (or {variable.upper()}) names a SOCKS proxy, which needs the package socksio: "
                "pip install socksio into this Python, or unset it"
            )


def known(request: RunRequest) -> Iterator[Finding]:
    """That a run which sends stages to workers needs one."""
    if may_be_named():
        return
    if request.on_workers:
        yield problem("server", f"--on-workers needs a Prefect server: name it in {URL} (docs/workers.md)")
    elif request.curious:
        yield ok("server", f"none is named ({URL}): a run has one of its own, which ends with it")


def asked(request: RunRequest) -> Iterator[Question]:
    """The server itself."""
    if may_be_named() and is_usable():
        yield Question("server", "flows.checks.server", {"required": request.on_workers}, FAR_S)


def load_settings() -> None:
    """Import Prefect, which reads its settings then.

    Raises:
        InputError: it cannot; names the reason and the places to correct.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Prefect's own complaint says less
            import prefect.context  # noqa: F401
    except (ValueError, TypeError, AttributeError, OSError) as error:  # no TOML, other tables, no such value
        raise InputError(
            f"Prefect cannot read its settings ({_reason(error)}): correct {profiles_path()} or the variables "
            "PREFECT_* of the environment"
        ) from None


def require_server() -> None:
    """Refuse to go on without a Prefect server that is named and answers.

    Raises:
        InputError: none is named, or it does not answer as one.
    """
    finding = look(required=True)
    if finding.level == "problem":
        raise InputError(finding.text)


def look(required: bool) -> Finding:
    """Ask the server that Prefect's settings name.

    Args:
        required: whether a temporary one will not do.
    """
    try:
        load_settings()
    except InputError as error:
        return problem("server", str(error))
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    url = PREFECT_API_URL.value()
    if not url:
        if required:
            return problem("server", NONE_IS_NAMED)
        return ok("server", f"none is named ({URL}): a run has one of its own, which ends with it")
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        version, complaint = _ask(url)
    if not complaint:
        return ok("server", f"Prefect {version} at {url}")
    place = "" if os.environ.get(URL) else f" (of {profiles_path()} or a file of the project)"
    knob = f"start it or correct {URL}{place}"
    own = "" if required else ", or unset it: a run then has a server of its own"
    return problem("server", f"{URL}={url} {complaint}: {knob}{own}")


def _ask(url: str) -> tuple[str, str]:
    """Return the version of the Prefect server at `url`, and what is wrong with it; one of them is empty."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True, httpx_settings={"timeout": SECONDS}) as client:
            return client.api_version(), ""
    except httpx.TransportError as error:
        return "", f"does not answer ({_reason(error)})"
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            return "", "asks for a right (PREFECT_API_KEY, PREFECT_API_AUTH_STRING); it ends in /api"
        return "", f"answers {error.response.status_code}, as no Prefect API does; it ends in /api"
    except ValueError:  # no JSON
        return "", "is no Prefect API, which ends in /api"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def main() -> None:
    takes_no_words("Ask the Prefect server that PREFECT_API_URL names whether it is one.")
    print(json.dumps(asdict(look(json.load(sys.stdin)["required"]))), flush=True)


if __name__ == "__main__":
    main()
