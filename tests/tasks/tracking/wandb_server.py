"""Servers on loopback, and as much of one of Weights & Biases as a run needs that is there already and continues."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[str, bytes], tuple[int, bytes] | None]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Serve on a port; a request for whose path and body there is None gets no answer."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found = answer(self.path, self.rfile.read(int(self.headers.get("content-length") or 0)))
            if found is None:
                ended.wait()
            else:
                self.send_response(found[0])
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(found[1])))
                self.end_headers()
                self.wfile.write(found[1])

        do_GET = do_CONNECT = do_POST  # noqa: N815

        def log_message(self, *words: Any) -> None:
            """No one reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


class WandBServer:
    """Knows one run, whose newest step is `last`, and keeps what it is sent."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.bodies: list[bytes] = []
        self.history: list[dict[str, Any]] = []
        self.exit_code: int | None = None

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        self.bodies.append(body)
        sent = json.loads(body)
        if path != "/graphql":
            for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
                self.history.append(json.loads(line))
            self.exit_code = sent.get("exitcode", self.exit_code)
            return {}
        project = {"id": "p", "name": "podium", "entity": {"id": "e", "name": "me"}}
        run = {"id": "b", "name": sent.get("variables", {}).get("name"), "project": project, "historyLineCount": 3}
        resumed = {**run, "config": "{}", "summaryMetrics": "{}", "tags": [], "displayName": "a run"}
        resumed |= {"wandbConfig": json.dumps({"t": {"value": 1}}), "eventsTail": "[]"}
        resumed |= {"historyTail": json.dumps([json.dumps({"_step": self.last})])}
        resumed |= {"logLineCount": 0, "eventsLineCount": 0}
        known: dict[str, dict[str, Any]] = {
            "RunResumeStatus": {"model": {**project, "bucket": resumed}},
            "UpsertBucket": {"upsertBucket": {"bucket": {**run, "config": "{}"}, "inserted": False}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
        }
        return {"data": known.get(sent.get("operationName"), {"serverInfo": {"features": []}})}


@contextlib.contextmanager
def running_wandb(last: int, hangs_at: str | None = None) -> Iterator[tuple[WandBServer, int]]:
    """A server and its port; no request for a path that ends with `hangs_at` gets an answer."""
    known = WandBServer(last)

    def answer(path: str, body: bytes) -> tuple[int, bytes] | None:
        hangs = hangs_at is not None and path.endswith(hangs_at)
        return None if hangs else (200, json.dumps(known.answer(path, body)).encode())

    with serving(answer) as port:
        yield known, port
