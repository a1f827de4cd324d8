"""As much of a Weights & Biases server as a run needs that continues where it was: one run that is there already."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class WandBServer:
    """Knows one run, whose newest step is `last`.

    Attributes:
        bodies: Everything that was sent to it.
        history: Lines of the run's history that were sent to it.
        exit_code: What the run said at its end.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        self.port = 0
        self.bodies: list[bytes] = []
        self.history: list[dict[str, Any]] = []
        self.exit_code: int | None = None

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """The answer to a request of wandb's process."""
        self.bodies.append(body)
        sent = json.loads(body)
        if path != "/graphql":
            for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
                self.history.append(json.loads(line))
            self.exit_code = sent.get("exitcode", self.exit_code)
            return {}
        project = {"id": "p", "name": "podium", "entity": {"id": "e", "name": "me"}}
        run = {"id": "b", "name": sent.get("variables", {}).get("name"), "project": project, "historyLineCount": 3}
        resumed = {
            **run,
            "config": "{}",
            "wandbConfig": json.dumps({"t": {"value": 1}}),
            "summaryMetrics": "{}",
            "tags": [],
            "historyTail": json.dumps([json.dumps({"_step": self.last})]),
            "eventsTail": "[]",
            "logLineCount": 0,
            "eventsLineCount": 0,
            "displayName": "a run",
        }
        known: dict[str, dict[str, Any]] = {
            "RunResumeStatus": {"model": {**project, "bucket": resumed}},
            "UpsertBucket": {"upsertBucket": {"bucket": {**run, "config": "{}"}, "inserted": False}},
            "CreateRunFiles": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}},
        }
        return {"data": known.get(sent.get("operationName"), {"serverInfo": {"features": []}})}


@contextlib.contextmanager
def running_wandb(last: int, hangs_at: str | None = None) -> Iterator[WandBServer]:
    """Serve on loopback; no request for a path that ends with `hangs_at` gets an answer."""
    known = WandBServer(last)
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if hangs_at is not None and self.path.endswith(hangs_at):
                ended.wait()
            answer = json.dumps(known.answer(self.path, self.rfile.read(int(self.headers["content-length"])))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words: Any) -> None:
            """No one reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield known
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
