"""A Dask cluster of real processes, and what becomes of a stage when a part of it fails."""

import os
import shutil
import signal
import subprocess

import pytest

from tests.faults import table
from tests.faults.dask_processes import (
    SECONDS,
    DaskProcesses,
    hash_rows,
    make_certificate,
    make_inputs,
    tls_settings,
    wait_for,
)

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.faults
ROW = "Dask cluster"
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
    if hash_rows(hosts.folder) != undisturbed[1]:
        raise table.Lost("the rows differ")
    if left := [path for path in hosts.folder.glob("rows*") if path.name != "rows"]:
        raise table.Leak(f"{left} is left")


def require_continues(hosts, undisturbed, finished):
    """The same command reuses the finished shards."""
    code, output = hosts.run_stage(name="again")
    assert code == 0, output
    if finished and f"reusing {finished} of " not in output:
        raise table.Lost(f"{finished} shards were finished: {output}")
    require_rows(hosts, undisturbed)


def test_the_shard_of_a_killed_worker_is_made_by_another(hosts, undisturbed):
    with table.case(ROW, "worker killed in the middle of a shard"):
        hosts.start_workers("one", "two")
        stage = hosts.start_stage()
        half, process = hosts.wait_for_writer()
        os.kill(process, signal.SIGKILL)
        assert half.exists(), "it was killed in the middle"
        assert stage.wait(SECONDS) == 0, hosts.read_log("stage", "(?s)(.*)")
        require_rows(hosts, undisturbed)


@pytest.mark.parametrize("end_first", [False, True], ids=["during", "after"])
def test_a_worker_that_hung_damages_nothing_when_it_continues(hosts, undisturbed, end_first):
    with table.case(ROW, f"worker hangs, continues {'after' if end_first else 'during'} the stage"):
        hosts.start_workers("one", "two")
        stage = hosts.start_stage()
        half, process = hosts.wait_for_writer()
        host = os.getpgid(process)  # the worker, and the process that would end it for not answering
        os.killpg(host, signal.SIGSTOP)
        assert half.exists()
        shard = half.with_name(half.name.partition(".")[0])
        if end_first:
            assert stage.wait(SECONDS) == 0, hosts.read_log("stage", "(?s)(.*)")
        else:
            wait_for(shard.exists, lambda: f"no other worker makes {shard}")
        os.killpg(host, signal.SIGCONT)
        assert stage.wait(SECONDS) == 0, hosts.read_log("stage", "(?s)(.*)")
        name = next(name for name, one in hosts.workers.items() if host == one.pid)
        hosts.read_log(name, "(?s)Registered to.*(Registered to|Closing Nanny|Stopping worker)")
        wait_for(lambda: not list(hosts.folder.glob("rows.shards/*/*.partial")), lambda: "a shard is unfinished")
        require_rows(hosts, undisturbed)


def test_when_the_scheduler_is_killed_the_same_command_continues(hosts, undisturbed):
    with table.case(ROW, "scheduler killed"):
        hosts.start_workers("one", "two")
        stage = hosts.start_stage()
        wait_for(lambda: hosts.finished_shards() >= 2, lambda: hosts.read_log("stage", "(?s)(.*)"))
        hosts.stop(hosts.scheduler)
        assert stage.wait(SECONDS) == 1
        output = hosts.read_log("stage", "(?s)(.*)")
        message = (
            "error: the scheduler of the Dask cluster went away. Start it and run again: finished parts are kept\n"
        )
        assert output.endswith(message)
        assert not (hosts.folder / "rows").exists()
        for worker in hosts.workers.values():
            hosts.stop(worker)
        finished = hosts.finished_shards()
        assert finished >= 2
        hosts.start_scheduler()
        hosts.start_workers("three", "four")
        require_continues(hosts, undisturbed, finished)


def test_a_worker_whose_disk_is_full_is_named(hosts, undisturbed):
    folder = hosts.folder / "rows.shards"
    mount = f'hostname small-disk && mount -t tmpfs -o size=256k podium {folder} && exec "$@"'
    isolated = ("unshare", "--mount", "--uts", "sh", "-c", mount, "sh")
    folder.mkdir()
    tried = subprocess.run([*isolated, "true"], capture_output=True, text=True)
    if tried.returncode:
        table.record(ROW, table.NOT_RUN, "disk of a worker full", note="no right to mount")
        pytest.skip(f"a small disk needs the right to mount: {tried.stderr.strip()}")
    with table.case(ROW, "disk of a worker full"):
        hosts.start_workers("full", before=isolated)
        code, output = hosts.run_stage()
        assert code == 1, output
        assert "No space left on device" in output.splitlines()[-1]
        assert "on the worker small-disk: give it space" in output.splitlines()[-1]
        assert [path.name for path in hosts.folder.glob("rows*")] == ["rows.shards"]
        hosts.stop(hosts.workers["full"])
        hosts.start_workers("large")
        require_continues(hosts, undisturbed, hosts.finished_shards())


def test_after_ctrl_c_the_cluster_stops_and_the_same_command_continues(hosts, undisturbed):
    with table.case(ROW, "Ctrl-C"):
        hosts.start_workers("one", "two")
        stage = hosts.start_stage()
        wait_for(lambda: hosts.finished_shards() >= 2, lambda: hosts.read_log("stage", "(?s)(.*)"))
        stage.send_signal(signal.SIGINT)
        assert stage.wait(10) == 130
        assert hosts.read_log("stage", "(?s)(.*)").endswith("again to continue\n")
        assert not (hosts.folder / "rows").exists()
        with distributed.Client(hosts.address, set_as_default=False) as client:
            left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
            wait_for(lambda: not any(client.processing().values()), lambda: "the workers continue")
        assert left <= 2, "queued tasks were cancelled"
        wait_for(lambda: not list(hosts.folder.glob("rows.shards/*/*.partial")), lambda: "a shard is unfinished")
        require_continues(hosts, undisturbed, hosts.finished_shards())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls_admits_only_certificates_of_the_own_authority(tmp_path):
    for name, authority in (("authority", None), ("host", "authority"), ("stranger", None)):
        make_certificate(tmp_path, name, authority)
    hosts = DaskProcesses(tmp_path, tls_settings(tmp_path, "host"))
    with table.case(ROW, "TLS"):
        try:
            hosts.start_scheduler("tls")
            hosts.start_workers("one", "two")
            assert hosts.run_stage(PROCESSES) == (0, "processes: 2\n")
            for authority in ("authority", "stranger"):
                hosts.environment |= tls_settings(tmp_path, "stranger", authority)
                code, output = hosts.run_stage(PROCESSES)
                assert code == 1
                assert output.count("\n") == 1, output
                assert "do not accept each other's certificates. Set DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in output
            for name in tls_settings(tmp_path, "stranger"):
                del hosts.environment[name]
            code, output = hosts.run_stage(PROCESSES)
            assert (code, output.count("\n")) == (1, 1), output
            assert "certificates" in output
        finally:
            hosts.close()
