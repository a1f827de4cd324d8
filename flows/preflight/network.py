"""Settings of the environment that every connection reads, a run's own to Prefect included."""

from __future__ import annotations

import importlib.util
import os
import ssl
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from flows.preflight.finding import Finding, problem
from flows.run_request import RunRequest

CERTIFICATES = "SSL_CERT_FILE"
PROXIES = ("http", "https", "all")
SCHEMES = ("http", "https", "socks5", "socks5h")


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
