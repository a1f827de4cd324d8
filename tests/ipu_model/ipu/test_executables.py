"""Compiled programs on disk: hits forecast, misses explained, locks of crashed runs gone, old ones pruned."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from tiny_jobs import ROOT

from ipu_model.core import files
from ipu_model.core.errors import ConfigError
from ipu_model.core.files import fingerprint, flatten_keys
from ipu_model.ipu import executables
from ipu_model.ipu.executables import cache_root
from ipu_model.ipu.program_folder import ProgramFolder

PARTS: Dict[str, Any] = {
    "mode": "training",
    "poptorch": "3.4.0",
    "geometry": {"micro_batch_size": 4, "accumulation": 16},
    "inputs": [[64, 128]],
}


@pytest.fixture
def said() -> List[str]:
    return []


@pytest.fixture
def open_program(tmp_path: Path, said: List[str]) -> Callable[[Dict[str, Any]], ProgramFolder]:
    return lambda parts: ProgramFolder(tmp_path / "cache", parts, said.append)


def build(open_program: Any, parts: Dict[str, Any] = PARTS, content: bytes = b"program") -> Path:
    """What a job does: open, compile (PopART writes its file), conclude, end."""
    program = open_program(parts)
    (program.path / "1234.popef").write_bytes(content)
    program.report_outcome()
    program.close()
    return program.path


def expectation(program: ProgramFolder) -> Tuple[bool, str]:
    return program.expected, program.lookup


def changed(**geometry: int) -> Dict[str, Any]:
    return {**PARTS, "geometry": {**PARTS["geometry"], **geometry}}


DIFFERENT = {"mode": "training", **{f"key{number}": number for number in range(4)}}


@pytest.mark.parametrize(
    ("parts", "ending"),
    [
        (changed(micro_batch_size=2), "the most similar cached one differs in geometry.micro_batch_size 4 -> 2"),
        ({**PARTS, "poptorch": "3.3.0"}, "poptorch 3.4.0 -> 3.3.0; executables do not load under another SDK"),
        (DIFFERENT, "and 4 more"),  # 4 stored parts are missing, 4 are new, 4 are named
        ({**PARTS, "mode": "another"}, "no executable yet"),
    ],
)
def test_a_miss_names_what_differs_from_the_nearest_stored_one_of_its_mode(
    open_program: Any, parts: Dict[str, Any], ending: str
) -> None:
    build(open_program)
    build(open_program, changed(micro_batch_size=8, accumulation=8))
    hit, why = expectation(open_program(parts))
    assert (hit, why.startswith("miss, ")) == (False, True)
    assert why.endswith(ending)


def test_a_miss_although_a_hit_was_expected_is_said(open_program: Any) -> None:
    folder = build(open_program)
    program = open_program(PARTS)
    assert program.expected
    (folder / "5678.popef").write_bytes(b"another hash")
    assert "A hit was expected" in program.report_outcome()


def test_a_compiler_that_keeps_nothing_is_said(open_program: Any) -> None:
    assert "PopART saved nothing" in open_program(PARTS).report_outcome()


def test_a_record_that_cannot_be_written_does_not_stop_the_run(open_program: Any) -> None:
    program = open_program(PARTS)
    (program.path / "podium.json").mkdir()
    (program.path / "1234.popef").write_bytes(b"program")
    assert "could not be recorded (Is a directory)" in program.report_outcome()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "1234.popef").write_bytes(b""), "1234.popef is empty"),
        (
            lambda folder: (folder / "1234.popef").write_bytes(b"half"),
            "1234.popef is not of the recorded size",
        ),
        (lambda folder: (folder / "1234.popef").unlink(), "1234.popef is missing"),
        (lambda folder: (folder / "podium.json").unlink(), "1234.popef is not recorded"),
        (lambda folder: (folder / "podium.json").write_text("{", encoding="utf-8"), "1234.popef is not recorded"),
    ],
)
def test_what_a_killed_run_left_half_is_discarded_and_said(open_program: Any, damage: Any, told: str) -> None:
    folder = build(open_program)
    damage(folder)
    hit, why = expectation(open_program(PARTS))
    assert (hit, why) == (False, f"miss, damaged: {told}: discarded, to be rebuilt")
    assert list(folder.glob("*.popef")) == []


def test_nothing_is_discarded_while_another_process_uses_the_folder(open_program: Any) -> None:
    first = open_program(PARTS)
    folder = first.path
    (folder / "1234.popef").write_bytes(b"being written by the first")
    (folder / "abc.lock").write_text("0", encoding="utf-8")
    open_program(PARTS)
    assert (folder / "1234.popef").exists()
    assert (folder / "abc.lock").exists()


def test_the_fingerprint_depends_on_values_and_not_on_order() -> None:
    assert fingerprint({"a": 1, "b": {"c": 2}}) == fingerprint({"b": {"c": 2}, "a": 1})
    assert fingerprint(PARTS) != fingerprint(changed(micro_batch_size=2))
    assert flatten_keys({"a": {"b": {"c": 1}}, "d": []}) == {"a.b.c": 1, "d": []}


def test_a_lock_that_a_crash_left_is_removed_and_a_held_one_is_not(open_program: Any, said: List[str]) -> None:
    folder = build(open_program)
    (folder / "dead.lock").write_text("0", encoding="utf-8")
    with (folder / "alive.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        open_program(PARTS)
        assert [path.name for path in folder.glob("*.lock")] == ["alive.lock"]
    assert any("removed 1 stale lock(s)" in text and "dead.lock" in text for text in said)


@pytest.mark.parametrize(
    ("environ", "configured", "root", "told"),
    [
        ({"PODIUM_EXECUTABLE_CACHE": "/host"}, "/config", "/host", "CACHE, not executable_cache_dir /config"),
        ({"PODIUM_EXECUTABLE_CACHE": ""}, "/config", "/config", "executable_cache_dir of the ipu_config"),
        ({}, "", None, "every run compiles"),
        ({}, "disabled", None, "every run compiles"),
        ({}, None, None, "every run compiles"),
    ],
)
def test_the_hosts_cache_wins_over_the_configs_and_one_line_says_so(
    said: List[str], environ: Dict[str, str], configured: Any, root: Any, told: str
) -> None:
    assert cache_root(environ, configured, said.append) == (None if root is None else Path(root))
    assert len(said) == 1
    assert told in said[0]


def test_a_root_that_cannot_be_a_folder_is_refused(tmp_path: Path, said: List[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be used.*PODIUM_EXECUTABLE_CACHE"):
        ProgramFolder(tmp_path / "file", PARTS, said.append)


def prune(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ipu_model.ipu.executables", *arguments, "--root", str(root)]
    return subprocess.run(command, cwd=str(ROOT), capture_output=True, text=True, check=False)


def test_list_shows_what_the_folders_were_built_for(tmp_path: Path, open_program: Any) -> None:
    first, second = build(open_program), build(open_program, changed(micro_batch_size=2))
    out = prune(tmp_path / "cache", "list").stdout
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines[first.name].endswith("geometry.micro_batch_size 4")
    assert lines[second.name].endswith("geometry.micro_batch_size 2")
    assert out.endswith("2 entries, 0.0 MB\n")


def test_prune_removes_what_was_not_used_and_only_when_told(tmp_path: Path, open_program: Any) -> None:
    old, new = build(open_program), build(open_program, changed(micro_batch_size=2))
    ago = time.time() - 40 * 86400
    os.utime(str(old / "podium.json"), (ago, ago))
    dry = prune(tmp_path / "cache", "prune", "--unused-for-days", "30")
    assert old.name in dry.stdout
    assert new.name not in dry.stdout
    assert "nothing was removed" in dry.stdout
    assert old.exists()
    assert prune(tmp_path / "cache", "prune", "--unused-for-days", "30", "--yes").returncode == 0
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [new.name]


def test_prune_knows_the_libraries_of_compiled_functions_too(tmp_path: Path) -> None:
    for name, days in (("advance_lamb-0123", 40), ("advance_lamb-4567", 1), ("half", 90)):
        (tmp_path / f"{name}.so").write_bytes(b"library")
        record = tmp_path / f"{name}.json"
        record.write_text("{}", encoding="utf-8")
        os.utime(str(record), (time.time() - days * 86400,) * 2)
    (tmp_path / "half.json").unlink()  # it is just being written, or no one's
    assert prune(tmp_path, "prune", "--unused-for-days", "30", "--yes").returncode == 0
    left = ["advance_lamb-4567.json", "advance_lamb-4567.so", "half.so"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_use_keeps_an_executable_young(open_program: Any) -> None:
    folder = build(open_program)
    ago = time.time() - 40 * 86400
    os.utime(str(folder / "podium.json"), (ago, ago))
    open_program(PARTS).report_outcome()
    found = executables.list_entries(folder.parent)
    assert executables.select_entries(found, "unused_for_days", 30, time.time()) == []


def test_age_counts_from_the_day_it_was_built_however_often_it_was_used(tmp_path: Path, open_program: Any) -> None:
    old, new = build(open_program), build(open_program, changed(micro_batch_size=2))
    os.utime(str(old / "1234.popef"), (time.time() - 60 * 86400,) * 2)
    found = {entry.path.name: entry for entry in executables.list_entries(tmp_path / "cache")}
    assert executables.select_entries(list(found.values()), "older_than_days", 30, time.time()) == [found[old.name]]
    assert executables.select_entries(list(found.values()), "unused_for_days", 30, time.time()) == []
    assert found[new.name].built_at == pytest.approx(time.time(), abs=60)
    dry = prune(tmp_path / "cache", "prune", "--older-than-days", "30")
    assert dry.stdout.splitlines()[1].split()[0] == old.name
    assert "1 entry, " in dry.stdout
    assert old.exists()


def test_a_job_that_waited_for_prune_gets_a_folder_that_is_there(
    tmp_path: Path, said: List[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / fingerprint(PARTS)
    folder.mkdir(parents=True)
    waits, real = threading.Event(), fcntl.flock

    def flock(stream: Any, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            waits.set()
        real(stream, operation)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    opened: List[ProgramFolder] = []
    with (folder / "podium.held").open("a") as pruner:
        fcntl.flock(pruner, fcntl.LOCK_EX)
        job = threading.Thread(target=lambda: opened.append(ProgramFolder(folder.parent, PARTS, said.append)))
        job.start()
        assert waits.wait(30)
        os.replace(str(folder), str(folder) + ".partial")
        shutil.rmtree(str(folder) + ".partial")
    job.join(30)
    assert (opened[0].path / "podium.held").exists()
    opened[0].close()


def test_a_cache_that_is_too_large_loses_the_least_used_first(tmp_path: Path, open_program: Any) -> None:
    for age, size in ((3, 4), (2, 4), (1, 4)):
        folder = build(open_program, changed(micro_batch_size=age), b"x" * size)
        os.utime(str(folder / "podium.json"), (time.time() - age * 86400,) * 2)
    found = executables.list_entries(tmp_path / "cache")
    going = executables.select_entries(found, "larger_than_gb", 9e-9, time.time())  # 12 bytes are there, 9 may stay
    assert [entry.parts["geometry.micro_batch_size"] for entry in going] == [3]


def test_a_folder_in_use_is_not_pruned(open_program: Any) -> None:
    folder = build(open_program)
    program = open_program(PARTS)
    entry = executables.list_entries(folder.parent)[0]
    assert not executables.remove_entry(entry)
    program.close()
    assert executables.remove_entry(entry)
    assert executables.remove_entry(entry), "another prune was faster"
    assert not folder.exists()


@pytest.mark.parametrize("rule", [[], ["--older-than-days", "-1"], ["--larger-than-gb", "x"]])
def test_a_rule_is_required_and_checked(tmp_path: Path, rule: List[str]) -> None:
    assert prune(tmp_path, "prune", *rule).returncode == 2


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert executables.list_entries(tmp_path) == []
