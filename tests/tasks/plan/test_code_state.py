"""A release names the code that its stages ran with, and publish says where the code differs by then."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.plan.code_state import changed_code
from tasks.plan.dvc_records import compute_md5
from tasks.release.provenance import describe_changes
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import make_checkout, write_gate

CODE = "tasks/jobs/training.py"
FIGURES = "metrics/squad-finetune.json"


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(root: Path, text: str) -> str:
    (root / CODE).parent.mkdir(parents=True, exist_ok=True)
    (root / CODE).write_text(text, encoding="utf-8")
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
def checkout(tmp_path: Path) -> Path:
    root = make_checkout(tmp_path / "checkout")
    git(root, "init", "-q")
    return root


def published(root: Path) -> dict[str, Any]:
    receipt = publish_here(root)
    found: dict[str, Any] = json.loads((root / receipt["folder"] / "provenance.json").read_text())
    return {**found, "unchanged": receipt["unchanged"]}


def test_code_that_was_committed_after_the_run_is_not_named_as_that_of_the_release(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = commit(checkout, "first")
    record(checkout, ran)
    assert published(checkout)["git"] == {"revision": ran, "dirty": False, "changed": []}
    assert capsys.readouterr().out == "", "the code is as it was"
    now = commit(checkout, "second")
    found = published(checkout)
    assert found["git"] == {"revision": ran, "dirty": False, "changed": []}
    revisions = {name: one["revision"] for name, one in found["stages_git"].items() if one}
    assert revisions == {"squad-finetune": ran, "gate": ran}
    assert found["training"]["squad-finetune"]["versions"] == {"torch": "2.0.1"}, "of then"
    listed = json.dumps([{"md5": hashlib.md5(b"first").hexdigest(), "relpath": "training.py"}])
    assert found["code_md5"] == {"finetune@squad": {"tasks/jobs": f"{hashlib.md5(listed.encode()).hexdigest()}.dir"}}
    assert found["unchanged"] is True, "the same model, and so the same release"
    said = capsys.readouterr().out
    assert f"revision {now}, but the model was built with revision {ran}" in said
    assert "changed files that its stages read: tasks/jobs\n" in said


def test_another_revision_of_the_same_files_is_said_too(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = commit(checkout, "first")
    record(checkout, ran)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    assert published(checkout)["git"]["revision"] == ran
    assert "which the release states; no file that its stages read changed" in capsys.readouterr().out


def test_the_files_of_the_project_are_compared_and_not_the_copy_in_the_checkout_of_a_run(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    ran, root = commit(tmp_path, "first"), tmp_path / "runs/checkouts/mine"
    (root / CODE).parent.mkdir(parents=True)
    (root / CODE).write_text("first", encoding="utf-8")
    hashes = {"finetune@squad": {"tasks/jobs": compute_md5(root / "tasks/jobs")}}
    origin = {"git": {"revision": ran}, "code_md5": hashes}
    assert describe_changes(origin, root) is None
    commit(tmp_path, "second")
    assert "changed files that its stages read: tasks/jobs" in str(describe_changes(origin, root))


def test_a_training_and_a_gate_of_two_revisions_are_both_named(checkout: Path) -> None:
    ran = commit(checkout, "first")
    record(checkout, ran)
    judged = commit(checkout, "second")
    write_gate(checkout)
    found = published(checkout)
    assert (found["git"]["revision"], found["stages_git"]["gate"]["revision"]) == (ran, judged)
    card = (checkout / "published/podium-demo/README.md").read_text()
    assert f"- Code: `{ran}`; `gate` ran with `{judged}`\n" in card


def test_a_training_without_a_record_leaves_the_word_to_the_gate_and_no_git_leaves_none(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = commit(checkout, "first")
    record(checkout, None)
    commit(checkout, "second")
    found = published(checkout)
    assert (found["git"]["revision"], found["stages_git"]["squad-finetune"]) == (ran, None)
    capsys.readouterr()
    assert published(make_checkout(tmp_path / "no-git"))["git"] == {"revision": None, "dirty": None, "changed": []}
    assert capsys.readouterr().out == ""


def test_code_is_compared_as_dvc_hashes_it(tmp_path: Path) -> None:
    folder = tmp_path / "tasks/jobs"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "training.py").write_text("x = 1\n")
    (tmp_path / ".dvcignore").write_text("__pycache__\n")
    hashes = {"finetune@squad": {"tasks/jobs": compute_md5(folder, ["__pycache__"]), "tasks/gone.py": "0" * 32}}
    (folder / "__pycache__/training.cpython-311.pyc").write_bytes(b"compiled")
    assert changed_code(hashes, tmp_path) == ["tasks/gone.py"]
    (folder / "training.py").write_text("x = 2\n")
    assert changed_code(hashes, tmp_path) == ["tasks/gone.py", "tasks/jobs"]
