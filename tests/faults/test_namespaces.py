"""Preparation of text on a cluster whose hosts are network namespaces with a shared folder: the bytes of one host."""

import os
import shutil
import subprocess

import pytest

from ipu_model.core.files import read_json, sha256_of, write_text
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml, yaml_text
from tests.faults.dask_processes import DaskProcesses, make_certificate, tls_settings
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import random_texts

pytest.importorskip("distributed", reason="needs the extra cluster")
pytestmark = pytest.mark.faults
NAMES = ("scheduler", "one", "two", "client")
STAGES = """
import json
import sys
from tasks.corpus import corpus, documents
from tasks.pretraining.rows import pretrain_rows, row_builder
from tasks.records import shards
from tasks.stage.process import MAPS
from tasks.vocabulary import tokenizer

row_builder.CHUNKS_FOR_PROCESSES = 0
documents.PIECE_BYTES = shards.SHARD_BYTES = 200_000
corpus.main()
tokenizer.main()
for phase in ("phase1", "phase2"):
    sys.argv = ["", phase]
    pretrain_rows.main()
with open("maps.json", "w") as stream:
    json.dump([[one.items, one.processes] for one in MAPS if one.processes > 1], stream)
"""


@pytest.fixture
def namespaces():
    """Four network namespaces on one bridge; the words that start a command in each."""
    prefix = f"podium-{os.getpid()}"
    inside = {name: f"{prefix}-{name}" for name in NAMES}

    def run(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        try:
            for name in inside.values():
                run("netns", "add", name)
                run("-n", name, "link", "set", "lo", "up")
            bridge = inside["scheduler"]
            run("-n", bridge, "link", "add", "bridge", "type", "bridge")
            run("-n", bridge, "addr", "add", "10.77.0.1/24", "dev", "bridge")
            run("-n", bridge, "link", "set", "bridge", "up")
            for number, name in enumerate(NAMES[1:], 2):
                port = f"port{number}"
                run("-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside[name])
                run("-n", bridge, "link", "set", port, "master", "bridge", "up")
                run("-n", inside[name], "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
                run("-n", inside[name], "link", "set", "eth0", "up")
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces are not permitted: {getattr(error, 'stderr', error)}")
        yield {name: ("ip", "netns", "exec", space) for name, space in inside.items()}
    finally:
        for space in inside.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def make_project(folder):
    folder.mkdir()
    shutil.copytree(ROOT / "inputs", folder / "inputs")
    (folder / "text.txt").write_text("\n\n".join(random_texts(8000) + random_texts(50)), encoding="utf-8")
    values = ["corpus.source=files", "corpus.path=text.txt", "corpus.quality.exact_duplicates=true"]
    write_text(folder / "params.yaml", yaml_text(resolve(read_yaml(ROOT / "params.yaml"), None, values)))
    return folder


def hash_data(folder):
    data = folder / "data"
    return {str(path.relative_to(data)): sha256_of(path) for path in data.rglob("*") if path.is_file()}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_hosts_in_namespaces_make_the_bytes_of_one_host(tmp_path, namespaces):
    one_host = DaskProcesses(make_project(tmp_path / "local"))
    code, output = one_host.run_stage(STAGES)
    assert code == 0, output

    for name, authority in (("authority", None), ("host", "authority")):
        make_certificate(tmp_path, name, authority)
    hosts = DaskProcesses(make_project(tmp_path / "shared"), tls_settings(tmp_path, "host"))
    try:
        hosts.start_scheduler("tls", "10.77.0.1", namespaces["scheduler"])
        for name in ("one", "two"):
            hosts.start_workers(name, before=namespaces[name])
        code, output = hosts.run_stage(STAGES, before=namespaces["client"])
        assert code == 0, output
    finally:
        hosts.close()
    assert "using the Dask cluster tls://10.77.0.1" in output
    maps = read_json(hosts.folder / "maps.json")
    assert len(maps) >= 3
    assert all(processes == 2 for _, processes in maps)
    local = hash_data(one_host.folder)
    assert {name.split("/")[0] for name in local} >= {"corpus", "tokenizer", "rows"}
    assert hash_data(hosts.folder) == local
