"""Checks of the configured Prefect server, and of proxies and certificates for all connections.

    python -m flows.checks.server

probes the server with the settings that the run itself would use.
"""

import contextlib
import importlib.util
import io
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from urllib.parse import urlsplit

from flows.checks.probes import REMOTE_LIMIT_S, CheckResult, Probe, answer_request, ok, problem, read_limit
from flows.runs.run_request import RunRequest
from flows.server.local_server import URL, may_be_configured, profiles_path
from tasks.stage.errors import InputError

CERTIFICATES = "SSL_CERT_FILE"
PROXIES = ("http", "https", "all")
SCHEMES = ("http", "https", "socks5", "socks5h")
SECONDS = 5.0
NOT_SET = f"{URL} is not set. Set it to a server, for example http://127.0.0.1:4200/api from `make server`"


def check_network(request: RunRequest) -> Iterator[CheckResult]:
    """Check proxies and certificates. Probes of the network make no sense unless they are valid."""
    path = os.environ.get(CERTIFICATES)
    if path:
        try:
            ssl.create_default_context(cafile=path)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or error.reason if isinstance(error, ssl.SSLError) else error.strerror
            text = f"{CERTIFICATES}={path} has no readable certificates ({reason}). Correct it, or unset it"
            yield problem("network", text)
    for kind, url in urllib.request.getproxies().items():
        if kind not in PROXIES:
            continue
        scheme = urlsplit(url if "://" in url else f"http://{url}").scheme
        variable = f"{kind}_proxy (or {kind.upper()}_PROXY)"
        if scheme not in SCHEMES:
            yield problem("network", f"{variable} has the scheme {scheme!r}; valid: {', '.join(SCHEMES)}")
        elif scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
            text = f"{variable} is a SOCKS proxy, which requires the package socksio"
            yield problem("network", f"{text}. Run pip install socksio with this Python, or unset it")


def check_server_setting(request: RunRequest) -> Iterator[CheckResult]:
    """Check that a run on workers has a server."""
    if may_be_configured():
        return
    if request.options.on_workers:
        yield problem("server", f"--on-workers requires a Prefect server. Set {URL} (docs/workers.md)")
    elif request.thorough:
        yield ok("server", f"{URL} is not set: a run starts its own server, which ends with it")


def probe_server(request: RunRequest) -> Iterator[Probe]:
    """Probe the server."""
    if may_be_configured() and not list(check_network(request)):
        yield Probe("server", "flows.checks.server", {"required": request.options.on_workers}, REMOTE_LIMIT_S)
        if request.thorough:
            yield Probe("workers", "flows.workers.versions", {"project": str(request.project)}, REMOTE_LIMIT_S)


def import_prefect() -> None:
    """Import Prefect, which reads its settings.

    Raises:
        InputError: the settings are invalid; names the reason and the files to correct.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # Prefect's own message is less helpful
            import prefect.context  # noqa: F401
    except (ValueError, TypeError, AttributeError, OSError) as error:  # invalid TOML, tables or values
        raise InputError(
            f"Prefect cannot read its settings ({_reason(error)}). Correct {profiles_path()} or the environment "
            "variables PREFECT_*"
        ) from None


def require_server() -> None:
    """Require a configured Prefect server that answers.

    Raises:
        InputError: no server is configured, or it does not answer as one.
    """
    finding = check_server(required=True)
    if finding.level == "problem":
        raise InputError(finding.text)


def check_server(required: bool) -> CheckResult:
    """Check the server in Prefect's settings; a missing one is a problem if it is required."""
    try:
        import_prefect()
    except InputError as error:
        return problem("server", str(error))
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    url = PREFECT_API_URL.value()
    if not url:
        if required:
            return problem("server", NOT_SET)
        return ok("server", f"{URL} is not set: a run starts its own server, which ends with it")
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        version, failure = _fetch_version()
    if not failure:
        if required and parse_release(version) < (needed := parse_release(metadata.version("prefect"))):
            text = f"the Prefect server at {url} is {version}; deployments and workers of this host require Prefect "
            text += f"{needed[0]}.{needed[1]} or newer. Update the server, or set {URL} to another"
            return problem("server", text)
        return ok("server", f"Prefect {version} at {url}")
    where = "" if os.environ.get(URL) else f" (in {profiles_path()} or a file of the project)"
    knob = f"start it or correct {URL}{where}"
    hint = "" if required else ", or unset it: a run then starts its own server"
    return problem("server", f"{URL}={url} {failure}: {knob}{hint}")


def _fetch_version() -> tuple[str, str]:
    """Return the version of the Prefect server, and its problem; one of them is empty."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True, httpx_settings={"timeout": read_limit() or SECONDS}) as client:
            return client.api_version(), ""
    except httpx.TransportError as error:
        return "", f"does not answer ({_reason(error)})"
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            return "", "requires authentication (PREFECT_API_KEY, PREFECT_API_AUTH_STRING; the URL ends in /api)"
        return "", f"answers {error.response.status_code}, unlike a Prefect API (its URL ends in /api)"
    except ValueError:  # not JSON
        return "", "is not a Prefect API (its URL ends in /api)"


def parse_release(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def main() -> None:
    what = 'Check the Prefect server in PREFECT_API_URL; read {"required": BOOL} from standard input.'
    answer_request(what, lambda request: [check_server(request["required"])])


if __name__ == "__main__":
    main()
