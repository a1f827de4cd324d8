"""Compiled programs on disk: hits forecast, misses explained, damage gone, old ones pruned, copies checked."""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from tiny_ipu import ipu_job, ipu_runtime, make_batches
from tiny_jobs import ROOT

from ipu_model.core import files
from ipu_model.core.errors import ConfigError, IpuFailure, LoadFailure
from ipu_model.core.files import fingerprint
from ipu_model.ipu.executables import cache_root, list_entries, remove_entry
from ipu_model.ipu.program_folder import ProgramFolder

PARTS = {
    "mode": "training",
    "poptorch": "3.4.0",
    "geometry": {"micro_batch_size": 4, "accumulation": 16},
    "inputs": [[64, 128]],
}
CONTENT = b"a program of twenty-seven b"
DAY = 86400


@pytest.fixture
def lines():
    return []


@pytest.fixture
def open_program(tmp_path, lines):
    return lambda parts=PARTS, shared=None: ProgramFolder(tmp_path / "cache", parts, lines.append, shared)


@pytest.fixture
def shared(tmp_path, lines):
    """What a compile_only job on another host left: one program and its record."""
    other = ProgramFolder(tmp_path / "other-host", PARTS, lines.append)
    (other.path / "1234.popef").write_bytes(CONTENT)
    other.report_outcome()
    other.export(tmp_path / "executables" / "phase1")
    other.close()
    return tmp_path / "executables" / "phase1"


def build(open_program, parts=PARTS, content=CONTENT, unused_days=0):
    """What a job does: open, compile (PopART writes its file), conclude, end."""
    program = open_program(parts)
    (program.path / "1234.popef").write_bytes(content)
    program.report_outcome()
    program.close()
    os.utime(str(program.path / "podium.json"), (time.time() - unused_days * DAY,) * 2)
    return program.path


def changed(**geometry):
    return {**PARTS, "geometry": {**PARTS["geometry"], **geometry}}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (changed(micro_batch_size=2), "geometry.micro_batch_size 4 -> 2"),
        ({**PARTS, "poptorch": "3.3.0"}, "poptorch 3.4.0 -> 3.3.0; executables do not load under another SDK"),
        ({"mode": "training", **{f"key{number}": number for number in range(4)}}, "and 4 more"),
        ({**PARTS, "mode": "another"}, "no executable yet"),
    ],
)
def test_a_miss_names_what_differs_from_the_nearest_stored_one_of_its_mode(open_program, parts, why):
    build(open_program)
    build(open_program, changed(micro_batch_size=8, accumulation=8))
    program = open_program(parts)
    assert not program.expected
    assert program.lookup.startswith("miss, ")
    assert program.lookup.endswith(why)


def test_what_popart_does_otherwise_is_reported_and_a_record_that_cannot_be_written_stops_no_run(open_program):
    assert "PopART saved nothing" in open_program().report_outcome()
    folder = build(open_program)
    program = open_program()
    assert program.expected
    (folder / "5678.popef").write_bytes(b"another hash")
    assert "A hit was expected" in program.report_outcome()
    unwritten = open_program(changed(micro_batch_size=2))
    (unwritten.path / "podium.json").mkdir()
    (unwritten.path / "1234.popef").write_bytes(CONTENT)
    assert "Is a directory" in unwritten.report_outcome()


@pytest.mark.parametrize(
    ("damage", "why", "travels"),
    [
        (lambda folder: (folder / "1234.popef").write_bytes(CONTENT[:4]), "is not of the recorded size", False),
        (lambda folder: (folder / "1234.popef").unlink(), "is missing", False),
        (lambda folder: (folder / "podium.json").unlink(), "is not recorded", False),
        (lambda folder: (folder / "podium.json").write_text("{"), "is not recorded", True),
        (lambda folder: (folder / "1234.popef").write_bytes(CONTENT[:-1] + b"x"), "is different in SHA-256", True),
    ],
)
def test_what_a_killed_run_left_half_is_discarded_and_replaced_by_what_travels(
    open_program, shared, damage, why, travels
):
    folder = build(open_program)
    damage(folder)
    program = open_program(PARTS, shared if travels else None)
    assert f"1234.popef {why}" in program.lookup
    assert program.expected == travels
    assert [path.read_bytes() for path in folder.glob("*.popef")] == [CONTENT] * travels


