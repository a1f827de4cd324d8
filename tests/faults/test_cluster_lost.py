"""A Dask cluster, started with Dask's own commands, and what becomes of a stage when a part of it fails."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from ipu_model.core.files import sha256_of
from tests.faults.processes import wait_for
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import random_texts, word_tokenizer, write_corpus

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.faults
SECONDS = 180.0
TLS = "DASK_DISTRIBUTED__COMM__TLS__"
ROLES = ("SCHEDULER", "WORKER", "CLIENT")
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
STAGE = """
import logging
from pathlib import Path
from tasks.plan.main import run_main
from tasks.records import shards
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tests.tasks.pretraining.row_inputs import pretrain_params

logging.basicConfig(level=logging.INFO, format="%(message)s")
shards.SHARD_BYTES = 100_000
params = pretrain_params(held_out_fraction=0.1, duplicates=30)
run_main(lambda: print(write_pretrain_rows(params, "phase1", Path("corpus"), Path("tokenizer"), Path("rows"), 2)))
"""
"""Rows of a corpus in a dozen shards, each of which takes a few tenths of a second."""
PROCESSES = """
from tasks.plan.main import run_main
from tasks.stage.parallel import ordered_map
from tests.tasks.stage.mapped import process_id
run_main(lambda: print("processes:", len(set(ordered_map(process_id, range(20))))))
"""


class Hosts:
    """Scheduler, workers and stages of one test; all of them end with it."""

    def __init__(self, folder, **settings):
        self.folder, self.settings, self.address = folder, settings, ""
        self.processes, self.workers = [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            self.stop(process)

    def start(self, words, name, before=()):
        """Start Python with these words; its output goes to <name>.log."""
        places = {"PYTHONPATH": str(ROOT), **({"PODIUM_DATA_CLUSTER": self.address} if self.address else {})}
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*before, sys.executable, *words],
                cwd=self.folder,
                env={**os.environ, **places, **self.settings},
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_scheduler(self, protocol="tcp"):
        words = ["-m", "distributed.cli.dask_scheduler", "--host", f"{protocol}://127.0.0.1:0", "--no-dashboard"]
        self.scheduler = self.start(words, "scheduler")
        self.address = self.read_log("scheduler", r"Scheduler at:\s+(\S+)")

    def start_workers(self, *names, before=()):
        for name in names:
            command = ["-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-dashboard"]
            command += ["--local-directory", str(self.folder / f"{name}-files")]
            self.workers[name] = self.start(command, name, before)
        for name in names:
            self.read_log(name, "(Registered to)")

    def read_log(self, name, pattern="(?s)(.*)"):
        """Wait for a line in a log; return its group."""
        path = self.folder / f"{name}.log"
        wait_for(lambda: re.search(pattern, path.read_text()) is not None, SECONDS, f"{pattern} is not in {path}")
        return re.search(pattern, path.read_text())[1]

    def start_stage(self):
        """Start the stage with two workers."""
        self.start_workers("one", "two")
        return self.start(["-c", STAGE], "stage")

    def run_stage(self, code=STAGE):
        """Run the stage with the cluster, or with processes of this host if there is none."""
        return self.start(["-c", code], "stage").wait(SECONDS), self.read_log("stage")

    def wait_for_writer(self):
        """Wait until a worker is in the middle of a shard; return its unfinished folder and its process."""
        writing = []

        def look():
            halves = [path for path in self.folder.glob("rows.shards/*/shard-*.partial") if any(path.glob("rows/*"))]
            named = [(half, re.search(r"-(\d+)\.partial$", half.name)) for half in halves]
            writing[:] = [(half, int(name[1])) for half, name in named if name]
            return writing

        wait_for(look, SECONDS, "no worker writes a shard")
        return writing[0]

    def finished_shards(self):
        return len(list(self.folder.glob("rows.shards/*/shard-?????/shard.json")))

    def wait_for_two_shards(self):
        wait_for(lambda: self.finished_shards() >= 2, SECONDS, "no two shards are finished")

    def wait_for_shards(self):
        wait_for(lambda: not list(self.folder.glob("rows.shards/*/*.partial")), SECONDS, "a shard is unfinished")

    def stop(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def hash_rows(self):
        rows = self.folder / "rows"
        return {str(path.relative_to(rows)): sha256_of(path) for path in sorted(rows.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The inputs, and the hashes of the rows that local processes make of them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    word_tokenizer(folder / "tokenizer")
    write_corpus(folder / "corpus", random_texts(9000), rows_per_group=100)
    local = Hosts(folder)
    code, output = local.run_stage()
    assert code == 0, output
    return folder, local.hash_rows()


@pytest.fixture
def hosts(tmp_path, undisturbed):
    """A folder with the inputs, and a scheduler that soon notices a worker that hangs; no worker yet."""
    for name in ("corpus", "tokenizer"):
        shutil.copytree(undisturbed[0] / name, tmp_path / name)
    with Hosts(tmp_path, DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="2s") as started:
        started.start_scheduler()
        yield started


def require_rows(hosts, undisturbed):
    assert hosts.hash_rows() == undisturbed[1]
    assert [path.name for path in hosts.folder.glob("rows*")] == ["rows"]


def require_continues(hosts, undisturbed):
    assert not (hosts.folder / "rows").exists()
    finished = hosts.finished_shards()
    code, output = hosts.run_stage()
    assert code == 0, output
    assert not finished or f"reusing {finished} of " in output, output
    require_rows(hosts, undisturbed)


def require_success(hosts, stage):
    assert stage.wait(SECONDS) == 0, hosts.read_log("stage")


def test_the_shard_of_a_killed_worker_is_made_by_another(hosts, undisturbed):
    stage = hosts.start_stage()
    half, process = hosts.wait_for_writer()
    os.kill(process, signal.SIGKILL)
    assert half.exists(), "it was killed in the middle"
    require_success(hosts, stage)
    require_rows(hosts, undisturbed)


@pytest.mark.parametrize("end_first", [False, True], ids=["during", "after"])
def test_a_worker_that_hung_damages_nothing_when_it_continues(hosts, undisturbed, end_first):
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
    name = next(name for name, worker in hosts.workers.items() if host == worker.pid)
    hosts.read_log(name, "(?s)Registered to.*(Registered to|Closing Nanny|Stopping worker)")
    hosts.wait_for_shards()
    require_rows(hosts, undisturbed)


def test_when_the_scheduler_is_killed_the_same_command_continues(hosts, undisturbed):
    stage = hosts.start_stage()
    hosts.wait_for_two_shards()
    hosts.stop(hosts.scheduler)
    assert stage.wait(SECONDS) == 1
    assert re.search(r"\nerror: the scheduler .* went away\b.*\n$", hosts.read_log("stage"))
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
    stage = hosts.start_stage()
    hosts.wait_for_two_shards()
    stage.send_signal(signal.SIGINT)
    assert stage.wait(10) == 130
    with distributed.Client(hosts.address, set_as_default=False) as client:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        wait_for(lambda: not any(client.processing().values()), SECONDS, "the workers continue")
    assert left <= 2, "queued tasks were cancelled"
    hosts.wait_for_shards()
    require_continues(hosts, undisturbed)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls_admits_only_certificates_of_the_own_authority(tmp_path):
    for name, authority in (("authority", None), ("host", "authority"), ("stranger", None)):
        signed = [] if authority is None else ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"]
        names = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        subprocess.run(["openssl", "req", "-x509", *KEY, *signed, *names], cwd=tmp_path, check=True)

    def certified(name, authority):
        files = {
            f"{role}__{kind}": f"{name}.{end}" for role in ROLES for kind, end in (("KEY", "key"), ("CERT", "pem"))
        }
        files["CA_FILE"] = f"{authority}.pem"
        return {f"{TLS}{setting}": str(tmp_path / file) for setting, file in files.items()}

    with Hosts(tmp_path, **certified("host", "authority")) as hosts:
        hosts.start_scheduler("tls")
        hosts.start_workers("one", "two")
        assert hosts.run_stage(PROCESSES) == (0, "processes: 2\n")
        for hosts.settings in (certified("stranger", "authority"), certified("stranger", "stranger"), {}):
            code, output = hosts.run_stage(PROCESSES)
            assert (code, output.count("\n")) == (1, 1), output
            assert "certificates" in output
