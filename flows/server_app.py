"""What uvicorn serves for one run (flows/own_server.py): Prefect's server, loaded without a look for garbage."""

from __future__ import annotations

from typing import Any

from tasks.project import garbage


def create_app() -> Any:
    """Prefect's application."""
    with garbage.loading():
        from prefect.server.api import server

        return server.create_app()
