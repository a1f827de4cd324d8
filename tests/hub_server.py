"""A local server that speaks the Hub's protocol over real HTTP, strictly.

Names, types, order and rights are checked; whatever the real Hub would not take, and every unknown route, is refused
AND recorded in `failures`, which a test asserts to be empty. Two ports, as on the real Hub: the Hub itself, and a
storage host for large files that must never see a token.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests import hub_reads, hub_routes, hub_writes  # noqa: F401 (importing them registers their routes)
from tests.hub_store import HubError, HubStore


@dataclass
class Request:
    """One request as the routes see it: decoded path pieces, query, headers, body."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Any
    body: bytes
    user: dict[str, str] | None = None

    def json(self) -> Any:
        if not self.headers.get("Content-Type", "").startswith(("application/json", "application/vnd.git-lfs+json")):
            raise HubError(400, f"Content-Type {self.headers.get('Content-Type')} is not JSON")
        try:
            return json.loads(self.body)
        except ValueError:
            raise HubError(400, "the body is not JSON") from None


@dataclass
class Response:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match."""

    method: str
    pattern: str
    times: int = 1
    after: int = 0
    """Matching requests that are let through first."""
    status: int | None = None
    """Answer with this status instead of handling the request."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "injected fault"}'
    drop: str | None = None
    """before: close the connection unhandled; after: handle, then close without an answer."""
    hook: Callable[[], None] | None = None
    """Called before the request is handled as usual (a race)."""


class HubServer:
    """`with HubServer(folder) as hub:` serves on 127.0.0.1, free ports; `hub.endpoint` is its URL."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = HubStore(folder)
        self.users: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str, int]] = []
        """(method, path, status) in order of arrival; status 0 = the connection was dropped."""
        self.tokens: list[tuple[str, str | None]] = []
        """(path, Authorization header) of the same requests."""
        self.failures: list[str] = []
        self.faults: list[Fault] = []
        self.granted: dict[str, tuple[str, int]] = {}
        """Signature of an upload URL -> (SHA-256, size) it is good for."""
        self.unverified: set[str] = set()
        """SHA-256 of uploads no one confirmed yet: they do not count as there."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(area)) for area in ("hub", "storage")]
        self.endpoint, self.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def add_user(self, token: str, name: str = "user", role: str = "write") -> str:
        self.users[token] = {"name": name, "role": role}
        return token

    def fault(self, method: str, pattern: str, **how: Any) -> Fault:
        self.faults.append(Fault(method, pattern, **how))
        return self.faults[-1]

    def sent(self, method: str, pattern: str) -> list[int]:
        """Status of every request whose method and path match."""
        return [code for verb, path, code in self.requests if verb == method and re.search(pattern, path)]

    def __enter__(self) -> HubServer:
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def answer(self, area: str, request: Request) -> Response | None:
        """The response, or None to drop the connection."""
        fault = self._next_fault(request)
        if fault is not None and fault.status is not None:
            return Response(fault.status, fault.body, {"Content-Type": "application/json", **fault.headers})
        if fault is not None and fault.drop == "before":
            return None
        if fault is not None and fault.hook is not None:
            fault.hook()
        try:
            with self.store.lock:
                response = hub_routes.route(self, area, request)
        except HubError as error:
            if error.status == 400:
                self.failures.append(f"{request.method} {request.path}: {error.message}")
            headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
            response = json_response({"error": error.message}, error.status, headers)
        return None if fault is not None and fault.drop == "after" else response

    def _next_fault(self, request: Request) -> Fault | None:
        with self.store.lock:
            for fault in self.faults:
                if fault.times and fault.method == request.method and re.search(fault.pattern, request.path):
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def _handler(hub, area: str) -> type[BaseHTTPRequestHandler]:  # noqa: N805 (self is the handler's)
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet: two would wait 40 ms for each other
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, TimeoutError):  # the client went away
                    self.close_connection = True

            def _serve(self) -> None:
                url = urlsplit(self.path)
                body = self._read_body()
                request = Request(
                    self.command, unquote(url.path), parse_qs(url.query, keep_blank_values=True), self.headers, body
                )
                index = len(hub.requests)
                hub.requests.append((self.command, unquote(url.path), 0))
                hub.tokens.append((unquote(url.path), self.headers.get("Authorization")))
                response = hub.answer(area, request)
                if response is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                hub.requests[index] = (self.command, unquote(url.path), response.status)
                self.send_response(response.status)
                for name, value in {"Content-Length": str(len(response.body)), **response.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(response.body)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

            def _read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                data = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def json_response(values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(values).encode()
    return Response(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})


@contextmanager
def running_hub(folder: Path) -> Iterator[HubServer]:
    """A server that fails the test when the protocol was broken."""
    with HubServer(folder) as hub:
        yield hub
        assert hub.failures == [], hub.failures
