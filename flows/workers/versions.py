"""Versions of workers: each states its own as a variable on the Prefect server, and `podium doctor` compares them.

    python -m flows.workers.versions

compares those of the server in Prefect's settings with the server's and with a checkout's.
"""

import contextlib
import re
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import Worker, WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.variables import Variable

from flows.checks.probes import CheckResult, answer_request, ok, warning
from flows.checks.server import parse_release
from flows.runs.checkout import hash_code
from flows.runs.report import read_revision
from flows.server.api import SERVER_ERRORS
from flows.workers.deploy import POOLS
from ipu_model.core.units import format_count

PREFIX = "podium_worker_"
ORDER = "docs/deploy.md, Upgrades"
UPDATE = "bring both to one revision (git pull && make setup), then restart the worker"


def state_versions(project: Path, pool: str, queues: list[str], name: str) -> None:
    """State the versions of a worker on the server; a later worker of these queues on this host replaces them."""
    commit, _ = read_revision(project)
    versions = {"commit": commit or "", "code": hash_code(project), "prefect": metadata.version("prefect")}
    slug = re.sub(r"[^a-z0-9]+", "_", "_".join([socket.gethostname(), pool, *queues]).lower())
    Variable.set(f"{PREFIX}{slug}", {"worker": name, "host": socket.gethostname(), **versions}, overwrite=True)


def check_workers(project: Path) -> Iterator[CheckResult]:
    """Compare the versions of the workers that are online with those of the server and of a checkout.

    Nothing is compared if the server does not answer, which another check reports.
    """
    with get_client(sync_client=True) as client, contextlib.suppress(ValueError, *SERVER_ERRORS):
        server = client.api_version()
        # Anyone who can reach the server can write them.
        values = [variable.value for variable in client.read_variables() if variable.name.startswith(PREFIX)]
        by_worker = {str(value.get("worker")): value for value in values if isinstance(value, dict)}
        online = [(pool, worker) for pool in POOLS for worker in _read_online(client, pool)]
        ours, (commit, _) = hash_code(project), read_revision(project)
        differ = parse_release(server) < parse_release(client_version := metadata.version("prefect"))
        if differ:
            text = f"the server has Prefect {server}, this host {client_version}: update the server first, then workers"
            yield warning("workers", f"{text} and checkouts ({ORDER})")
        for pool, worker in online:
            for text in _describe_mismatch(by_worker.get(worker.name), ours, commit or "unknown", server):
                differ = True
                yield warning("workers", f"{worker.name} of pool {pool} {text}")
        if online and not differ:
            yield ok("workers", f"{format_count(len(online), 'workers')} online, of the same code as this checkout")


def _read_online(client: SyncPrefectClient, pool: str) -> list[Worker]:
    try:
        workers = client.read_workers_for_work_pool(pool)
    except ObjectNotFound:  # `podium deploy` has not created it
        return []
    return [worker for worker in workers if worker.status == WorkerStatus.ONLINE]


def _describe_mismatch(
    versions: dict[str, Any] | None, ours: dict[str, str], commit: str, server: str
) -> Iterator[str]:
    """Yield what does not fit in the versions of a worker, and what to do."""
    if versions is None:
        yield f"states no versions, as it is of an older Podium: {UPDATE}"
        return
    code = versions.get("code")
    theirs = code if isinstance(code, dict) else {}
    if parts := [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]:
        yield (
            f"on {versions.get('host')} runs other code than this checkout in {', '.join(map(str, parts))} (commit "
            f"{versions.get('commit')}, here {commit}) and refuses runs from here: {UPDATE}"
        )
    prefect = str(versions.get("prefect"))
    if parse_release(prefect) > parse_release(server):
        yield f"has Prefect {prefect}, newer than the server's {server}: update the server first ({ORDER})"


def main() -> None:
    what = 'Compare the versions of workers; read {"project": FOLDER} from standard input.'
    answer_request(what, lambda request: check_workers(Path(request["project"])))


if __name__ == "__main__":
    main()