def test_nothing_is_changed_while_another_process_uses_the_folder(open_program, shared):
    first = open_program()
    folder = first.path
    (folder / "abc.lock").write_text("0", encoding="utf-8")
    open_program(PARTS, shared)
    assert list(folder.glob("*.popef")) == []
    (folder / "1234.popef").write_bytes(b"being written by the first")
    open_program(PARTS, shared)
    assert (folder / "1234.popef").read_bytes() == b"being written by the first"
    assert (folder / "abc.lock").exists()


def test_a_lock_that_a_crash_left_is_removed_and_a_held_one_is_not(open_program, lines):
    folder = build(open_program)
    (folder / "dead.lock").write_text("0", encoding="utf-8")
    with (folder / "alive.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        open_program()
        assert [path.name for path in folder.glob("*.lock")] == ["alive.lock"]
    assert any("dead.lock" in text for text in lines)


@pytest.mark.parametrize(
    ("host", "configured", "job", "root"),
    [
        ("/host", "/config", "/executables/phase1", "/host"),
        ("", "/config", None, "/config"),
        (None, "/config", "/executables/phase1", "/config"),
        (None, "", "/executables/phase1", "/executables/.live"),
        (None, "", None, None),
        (None, "disabled", None, None),
    ],
)
def test_the_hosts_cache_wins_over_the_configs_and_one_line_says_so(lines, host, configured, job, root):
    environ = {} if host is None else {"PODIUM_EXECUTABLE_CACHE": host}
    assert cache_root(environ, configured, lines.append, job) == (None if root is None else Path(root))
    assert len(lines) == 1


def test_a_root_that_cannot_be_a_folder_is_refused(tmp_path, open_program):
    (tmp_path / "cache").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="PODIUM_EXECUTABLE_CACHE"):
        open_program()


def executables(root, *arguments):
    command = [sys.executable, "-m", "ipu_model.ipu.executables", *arguments, "--root", str(root)]
    return subprocess.run(command, cwd=str(ROOT), capture_output=True, text=True, check=False)


def test_list_and_prune_know_what_was_built_for_what_and_when_it_was_used(tmp_path, open_program):
    """Use keeps a program young; its age counts from the day it was built."""
    root = tmp_path / "cache"
    old, new = build(open_program, unused_days=40), build(open_program, changed(micro_batch_size=2))
    listed = {line.split()[0]: line for line in executables(root, "list").stdout.splitlines()}
    assert listed[old.name].endswith("geometry.micro_batch_size 4")
    assert listed[new.name].endswith("geometry.micro_batch_size 2")
    dry = executables(root, "prune", "--unused-for-days", "30").stdout
    assert (old.name in dry, new.name in dry, old.exists()) == (True, False, True)
    open_program().report_outcome()
    os.utime(str(old / "1234.popef"), (time.time() - 60 * DAY,) * 2)
    assert old.name not in executables(root, "prune", "--unused-for-days", "30").stdout
    assert executables(root, "prune", "--older-than-days", "30", "--yes").returncode == 0
    assert [path.name for path in root.iterdir()] == [new.name]
    for rule in ([], ["--older-than-days", "-1"], ["--larger-than-gb", "x"]):
        assert executables(root, "prune", *rule).returncode == 2


