"""Data preparation on a Dask cluster, whose scheduler PODIUM_DATA_CLUSTER names (docs/pretrain.md).

The workers of a cluster unpickle what they are sent, so anyone who reaches them may run code there: connections use TLS
with certificates unless the scheduler is on this host. A worker computes nothing before its versions are compared.
"""

import contextlib
import functools
import hashlib
import ipaddress
import logging
import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ipu_model.core.files import partial_path
from tasks.stage.errors import ParamsError, PodiumError, require_packages
from tasks.stage.exchange import FOLDER, Exchange, open_exchange, open_files, run_packed

CLUSTER, INSECURE = "PODIUM_DATA_CLUSTER", "PODIUM_DATA_CLUSTER_INSECURE"
PACKAGES = ("numpy", "pandas", "pyarrow", "tokenizers")
"""Packages that affect the bytes."""
ROOT = Path(__file__).parents[2]
Item = TypeVar("Item")
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


def cluster_address() -> str | None:
    """Return the address of the scheduler in PODIUM_DATA_CLUSTER; None if it is not set.

    Raises:
        ParamsError: the address is invalid, or its connections would not be encrypted.
    """
    text = os.environ.get(CLUSTER, "").strip()
    address = urlsplit(text)
    if not text or address.scheme == "tls" and address.hostname:
        return text or None
    if address.scheme != "tcp" or not address.hostname:
        raise ParamsError(f"{CLUSTER}={text!r} is not an address. Set it to tls://HOST:PORT, or unset it")
    if not _is_loopback(address.hostname) and os.environ.get(INSECURE) != "1":
        raise ParamsError(
            f"{CLUSTER}={text!r} is not encrypted, and anyone who reaches a worker may run code there. Use "
            f"tls://HOST:PORT with certificates, or set {INSECURE}=1 in a network that only you can reach"
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Pool:
    """Processes that work on the items of a map."""

    submit: Callable[[Callable[[Any], Any], Any], Future[Any]]
    """Starts a function of an item."""
    count: Callable[[], int]
    """Counts the present processes."""
    receive: Callable[[Any], Any]
    """Returns the function's result from what the future holds."""


@contextlib.contextmanager
def open_cluster(address: str, folder: Path | None) -> Iterator[Pool]:
    """Yield the workers of the cluster, whose functions write to `folder`.

    Raises:
        PodiumError: there is no scheduler or worker, one of its workers has other versions or does not see the project,
            the cluster was lost, or a task ended its worker several times.
    """
    require_packages("cluster", ("distributed",), CLUSTER)
    import distributed

    for name in ("distributed", "tornado"):  # their errors are raised here too
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, set_as_default=False, name="podium")
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        if "TLS" in str(error):
            raise PodiumError(
                f"the scheduler at {CLUSTER}={address} and this host do not accept each other's certificates. Set "
                "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, __CLIENT__CERT and __CLIENT__KEY to those of the cluster"
            ) from None
        raise PodiumError(f"no Dask scheduler answers at {CLUSTER}={address} ({error}). Start it") from None
    with client:
        logger.info("using the Dask cluster %s; dashboard: %s", address, client.dashboard_link)
        try:
            client.wait_for_workers(1, timeout=30)
            executor, count = client.get_executor(pure=False), functools.partial(_count_threads, client)
            submit = functools.partial(executor.submit, run_checked, read_versions())
            try:
                with open_exchange(folder) as exchange:
                    _check_workers(client, exchange)
                    if exchange is None:
                        yield Pool(submit, count, lambda result: result)
                    else:
                        run = functools.partial(run_packed, exchange.url)
                        yield Pool(lambda *task: submit(run, exchange.pack(task)), count, exchange.unpack)
            finally:
                with contextlib.suppress(OSError):  # the scheduler is gone
                    executor.shutdown(wait=False)
        except distributed.KilledWorker as error:
            raise PodiumError(
                f"a part of the work ended its worker several times, most likely killed for memory ({error}). Give the "
                "workers more memory and run again: finished parts are kept"
            ) from None
        except CancelledError:
            raise _lost_scheduler() from None
        except TimeoutError:
            raise PodiumError(f"the Dask cluster {address} has no worker: start some and run again") from None


