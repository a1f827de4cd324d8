"""Inputs that are no longer what their stage wrote are refused, whatever their times say."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import yaml

from tasks.plan.dvc_records import verify_files
from tasks.stage.errors import InputError


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A corpus of two files, one in a folder, and a report, as DVC states them."""
    files = {"a.txt": b"alpha", "sub/b.txt": b"beta"}
    for name, data in files.items():
        (tmp_path / "data" / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "corpus" / name).write_bytes(data)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "corpus.json").write_bytes(b"{}")
    listed = [{"md5": md5(data), "relpath": name} for name, data in files.items()]
    outs = [
        {"path": "data/corpus", "md5": md5(json.dumps(listed, sort_keys=True).encode()) + ".dir"},
        {"path": "reports/corpus.json", "md5": md5(b"{}")},
    ]
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": {"corpus": {"outs": outs}}}))
    return tmp_path


def test_a_changed_byte_is_refused_though_size_and_time_are_the_same(checkout: Path) -> None:
    path = checkout / "data" / "corpus" / "sub" / "b.txt"
    before = path.stat()
    path.write_bytes(b"bet4")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="data/corpus is not what its stage wrote"):
        verify_files(["data/corpus", "data/corpus", "data/absent"], checkout)  # twice, as a stage may name it
    assert not path.exists(), "DVC would not look at it again"
    assert (checkout / "runs/damaged/data/corpus/sub/b.txt").read_bytes() == b"bet4"


def test_without_a_lock_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    verify_files(["data/corpus"], tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("data/corpus/a.txt", b"ALPHA", [True, False, True]),
        ("data/corpus/sub/b.txt", None, [False, False, True]),
        ("data/corpus/__pycache__/c.pyc", b"compiled", [False, False, True]),
        ("reports/corpus.json", b"[]", [False, True, False]),
        ("elsewhere.txt", b"mine", [False, False, False]),
    ],
)
@pytest.mark.parametrize("number", range(3))
def test_a_stage_is_refused_where_a_file_that_it_names_has_changed(
    checkout: Path, name: str, content: bytes | None, refused: list[bool], number: int
) -> None:
    """Also where DVC's cache has the list of the folder, and bytes that are not what their name says."""
    named = [["data/corpus/a.txt"], ["data/corpus/sub/b.txt", "reports/corpus.json"], ["data/corpus"]][number]
    cache = checkout / ".dvc" / "cache" / "files" / "md5"
    outs = yaml.safe_load((checkout / "dvc.lock").read_text())["stages"]["corpus"]["outs"]
    files = {"a.txt": b"alpha", "sub/b.txt": b"beta"}
    listing = json.dumps([{"md5": md5(data), "relpath": path} for path, data in files.items()], sort_keys=True)
    for digest, data in ((outs[0]["md5"], listing.encode()), (outs[1]["md5"], b"{"), (md5(b"alpha"), b"ALPHA")):
        (cache / digest[:2]).mkdir(parents=True, exist_ok=True)
        (cache / digest[:2] / digest[2:]).write_bytes(data)
    place = checkout / name
    if content is None:
        place.unlink()
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    if not refused[number]:
        verify_files(named, checkout)
        assert content is None or place.read_bytes() == content
        return
    with pytest.raises(InputError, match="is not what its stage wrote"):
        verify_files(named, checkout)
    if content is not None:
        assert not place.exists()
        assert (checkout / "runs/damaged" / name).read_bytes() == content
