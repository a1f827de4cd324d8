"""A Dask cluster of real processes: what it computes, whom it refuses, and what becomes of a failure."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.stage import cluster, exchange, process
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.parallel import ordered_map, useful_workers
from tests.tasks.stage.mapped import dies_on_three, fails_on_three, process_id, slow_first

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with make_cluster() as local:
        yield local.scheduler_address


def make_cluster(**scheduler: Any) -> Any:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    return distributed.LocalCluster(**options, scheduler_kwargs=scheduler)


@pytest.fixture
def on_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed.Client(address) as client:
        client.wait_for_workers(2, timeout=120)  # a test before this one may have ended them
    monkeypatch.setenv(cluster.CLUSTER, address)


def dies_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


@pytest.mark.usefixtures("on_cluster")
def test_results_come_in_order_from_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(ordered_map(slow_first, range(7))) == [item * 10 for item in range(7)]
    processes = set(ordered_map(process_id, range(20)))
    assert os.getpid() not in processes
    assert len(processes) == process.MAPS[-1].processes == 2
    with pytest.raises(InputError, match="three was found"):
        list(ordered_map(fails_on_three, range(8)))
    monkeypatch.setenv("PODIUM_WORKERS", "1")
    assert [useful_workers(items, least=5) for items in (4, 5)] == [1, 2], "the cores of this host do not count"
    assert list(ordered_map(process_id, range(2), workers=1)) == [os.getpid()] * 2, "little work stays here"


def test_work_that_ends_every_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_cluster(allowed_failures=0) as local:  # as if a worker had ended several times already
        monkeypatch.setenv(cluster.CLUSTER, local.scheduler_address)
        with pytest.raises(PodiumError, match="ended its worker several times"):
            list(ordered_map(dies_on_three, range(8)))


def test_a_worker_with_several_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(protocol="tcp", **options) as local:
        monkeypatch.setenv(cluster.CLUSTER, local.scheduler_address)
        with pytest.raises(PodiumError, match="has 2 threads"):
            list(ordered_map(process_id, range(4)))
    monkeypatch.setenv(cluster.CLUSTER, "tcp://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"^PODIUM_DATA_CLUSTER: .*podium\[cluster\]"):
        list(ordered_map(process_id, range(4)))


@pytest.mark.usefixtures("on_cluster")
def test_workers_of_other_versions_without_the_project_or_the_url_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: type[PodiumError], words: str) -> None:
        with pytest.raises(error, match=words):
            list(ordered_map(process_id, range(4)))
        monkeypatch.undo()
        monkeypatch.setenv(cluster.CLUSTER, address)

    versions, address = cluster.read_versions(), os.environ[cluster.CLUSTER]
    other = {**versions, "numpy": "1.0", "Podium": "another"}
    monkeypatch.setattr(cluster, "read_versions", lambda: other)
    refuse(PodiumError, r"tcp://.* has Podium \w{12} instead of another, numpy .* instead of 1.0: ")
    with pytest.raises(PodiumError, match=r"a worker on .* has numpy .* instead of 1.0"):
        cluster.run_checked({**versions, "numpy": "1.0"}, process_id, 1)  # as one that joined later does itself
    monkeypatch.setattr(cluster, "describe_worker", lambda marker: (versions, False))
    refuse(PodiumError, "a folder that all workers mount")
    monkeypatch.setenv(exchange.FOLDER, "nothing://bucket")
    refuse(ParamsError, "PODIUM_DATA_FOLDER='nothing://bucket'")


@dataclass(frozen=True)
class Copier:
    folder: Path

    def copy(self, source: Path) -> tuple[str, Path]:
        target = self.folder / source.name / "copy"
        target.parent.mkdir()
        target.write_bytes(source.read_bytes())
        return str(source), target


@pytest.mark.usefixtures("on_cluster")
def test_workers_without_the_project_exchange_files_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(exchange.FOLDER, (tmp_path / "shared").as_uri())
    sources = [tmp_path / name for name in "abc"]
    for source in sources:
        source.write_text(source.name)
    copies = list(ordered_map(Copier(tmp_path / "made").copy, sources, folder=tmp_path / "made"))
    for source, (read, copy) in zip(sources, copies, strict=True):
        assert read != str(source)
        assert copy == tmp_path / "made" / source.name / "copy"
        assert copy.read_text() == source.name


@pytest.mark.parametrize(
    ("address", "insecure", "used"),
    [
        ("tcp://10.0.0.1:8786", "", False),
        ("tcp://10.0.0.1:8786", "1", True),
        ("10.0.0.1:8786", "", False),
        ("tls://", "", False),
        ("tls://10.0.0.1:8786", "", True),
        ("tcp://127.0.0.1:8786", "", True),
        ("", "", True),
    ],
)
def test_addresses_without_encryption_are_refused(monkeypatch: Any, address: str, insecure: str, used: bool) -> None:
    monkeypatch.setenv(cluster.CLUSTER, address)
    monkeypatch.setenv(cluster.INSECURE, insecure)
    if used:
        assert cluster.cluster_address() == (address or None)
    else:
        with pytest.raises(ParamsError, match="PODIUM_DATA_CLUSTER"):
            cluster.cluster_address()


@pytest.mark.usefixtures("on_cluster")
def test_the_work_of_a_killed_worker_is_done_by_another(tmp_path: Path) -> None:
    assert list(ordered_map(dies_once, [str(tmp_path / "died")] * 3)) == [7, 7, 7]
