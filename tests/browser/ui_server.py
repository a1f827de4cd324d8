"""A Prefect server with its pages."""

from tests.flows.workers.worker_hosts import Server

WAIT_MS = 30_000
"""What a page of the server may take on a busy host; it is waited for no longer than it takes."""


class UiServer(Server):
    def environment(self):
        return {**super().environment(), "PREFECT_SERVER_UI_ENABLED": "true", "PREFECT_UI_API_URL": self.url}

    @property
    def pages(self):
        return self.url.removesuffix("/api")
