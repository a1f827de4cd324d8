"""What DVC and git recorded: changed inputs are refused, a release names the code that its stages ran with."""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipu_model.core.files import write_text
from tasks.plan.code_state import changed_code
from tasks.plan.dvc_records import compute_md5, verify_files
from tasks.release.provenance import describe_changes, git_state
from tasks.stage.errors import InputError
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import make_checkout, write_gate


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


FILES = {"data/corpus/a.txt": b"alpha", "data/corpus/sub/b.txt": b"beta", "reports/corpus.json": b"{}"}
LISTING = json.dumps(
    [{"md5": md5(b"alpha"), "relpath": "a.txt"}, {"md5": md5(b"beta"), "relpath": "sub/b.txt"}]
).encode()
OUTS = [{"path": "data/corpus", "md5": f"{md5(LISTING)}.dir"}, {"path": "reports/corpus.json", "md5": md5(b"{}")}]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A corpus of two files, one in a folder, and a report, as DVC states them."""
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": {"corpus": {"outs": OUTS}}}))
    return tmp_path


def test_a_changed_byte_is_refused_though_size_and_time_are_the_same(checkout: Path) -> None:
    path = checkout / "data" / "corpus" / "sub" / "b.txt"
    before = path.stat()
    path.write_bytes(b"bet4")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="data/corpus"):
        verify_files(["data/corpus", "data/corpus", "data/absent"], checkout)  # twice, as a stage may name it
    assert not path.exists(), "DVC would not look at it again"
    assert (checkout / "runs/damaged/data/corpus/sub/b.txt").read_bytes() == b"bet4"
    (checkout / "dvc.lock").unlink()
    verify_files(["data/corpus"], checkout)


NAMED = (["data/corpus/a.txt"], ["data/corpus/sub/b.txt", "reports/corpus.json"], ["data/corpus"])


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
    cache = checkout / ".dvc" / "cache" / "files" / "md5"
    for digest, data in ((OUTS[0]["md5"], LISTING), (OUTS[1]["md5"], b"{"), (md5(b"alpha"), b"ALPHA")):
        (cache / digest[:2]).mkdir(parents=True, exist_ok=True)
        (cache / digest[:2] / digest[2:]).write_bytes(data)
    place = checkout / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink() if content is None else place.write_bytes(content)
    if not refused[number]:
        verify_files(NAMED[number], checkout)
        return
    with pytest.raises(InputError, match="is not what its stage wrote"):
        verify_files(NAMED[number], checkout)
    if content is not None:
        assert not place.exists()
        assert (checkout / "runs/damaged" / name).read_bytes() == content


CODE = "tasks/jobs/training.py"
FIGURES = "metrics/squad-finetune.json"


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(root: Path, text: str) -> str:
    write_text(root / CODE, text)
    git(root, "add", "--", "tasks")
    git(root, "commit", "-q", "-m", text)
    return git(root, "rev-parse", "HEAD")


def record(root: Path, revision: str | None) -> None:
    """What the stage finetune writes of its code: in its figures, and by DVC in dvc.lock."""
    figures = json.loads((root / FIGURES).read_text())
    if revision is not None:
        figures["versions"] = {"torch": "2.0.1"}
        figures["code"] = {"revision": revision, "dirty": False, "changed": []}
    (root / FIGURES).write_text(json.dumps(figures))
    write_gate(root)
    lock = json.loads((root / "dvc.lock").read_text())
    lock["stages"]["finetune@squad"]["deps"] = [{"path": "tasks/jobs", "md5": compute_md5(root / "tasks/jobs")}]
    (root / "dvc.lock").write_text(json.dumps(lock))


@pytest.fixture
def released(tmp_path: Path) -> Path:
    root = make_checkout(tmp_path / "checkout")
    git(root, "init", "-q")
    return root


def publish(root: Path) -> dict[str, Any]:
    """The provenance of a release, and whether it is the same as before."""
    receipt = publish_here(root)
    provenance = json.loads((root / receipt["folder"] / "provenance.json").read_text())
    return {**provenance, "unchanged": receipt["unchanged"]}


def test_code_committed_after_the_run_is_not_of_the_release(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = commit(released, "first")
    record(released, ran)
    assert publish(released)["git"] == {"revision": ran, "dirty": False, "changed": []}
    assert capsys.readouterr().out == "", "the code is as it was"
    now = commit(released, "second")
    release = publish(released)
    assert release["git"] == {"revision": ran, "dirty": False, "changed": []}
    revisions = {name: code["revision"] for name, code in release["stages_git"].items() if code}
    assert revisions == {"squad-finetune": ran, "gate": ran}
    assert release["training"]["squad-finetune"]["versions"] == {"torch": "2.0.1"}, "of then"
    listed = json.dumps([{"md5": md5(b"first"), "relpath": "training.py"}])
    assert release["code_md5"] == {"finetune@squad": {"tasks/jobs": f"{md5(listed.encode())}.dir"}}
    assert release["unchanged"] is True, "the same model, and so the same release"
    printed = capsys.readouterr().out
    assert f"revision {now}, but the model was built with revision {ran}" in printed
    assert "stages read: tasks/jobs\n" in printed
    write_gate(released)
    release = publish(released)
    assert (release["git"]["revision"], release["stages_git"]["gate"]["revision"]) == (ran, now)
    card = (released / "published/podium-demo/README.md").read_text()
    assert f"- Code: `{ran}`; `gate` ran with `{now}`\n" in card


def test_the_files_of_the_project_are_compared_and_not_the_copy_in_the_checkout_of_a_run(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    ran, root = commit(tmp_path, "first"), tmp_path / "runs/checkouts/mine"
    write_text(root / CODE, "first")
    hashes = {"finetune@squad": {"tasks/jobs": compute_md5(root / "tasks/jobs")}}
    origin = {"git": {"revision": ran}, "code_md5": hashes}
    assert describe_changes(origin, root) is None
    commit(tmp_path, "second")
    assert "stages read: tasks/jobs" in str(describe_changes(origin, root))


def test_without_a_record_the_gates_code_is_named(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = commit(released, "first")
    record(released, None)
    commit(released, "second")
    release = publish(released)
    assert (release["git"]["revision"], release["stages_git"]["squad-finetune"]) == (ran, None)
    capsys.readouterr()
    assert publish(make_checkout(tmp_path / "no-git"))["git"] == {"revision": None, "dirty": None, "changed": []}
    assert capsys.readouterr().out == ""


def test_code_is_compared_as_dvc_hashes_it(tmp_path: Path) -> None:
    write_text(tmp_path / CODE, "x = 1\n")
    (tmp_path / ".dvcignore").write_text("__pycache__\n")
    folder = tmp_path / "tasks/jobs"
    hashes = {"finetune@squad": {"tasks/jobs": compute_md5(folder, ["__pycache__"]), "tasks/gone.py": "0" * 32}}
    write_text(folder / "__pycache__/training.cpython-311.pyc", "compiled")
    assert changed_code(hashes, tmp_path) == ["tasks/gone.py"]
    write_text(tmp_path / CODE, "x = 2\n")
    assert changed_code(hashes, tmp_path) == ["tasks/gone.py", "tasks/jobs"]


def test_dirty_means_that_sources_differ_from_the_revision_in_the_checkout_of_a_run_too(tmp_path: Path) -> None:
    assert git_state(tmp_path) == {"revision": None, "dirty": None, "changed": []}
    copy = tmp_path / "runs/checkouts/set-1"
    for root in (tmp_path, copy):
        write_text(root / CODE, "x = 1\n")
        write_text(root / "tasks/__pycache__/gate.pyc", "")
    (tmp_path / ".gitignore").write_text("/runs/\n__pycache__/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    revision = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "dvc.lock").write_text("written by a run")
    assert git_state(tmp_path) == {"revision": revision, "dirty": False, "changed": []}
    assert git_state(copy)["changed"] == []
    write_text(copy / CODE, "x = 2\n")
    write_text(tmp_path / "tasks/new file.py", "")
    assert git_state(copy)["changed"] == [CODE]
    assert git_state(tmp_path) == {"revision": revision, "dirty": True, "changed": ["tasks/new file.py"]}
