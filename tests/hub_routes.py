"""How the test Hub finds a route, checks rights, query parameters and the fields of a body."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.hub_store import HubError, Repository

if TYPE_CHECKING:
    from tests.hub_server import HubServer, Request, Response

NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
API = rf"/api/(?P<kind>model|dataset)s/{NAME}"
REVISION = r"(?P<revision>refs/[\w.-]+/[\w.-]+|[^/]+)"
GIT = rf"/(?P<kind>datasets/)?{NAME}"

Handler = Callable[..., "Response"]
ROUTES: list[tuple[str, str, re.Pattern[str], str | None, frozenset[str], Handler]] = []


def serves(
    area: str, method: str, pattern: str, right: str | None = None, query: str = ""
) -> Callable[[Handler], Handler]:
    """Register a route: `right` is read, write, user (any valid token) or None; `query` the parameters it knows."""

    def register(handler: Handler) -> Handler:
        ROUTES.append((area, method, re.compile(pattern), right, frozenset(query.split()), handler))
        return handler

    return register


def route(hub: HubServer, area: str, request: Request) -> Response:
    """Find the route, check rights and query parameters, run it."""
    method = "GET" if request.method == "HEAD" else request.method
    for place, verb, pattern, right, query, handler in ROUTES:
        found = pattern.fullmatch(request.path)
        if place != area or verb != method or not found:
            continue
        unknown = set(request.query) - query
        if unknown:
            raise HubError(400, f"unknown query parameters {sorted(unknown)}")
        pieces: dict[str, Any] = found.groupdict()
        if "kind" in pieces:
            pieces["kind"] = (pieces["kind"] or "models/").rstrip("/").removesuffix("s")
        request.user = authenticate(hub, request)
        if right in ("read", "write"):
            pieces["repository"] = allowed(hub, request, pieces.pop("kind"), pieces.pop("name"), right)
        elif right == "user" and request.user is None:
            raise HubError(401, "Invalid username or password.")
        return handler(hub, request, **pieces)
    hub.failures.append(f"unknown route on {area}: {request.method} {request.path}")
    raise HubError(404, "no such route")


def authenticate(hub: HubServer, request: Request) -> dict[str, str] | None:
    """The user of the token; without a header: None.

    Raises:
        HubError: 401 for a token no one has.
    """
    header = request.headers.get("Authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme != "Bearer" or token not in hub.users:
        raise HubError(401, "Invalid credentials in Authorization header")
    return hub.users[token]


def allowed(hub: HubServer, request: Request, kind: str, name: str, right: str) -> Repository:
    """The repository, if the user may `right` it. What may not be seen is answered as not there."""
    user = request.user
    owner = user is not None and user["name"] == name.split("/")[0]
    try:
        repository = hub.store.find(kind, name)
    except HubError as error:
        raise HubError(404 if user else 401, error.message, error.code) from None
    if repository.private and not owner:
        raise HubError(404 if user else 401, "Repository not found", "RepoNotFound")
    if right == "write" and user is None:
        raise HubError(401, "Invalid username or password.")
    if right == "write" and not (owner and user is not None and user["role"] == "write"):
        raise HubError(403, "Forbidden: you must use a write token to upload to a repository.")
    return repository


def fields(values: Any, required: dict[str, type], optional: dict[str, type] | None = None) -> dict[str, Any]:
    """`values` if it is an object of exactly these fields and types.

    Raises:
        HubError: 400 with what differs.
    """
    known = required | (optional or {})
    if not isinstance(values, dict) or set(values) - set(known) or set(required) - set(values):
        raise HubError(400, f"expected the fields {sorted(known)}, found {values!r}")
    for name, value in values.items():
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise HubError(400, f"{name} must be {known[name].__name__}, found {value!r}")
    return values


def answer(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from tests.hub_server import json_response

    return json_response(values, status, headers)