def test_prune_knows_the_libraries_of_compiled_functions_too(tmp_path):
    for name, days in (("advance_lamb-0123", 40), ("advance_lamb-4567", 1), ("half", 90)):
        (tmp_path / f"{name}.so").write_bytes(b"library")
        record = tmp_path / f"{name}.json"
        record.write_text("{}", encoding="utf-8")
        os.utime(str(record), (time.time() - days * DAY,) * 2)
    (tmp_path / "half.json").unlink()  # it is just being written, or no one's
    (tmp_path / "photos").mkdir()  # no one's
    assert executables(tmp_path, "prune", "--unused-for-days", "30", "--yes").returncode == 0
    left = ["advance_lamb-4567.json", "advance_lamb-4567.so", "half.so", "photos"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_job_that_waited_for_prune_gets_a_folder_that_is_there(tmp_path, open_program, monkeypatch):
    folder = tmp_path / "cache" / fingerprint(PARTS)
    folder.mkdir(parents=True)
    waits, real = threading.Event(), fcntl.flock

    def flock(stream, operation):
        if operation == fcntl.LOCK_SH:
            waits.set()
        real(stream, operation)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    opened = []
    with (folder / "podium.held").open("a") as pruner:
        fcntl.flock(pruner, fcntl.LOCK_EX)
        job = threading.Thread(target=lambda: opened.append(open_program()))
        job.start()
        assert waits.wait(30)
        os.replace(str(folder), str(folder) + ".partial")
        shutil.rmtree(str(folder) + ".partial")
    job.join(30)
    assert (opened[0].path / "podium.held").exists()
    opened[0].close()


def test_a_cache_that_is_too_large_loses_the_least_used_first_and_none_that_is_in_use(tmp_path, open_program):
    oldest, *younger = (build(open_program, changed(micro_batch_size=age), b"1234", age) for age in (3, 2, 1))
    [going, *_] = list_entries(tmp_path / "cache")
    too_large = ["prune", "--larger-than-gb", "9e-9", "--yes"]  # 12 bytes are there, 9 may stay
    program = open_program(changed(micro_batch_size=3))
    executables(tmp_path / "cache", *too_large)
    assert oldest.exists()
    program.close()
    executables(tmp_path / "cache", *too_large)
    assert [path.exists() for path in (oldest, *younger)] == [False, True, True]
    assert remove_entry(going), "another prune was faster"


def rewritten(shared, **changes):
    record = json.loads((shared / "podium.json").read_text(encoding="utf-8"))
    (shared / "podium.json").write_text(json.dumps({**record, **changes}), encoding="utf-8")


def test_a_restored_program_is_a_hit_and_the_next_run_needs_the_source_no_more(shared, open_program):
    record = json.loads((shared / "podium.json").read_text(encoding="utf-8"))
    assert record["parts"]["geometry.accumulation"] == 16
    assert record["sha256"] == {"1234.popef": hashlib.sha256(CONTENT).hexdigest()}
    first = open_program(PARTS, shared)
    assert first.expected
    assert str(shared) in first.lookup
    assert (first.path / "1234.popef").read_bytes() == CONTENT
    assert "nothing was compiled" in first.report_outcome()
    assert first.origin == f"restored from {shared}"
    first.close()
    shutil.rmtree(str(shared))
    second = open_program(PARTS, shared)
    assert second.expected
    assert "nothing was compiled" in second.report_outcome()
    assert second.origin == "loaded from the cache"


def add_bad(shared):
    (shared / "9999.popef").write_bytes(b"second")
    hashes = {"1234.popef": hashlib.sha256(CONTENT).hexdigest(), "9999.popef": "0" * 64}
    rewritten(shared, executables={"1234.popef": len(CONTENT), "9999.popef": 6}, sha256=hashes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: (x / "1234.popef").write_bytes(CONTENT[:-1] + b"x"), "1234.popef does not match its SHA-256"),
        (add_bad, "9999.popef does not match its SHA-256"),
        (lambda x: (x / "1234.popef").unlink(), "1234.popef is missing"),
        (lambda x: (x / "podium.json").unlink(), "has no program"),
        (lambda x: (x / "podium.json").write_text("{", encoding="utf-8"), "podium.json is damaged"),
        (lambda x: shutil.rmtree(str(x)), "does not exist"),
        (lambda x: rewritten(x, sha256={}), "1234.popef has no SHA-256"),
        (lambda x: rewritten(x, executables={"../1234.popef": 9}), "../1234.popef is not the name of a program"),
        (lambda x: rewritten(x, parts={**PARTS, "poptorch": "3.5.0"}), "poptorch 3.5.0 -> 3.4.0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(shared, open_program, change, why):
    """Nothing of it is in the live folder, and what is built is kept."""
    change(shared)
    program = open_program(PARTS, shared)
    assert not program.expected
    assert why in program.lookup
    assert [path.name for path in program.path.iterdir()] == ["podium.held"]
    (program.path / "1234.popef").write_bytes(CONTENT)
    program.report_outcome()
    assert program.origin.startswith("built: ")
    assert why in program.origin


def test_a_full_disk_costs_the_copy_and_not_the_job(shared, open_program, monkeypatch):
    real = os.replace

    def replace(source, target):
        if str(target).endswith(".popef"):
            raise OSError(28, "No space left on device", target)
        real(source, target)

    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace)
        opened = open_program(PARTS, shared)
    assert "No space left on device" in opened.lookup
    assert [path.name for path in opened.path.iterdir()] == ["podium.held"]


REASON = "the executable does not fit the gateway mode of this target"


@pytest.fixture
def run_carried(tmp_path, monkeypatch, poptorch, record):
    """run_carried(loads, reason): the first update of a job, whose program a compile stage built without IPUs.

    Its programs load where `loads` their record in the cache; it returns their origin and what the job said.
    """
    monkeypatch.delenv("PODIUM_EXECUTABLE_CACHE", raising=False)
    [batch] = make_batches("question_answering", 1, 16)
    job = ipu_job(tmp_path, "question_answering", executables=str(tmp_path / "executables" / "squad-finetune"))
    with closing(ipu_runtime(dataclasses.replace(job, compile_only=True))) as ahead:
        ahead.compile(batch)
    shutil.rmtree(str(tmp_path / "executables" / ".live"))
    compile_program = poptorch.PoplarExecutor.compile

    def run(loads, reason=REASON):
        def compile_and_load(self, *inputs):
            compile_program(self, *inputs)
            if not loads(record()[-1]["cache"]["hit"]):
                error = poptorch.Error(f"'poplar_runtime_error': {reason}")
                error.type, error.message, error.location = "poplar_runtime_error", reason, "Compiler.cpp"
                raise error

        lines = []
        with monkeypatch.context() as patched, closing(ipu_runtime(job, lines)) as runtime:
            patched.setattr(poptorch.PoplarExecutor, "compile", compile_and_load)
            runtime.compile(batch)
            assert runtime.train_step(batch, 1e-3).loss > 0
        return runtime.program, [line for line in lines if line.startswith("training")]

    return run


def test_a_program_that_the_attached_ipus_do_not_load_is_compiled_once_for_them(run_carried):
    """PopART finds a program of the offline target by the same key, and poplar::Engine::load raises."""
    program, (hit, miss, ready) = run_carried(lambda hit: not hit)
    assert program.startswith("built: ")
    assert REASON in program
    assert hit.startswith("training: hit, 1 file")
    assert miss.startswith("training: miss, ")
    assert "built, 1 file" in ready
    assert "A hit was expected" not in ready
    assert run_carried(lambda hit: True)[0] == "loaded from the cache"


def test_what_does_not_load_names_the_cause_and_hardware_that_fails_leaves_the_program(run_carried, record):
    before = len(record())
    with pytest.raises(IpuFailure, match="lost the connection"):
        run_carried(lambda hit: False, "Fabric error: connection not established: CONNECTION_KILL, device 3")
    assert [x["cache"]["hit"] for x in record()[before:]] == [True]
    assert run_carried(lambda hit: True)[0] == "loaded from the cache"
    before = len(record())
    with pytest.raises(LoadFailure, match=REASON):
        run_carried(lambda hit: False)
    assert [x["cache"]["hit"] for x in record()[before:]] == [True, False]
