"""Programs that travel: copied and checked before they are used, refused with the reason, and what then happens."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from ipu_model.ipu.executables import cache_root
from ipu_model.ipu.program_folder import ProgramFolder

PARTS: Dict[str, Any] = {"mode": "training", "poptorch": "3.4.0", "inputs": [(64, 128)], "config": {"accumulation": 16}}
CONTENT = b"a program of twenty-seven b"


@pytest.fixture
def said() -> List[str]:
    return []


@pytest.fixture
def shared(tmp_path: Path, said: List[str]) -> Path:
    """What a compile_only job on another host left: one program and its record."""
    other = ProgramFolder(tmp_path / "other-host", PARTS, said.append)
    (other.path / "1234.popef").write_bytes(CONTENT)
    other.report_outcome()
    other.export(tmp_path / "executables" / "phase1")
    other.close()
    return tmp_path / "executables" / "phase1"


@pytest.fixture
def open_program(tmp_path: Path, shared: Path, said: List[str]) -> Callable[[Dict[str, Any]], ProgramFolder]:
    """A cache of this host, opened again as by another process."""
    return lambda parts: ProgramFolder(tmp_path / "live", parts, said.append, shared)


def rewritten(shared: Path, **changes: Any) -> None:
    record = json.loads((shared / "podium.json").read_text(encoding="utf-8"))
    (shared / "podium.json").write_text(json.dumps({**record, **changes}), encoding="utf-8")


def test_what_travels_is_the_programs_and_what_they_were_built_for(shared: Path) -> None:
    assert sorted(path.name for path in shared.iterdir()) == ["1234.popef", "podium.json"]
    record = json.loads((shared / "podium.json").read_text(encoding="utf-8"))
    assert record["parts"] == {
        "mode": "training",
        "poptorch": "3.4.0",
        "inputs": [[64, 128]],
        "config.accumulation": 16,
    }
    assert record["sha256"] == {"1234.popef": hashlib.sha256(CONTENT).hexdigest()}


def test_a_restored_program_is_a_hit_and_the_next_run_needs_the_source_no_more(shared: Path, open_program: Any) -> None:
    first = open_program(PARTS)
    assert first.expected
    assert first.lookup.startswith(f"hit, 1 file, 0.0 MB from {shared}, checked and put into ")
    assert (first.path / "1234.popef").read_bytes() == CONTENT
    assert first.report_outcome() == "loaded from the cache, nothing was compiled"
    assert first.origin == f"restored from {shared}"
    first.close()
    shutil.rmtree(str(shared))
    second = open_program(PARTS)
    assert second.lookup.startswith("hit, 1 file, 0.0 MB in ")
    assert second.report_outcome() == "loaded from the cache, nothing was compiled"
    assert second.origin == "loaded from the cache"


def flip(path: Path, at: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 1
    path.write_bytes(bytes(damaged))


def add_bad(shared: Path) -> None:
    """One bad program of two."""
    (shared / "9999.popef").write_bytes(b"second")
    hashes = {"1234.popef": hashlib.sha256(CONTENT).hexdigest(), "9999.popef": "0" * 64}
    rewritten(shared, executables={"1234.popef": len(CONTENT), "9999.popef": 6}, sha256=hashes)


def refused(open_program: Any, why: str) -> None:
    """Nothing of it is in the live folder, the reason is reported, and what is built is kept."""
    program = open_program(PARTS)
    assert not program.expected
    assert why in program.lookup
    assert program.lookup.startswith("miss, ")
    assert program.lookup.endswith(", to be rebuilt")
    assert [path.name for path in program.path.iterdir()] == ["podium.held"]
    (program.path / "1234.popef").write_bytes(CONTENT)
    assert program.report_outcome().startswith("built, 1 file")
    assert why in program.origin
    assert program.origin.startswith("built: ")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(
            (lambda x, at=at: flip(x / "1234.popef", at), "was discarded: 1234.popef does not match its SHA-256")
            for at in (0, 13, len(CONTENT) - 1)
        ),
        (lambda x: (x / "1234.popef").write_bytes(CONTENT[:-1]), "1234.popef does not match its SHA-256"),
        (add_bad, "9999.popef does not match its SHA-256"),
        (lambda x: (x / "1234.popef").unlink(), "was discarded: 1234.popef is missing"),
        (lambda x: (x / "podium.json").unlink(), "has no program"),
        (lambda x: (x / "podium.json").write_text("{", encoding="utf-8"), "was discarded: podium.json is damaged"),
        (lambda x: shutil.rmtree(str(x)), "does not exist"),
        (lambda x: rewritten(x, sha256={}), "was discarded: 1234.popef has no SHA-256 in the record"),
        (lambda x: rewritten(x, executables={"../1234.popef": 9}), "../1234.popef is not the name of a program"),
        (lambda x: rewritten(x, executables={"/etc/passwd": 9}), "/etc/passwd is not the name of a program"),
        (lambda x: rewritten(x, executables=["1234.popef"], sha256=[]), "podium.json is damaged"),
        (lambda x: rewritten(x, parts=7), "podium.json is damaged"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(shared: Path, open_program: Any, change: Any, why: str) -> None:
    change(shared)
    refused(open_program, why)


def test_a_program_of_another_sdk_is_left_alone_and_the_versions_are_named(shared: Path, open_program: Any) -> None:
    newer = open_program({**PARTS, "poptorch": "3.5.0"})
    assert not newer.expected
    why = f"{shared} was built for another job: poptorch 3.4.0 -> 3.5.0; executables do not load under another"
    assert why in newer.lookup
    assert (shared / "1234.popef").exists()


def test_what_a_killed_run_left_in_the_live_folder_is_replaced_by_what_travels(shared: Path, open_program: Any) -> None:
    first = open_program(PARTS)
    first.report_outcome()
    folder = first.path
    first.close()
    (folder / "1234.popef").write_bytes(CONTENT[:-1] + b"x")  # the same size
    second = open_program(PARTS)
    assert second.expected
    assert second.lookup.endswith("in it damaged: 1234.popef is different in SHA-256 from the record: discarded")
    assert (folder / "1234.popef").read_bytes() == CONTENT


def test_a_full_disk_costs_the_copy_and_not_the_job(
    shared: Path, open_program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.replace, True

    def replace(source: str, target: str) -> None:
        if full and str(target).endswith(".popef"):
            raise OSError(28, "No space left on device", target)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    opened = open_program(PARTS)
    full = False
    assert "could not be copied (No space left on device: " in opened.lookup
    assert [path.name for path in opened.path.iterdir()] == ["podium.held"]


def test_nothing_is_taken_while_another_process_uses_the_folder(shared: Path, open_program: Any) -> None:
    first = open_program(PARTS)
    folder = first.path
    (folder / "1234.popef").unlink()
    second = open_program(PARTS)
    assert second.path == folder
    assert not (folder / "1234.popef").exists()


def test_without_a_cache_of_the_host_the_live_folder_is_beside_what_travels(shared: Path, said: List[str]) -> None:
    assert cache_root({}, "", said.append, str(shared)) == shared.parent / ".live"
    assert "set PODIUM_EXECUTABLE_CACHE to share them" in said[-1]
    assert cache_root({}, "/config", said.append, str(shared)) == Path("/config")
    assert cache_root({"PODIUM_EXECUTABLE_CACHE": "/host"}, "/config", said.append, str(shared)) == Path("/host")
