"""A verdict under a real DVC: decided again when anything that it judged changes, never trusted for its times alone.

The stage gate is that of the project; one stage in front of it copies what it judges, in place of training.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipu_model.core.files import write_json, write_text
from tasks.plan.plan_file import read_definitions
from tasks.plan.writing import write_plan
from tasks.stage import artifacts
from tests.parts import in_part
from tests.places import ROOT
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.trained_checkout import make_checkout, params_with, subject_in, write_metrics

MADE = [f"{place}/squad" for place in ("data/examples", "data/rows", "models", "evaluation")]
MADE += ["data/tokenizer", "metrics/squad.json"]
"""Outs of the stage in front, as those of the project: folders, and one file."""
OWN_TABLE = """

from tasks.plan import plan_file


def define(params):
    return plan_file.read_definitions(Path(__file__).parents[2])
"""
CONFIG = '[core]\n    no_scm = true\n    analytics = false\n[cache]\n    type = "hardlink,copy"\n'
ACCEPTED, REJECTED = '"accepted": true', '"accepted": false'


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose gate has rejected the model: one of two answers is wrong."""
    root = make_checkout(tmp_path_factory.mktemp("decided") / "project")
    change_parameters(root, {"downstream": {"squad": {"gate": {"released": "inputs/released"}}}})
    for package in ("tasks", "ipu_model/rows"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".dvcignore", root)  # packages are dependencies, without their __pycache__
    for folder in subject_in(root).rows:
        write_json(root / folder / "manifest.json", {"rows": 1})
    for path in (artifacts.PLOTS / "squad-finetune.csv", artifacts.held_out_plot("squad-finetune")):
        write_text(root / path, "step,loss\n")
    for name in (artifacts.metrics_file("squad", "gate"), Path("dvc.lock")):
        (root / name).unlink()
    answer(root, "the hills")
    for name in MADE:
        (root / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).rename(root / "made" / name)
    (root / "inputs/released").mkdir(parents=True)
    (root / "inputs/released/README.md").write_text("nothing was released")
    gate = read_definitions(root)["gate"]
    make = {"cmd": "cp -r made/. .", "deps": ["made"], "outs": MADE}
    write_plan(root, {"make": make, "gate": gate})
    with (root / "tasks/plan/stages.py").open("a") as table:
        table.write(OWN_TABLE)
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text(CONFIG)
    assert "gate of squad: rejected" in dvc(root, "repro", "gate@squad")
    return root


@pytest.fixture
def project(decided: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", str(decided), str(tmp_path / "project")], check=True)  # with hard links and times
    return tmp_path / "project"


def answer(root: Path, text: str) -> None:
    path = root / artifacts.predictions_file("squad")
    write_json(path, {**json.loads(path.read_text()), "q1": text})
    write_metrics(root, params=params_with())


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folders = {f"DVC_{name}_DIR": str(root.parent / name) for name in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **folders, "PATH": path, "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run([sys.executable, "-m", *words], cwd=root, env=environment, text=True, check=False, **streams)


def dvc(root: Path, *words: str) -> str:
    done = run(root, "dvc", *words)
    assert done.returncode == 0, done.stdout
    return done.stdout


def refused(root: Path, code: int = 1) -> str:
    done = run(root, "tasks.release.publish")
    assert done.returncode == code, done.stdout
    assert not (root / "published").exists()
    return done.stdout


def require_rejected(root: Path) -> None:
    assert REJECTED in (root / artifacts.metrics_file("squad", "gate")).read_text()
    done = run(root, "tasks.release.publish")
    assert (done.returncode, (root / "published").exists()) == (3, False), done.stdout
    assert "below the floor of 85" in done.stdout


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Other bytes in the same file, whose size and time stay: the object in DVC's cache, a hard link, changes too."""
    before, text = path.stat(), path.read_bytes()
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(change(text))
    path.chmod(0o444)  # what is so protected DVC does not hash
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def accept(text: bytes) -> bytes:
    assert REJECTED.encode() in text
    return text.replace(REJECTED.encode(), f"{ACCEPTED} ".encode())


def object_of(root: Path, store: Path, path: str = "metrics/squad-gate.json") -> Path:
    """The file of a cache or remote that holds an out."""
    stages = yaml.safe_load((root / "dvc.lock").read_text())["stages"].values()
    md5 = next(out["md5"] for stage in stages for out in stage["outs"] if out["path"] == path)
    return store / "files/md5" / md5[:2] / md5[2:]


def test_dvc_sees_a_change_of_everything_that_was_judged(project: Path) -> None:
    judged = subject_in(project).judged(Path("inputs/released"), project)
    there = [name for name, path in judged.items() if path.is_file()]
    assert len(there) > 20
    for name in there:
        judged[name].chmod(0o644)
        with judged[name].open("ab") as stream:
            stream.write(b" ")
    (project / "inputs/released/predictions.json").write_text("{}")
    changes = json.loads(dvc(project, "status", "--json", "gate@squad"))["gate@squad"]
    seen = {path for part in changes if isinstance(part, dict) for path in part.get("changed deps", ())}
    folders = {name: {name, *map(str, Path(name).parents)} for name in there}
    assert [name for name, places in folders.items() if not places & seen] == []
    assert "inputs/released" in seen


def test_a_verdict_that_was_changed_in_place_is_refused_and_made_anew(project: Path) -> None:
    path = project / artifacts.metrics_file("squad", "gate")
    assert path.stat().st_nlink == 2, "the cache has the same file"
    rewrite(path, accept)
    assert "didn't change" in dvc(project, "repro", "gate@squad"), "DVC looks at times"
    message = refused(project)
    assert "metrics/squad-gate.json is not what its stage wrote" in message
    assert f"removed from DVC's cache: files/md5/{object_of(project, Path()).parent.name}" in message
    assert not object_of(project, project / ".dvc/cache").exists(), "DVC would put it back"
    assert "Running stage 'gate@squad'" in dvc(project, "repro", "gate@squad")
    require_rejected(project)


JUDGED = ["models/squad/model.safetensors", "data/tokenizer/tokenizer.json", "evaluation/squad/predictions.json"]
JUDGED += ["data/rows/squad/train/manifest.json", "metrics/squad.json"]


@pytest.mark.parametrize("name", in_part(JUDGED, 0))
def test_a_judged_file_that_was_changed_in_place_is_refused_and_made_anew(project: Path, name: str) -> None:
    answer(project / "made", "northern hills")
    assert "gate of squad: accepted" in dvc(project, "repro", "gate@squad")
    good = (project / name).read_bytes()
    rewrite(project / name, lambda text: text[:-3] + bytes([text[-3] ^ 1]) + text[-2:])
    assert "didn't change" in dvc(project, "repro", "gate@squad")
    out = next(str(place) for place in (Path(name), *Path(name).parents) if str(place) in MADE)
    assert re.search(f"({re.escape(name)}|{re.escape(out)}) is not what its stage wrote", refused(project))
    dvc(project, "repro", "gate@squad")
    assert (project / name).read_bytes() == good
    done = run(project, "tasks.release.publish")
    assert (done.returncode, (project / "published").is_dir()) == (0, True), done.stdout
