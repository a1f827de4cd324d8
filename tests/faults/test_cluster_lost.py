"""A Dask cluster of real processes, and what becomes of a stage when a part of it fails."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from tests.faults.dask_processes import (
    SECONDS,
    DaskProcesses,
    hash_rows,
    make_certificate,
    make_inputs,
    tls_settings,
)
from tests.faults.processes import wait_for

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.faults
PROCESSES = """
from tasks.plan.main import run_main
from tasks.stage.parallel import ordered_map
from tests.tasks.stage.mapped import process_id
run_main(lambda: print("processes:", len(set(ordered_map(process_id, range(20))))))
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The inputs, and the hashes of the rows that local processes make of them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_inputs(folder)
    local = DaskProcesses(folder)
    code, output = local.run_stage()
    assert code == 0, output
    return folder, hash_rows(folder)


@pytest.fixture
def hosts(tmp_path, undisturbed):
    """A folder with the inputs, and a scheduler that soon notices a worker that hangs; no worker yet."""
    for name in ("corpus", "tokenizer"):
        shutil.copytree(undisturbed[0] / name, tmp_path / name)
    started = DaskProcesses(tmp_path, {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "2s"})
    try:
        started.start_scheduler()
        yield started
    finally:
        started.close()


def require_rows(hosts, undisturbed):
    assert hash_rows(hosts.folder) == undisturbed[1]
    assert [path.name for path in hosts.folder.glob("rows*")] == ["rows"]


def require_continues(hosts, undisturbed):
    finished = hosts.finished_shards()
    code, output = hosts.run_stage(name="again")
    assert code == 0, output
    assert not finished or f"reusing {finished} of " in output, output
    require_rows(hosts, undisturbed)


def require_success(hosts, stage):
    assert stage.wait(SECONDS) == 0, hosts.read_log("stage")


def test_the_shard_of_a_killed_worker_is_made_by_another(hosts, undisturbed):
    hosts.start_workers("one", "two")
    stage = hosts.start_stage()
    half, process = hosts.wait_for_writer()
    os.kill(process, signal.SIGKILL)
    assert half.exists(), "it was killed in the middle"
    require_success(hosts, stage)
    require_rows(hosts, undisturbed)


@pytest.mark.parametrize("end_first", [False, True], ids=["during", "after"])
def test_a_worker_that_hung_damages_nothing_when_it_continues(hosts, undisturbed, end_first):
    hosts.start_workers("one", "two")
    stage = hosts.start_stage()
    half, process = hosts.wait_for_writer()
    host = os.getpgid(process)  # the worker, and the process that would end it for not answering
    os.killpg(host, signal.SIGSTOP)
    assert half.exists()
    shard = half.with_name(half.name.partition(".")[0])
    if end_first:
        require_success(hosts, stage)
    else:
        wait_for(shard.exists, SECONDS, f"no other worker makes {shard}")
    os.killpg(host, signal.SIGCONT)
    require_success(hosts, stage)
    name = next(name for name, one in hosts.workers.items() if host == one.pid)
    hosts.read_log(name, "(?s)Registered to.*(Registered to|Closing Nanny|Stopping worker)")
    hosts.wait_for_shards()
    require_rows(hosts, undisturbed)


def test_when_the_scheduler_is_killed_the_same_command_continues(hosts, undisturbed):
    hosts.start_workers("one", "two")
    stage = hosts.start_stage()
    wait_for(lambda: hosts.finished_shards() >= 2, SECONDS, "no two shards are finished")
    hosts.stop(hosts.scheduler)
    assert stage.wait(SECONDS) == 1
    assert re.search(r"\nerror: the scheduler .* went away\b.*\n$", hosts.read_log("stage"))
    assert not (hosts.folder / "rows").exists()
    for worker in hosts.workers.values():
        hosts.stop(worker)
    hosts.start_scheduler()
    hosts.start_workers("three", "four")
    require_continues(hosts, undisturbed)


def test_a_worker_whose_disk_is_full_is_named(hosts, undisturbed):
    folder = hosts.folder / "rows.shards"
    mount = f'hostname small-disk && mount -t tmpfs -o size=256k podium {folder} && exec "$@"'
    isolated = ("unshare", "--mount", "--uts", "sh", "-c", mount, "sh")
    folder.mkdir()
    tried = subprocess.run([*isolated, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a small disk needs the right to mount: {tried.stderr.strip()}")
    hosts.start_workers("full", before=isolated)
    code, output = hosts.run_stage()
    assert code == 1, output
    assert re.search(r"No space left on device.*\bsmall-disk\b", output.splitlines()[-1]), output
    assert [path.name for path in hosts.folder.glob("rows*")] == ["rows.shards"]
    hosts.stop(hosts.workers["full"])
    hosts.start_workers("large")
    require_continues(hosts, undisturbed)


def test_after_ctrl_c_the_cluster_stops_and_the_same_command_continues(hosts, undisturbed):
    hosts.start_workers("one", "two")
    stage = hosts.start_stage()
    wait_for(lambda: hosts.finished_shards() >= 2, SECONDS, "no two shards are finished")
    stage.send_signal(signal.SIGINT)
    assert stage.wait(10) == 130
    assert not (hosts.folder / "rows").exists()
    with distributed.Client(hosts.address, set_as_default=False) as client:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        wait_for(lambda: not any(client.processing().values()), SECONDS, "the workers continue")
    assert left <= 2, "queued tasks were cancelled"
    hosts.wait_for_shards()
    require_continues(hosts, undisturbed)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls_admits_only_certificates_of_the_own_authority(tmp_path):
    for name, authority in (("authority", None), ("host", "authority"), ("stranger", None)):
        make_certificate(tmp_path, name, authority)
    hosts = DaskProcesses(tmp_path, tls_settings(tmp_path, "host"))
    try:
        hosts.start_scheduler("tls")
        hosts.start_workers("one", "two")
        assert hosts.run_stage(PROCESSES) == (0, "processes: 2\n")
        none = dict.fromkeys(tls_settings(tmp_path, "stranger"))
        for settings in (*(tls_settings(tmp_path, "stranger", one) for one in ("authority", "stranger")), none):
            hosts.settings |= settings
            code, output = hosts.run_stage(PROCESSES)
            assert (code, output.count("\n")) == (1, 1), output
            assert "certificates" in output
    finally:
        hosts.close()