def _count_threads(client: Any) -> int:
    """Return the number of threads of the present workers; raises PodiumError if the scheduler is gone."""
    try:
        return sum(client.nthreads().values())
    except OSError:
        raise _lost_scheduler() from None


def _lost_scheduler() -> PodiumError:
    return PodiumError("the scheduler of the Dask cluster went away. Start it and run again: finished parts are kept")


def _check_workers(client: Any, exchange: Exchange | None) -> None:
    """Refuse workers with other versions, and workers that do not see this folder or that of the exchange."""
    shared = str(Path.cwd()) if exchange is None else exchange.url
    marker = f"{shared}/{partial_path(Path('.podium')).name}"
    files, path = open_files(marker)
    files.pipe_file(path, marker.encode())
    try:
        answers = client.run(describe_worker, marker, on_error="return")
    finally:
        files.rm_file(path)
    unseen = f"does not see {shared}: put the project into a folder that all workers mount, or set {FOLDER} to a URL"
    problems = [
        f"{worker} {problem}" for worker, answer in sorted(answers.items()) if (problem := _compare(answer, unseen))
    ]
    problems += [
        f"{worker} has {threads} threads: start it with --nthreads 1"
        for worker, threads in sorted(client.nthreads().items())
        if threads > 1
    ]
    if problems:
        raise PodiumError(f"the Dask cluster cannot be used: {'; '.join(problems)}")


def _compare(worker: Any, unseen: str) -> str | None:
    """Return what makes a worker unusable; None if nothing does."""
    if not isinstance(worker, tuple):
        return f"cannot import Podium ({worker}): start it in a folder and environment with the same version"
    versions, is_shared = worker
    if problem := compare_versions(versions, read_versions()):
        return problem
    return None if is_shared else unseen


def compare_versions(worker: dict[str, str], expected: dict[str, str]) -> str | None:
    """Return how the versions of a worker differ from the expected ones; None if they are equal."""
    differ = [
        f"{name} {worker.get(name)} instead of {expected[name]}"
        for name in expected
        if worker.get(name) != expected[name]
    ]
    return f"has {', '.join(differ)}: install the same versions" if differ else None


def describe_worker(marker: str) -> tuple[dict[str, str], bool]:
    """Return the versions of this process, and whether it sees the file `marker`, a path or URL."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        files, path = open_files(marker)
        return read_versions(), files.cat_file(path) == marker.encode()
    except (OSError, ImportError, ValueError):
        return read_versions(), False


@functools.cache
def read_versions() -> dict[str, str]:
    """Return the versions of everything that affects the bytes; that of Podium is the hash of its code."""
    code = hashlib.sha256()
    for path in sorted(path for package in ("ipu_model", "tasks") for path in (ROOT / package).rglob("*.py")):
        code.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Podium": code.hexdigest()[:12], "Python": python, **{name: metadata.version(name) for name in PACKAGES}}


def run_checked(expected: dict[str, str], function: Callable[[Item], Result], item: Item) -> Result:
    """Return `function(item)` on a worker that may have joined after the check.

    Raises:
        PodiumError: its versions differ, or its disk or memory is full. Other errors of `function` are passed on.
    """
    if problem := compare_versions(read_versions(), expected):
        raise PodiumError(f"a worker on {platform.node()} {problem}")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        return function(item)
    except (MemoryError, OSError) as error:
        what, path = getattr(error, "strerror", None) or str(error) or "out of memory", getattr(error, "filename", None)
        raise PodiumError(
            f"{what}{f' ({path})' if path else ''} on the worker {platform.node()}: give it space or memory, and run "
            "again; nothing half-written was kept"
        ) from None
