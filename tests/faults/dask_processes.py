"""A Dask cluster started with Dask's own commands, and stages that use it as processes of their own."""

import os
import re
import signal
import subprocess
import sys

from ipu_model.core.files import sha256_of
from tests.faults.processes import wait_for
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import random_texts, word_tokenizer, write_corpus

SECONDS = 180.0
TLS = "DASK_DISTRIBUTED__COMM__TLS__"
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


def make_inputs(folder):
    word_tokenizer(folder / "tokenizer")
    write_corpus(folder / "corpus", random_texts(9000), rows_per_group=100)


def hash_rows(folder):
    rows = folder / "rows"
    return {str(path.relative_to(rows)): sha256_of(path) for path in sorted(rows.rglob("*")) if path.is_file()}


class DaskProcesses:
    """Scheduler, workers and stages of one test; all of them end with it."""

    def __init__(self, folder, settings=None):
        self.folder, self.settings, self.address = folder, settings or {}, ""
        self.processes, self.workers = [], {}

    def start(self, words, name, before=()):
        """Start Python with these words; its output goes to <name>.log."""
        settings = {name: value for name, value in self.settings.items() if value is not None}
        places = {"PYTHONPATH": str(ROOT), **({"PODIUM_DATA_CLUSTER": self.address} if self.address else {})}
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*before, sys.executable, *words],
                cwd=self.folder,
                env={**os.environ, **places, **settings},
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

    def start_stage(self, code=STAGE, name="stage"):
        """Start the stage with the cluster, or with processes of this host if there is none."""
        return self.start(["-c", code], name)

    def run_stage(self, code=STAGE, name="stage"):
        return self.start_stage(code, name).wait(SECONDS), self.read_log(name)

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

    def wait_for_shards(self):
        wait_for(lambda: not list(self.folder.glob("rows.shards/*/*.partial")), SECONDS, "a shard is unfinished")

    def stop(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self):
        for process in self.processes:
            self.stop(process)


def make_certificate(folder, name, authority=None):
    signed = [] if authority is None else ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key"]
    names = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    subprocess.run(["openssl", "req", "-x509", *KEY, *signed, *names], cwd=folder, check=True, capture_output=True)


def tls_settings(folder, name, authority="authority"):
    settings = {f"{TLS}CA_FILE": str(folder / f"{authority}.pem")}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        settings[f"{TLS}{role}__KEY"] = str(folder / f"{name}.key")
        settings[f"{TLS}{role}__CERT"] = str(folder / f"{name}.pem")
    return settings
