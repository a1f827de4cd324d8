"""What runs again when code changes, asked of DVC itself: a comment in one file of a package, and `dvc status`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tasks.params.schema import validate_params
from tasks.plan.plan_file import Stage, make_plan, read_plan
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tests.places import ROOT
from tests.plans import values_with
from tests.source_files import FRAME, PACKAGES, lies_in

WANTED = (
    "device.runtime=ipu",
    "base_model.source=folder",
    "downstream.squad.parity.against=['cpu:bf16']",
    "downstream.glue-sst2={kind: glue, task: sst2}",
    "downstream.names={kind: ner}",
)
STATUS = """
import json, pathlib, sys
from dvc.repo import Repo

def changed():
    with Repo(".") as repo:
        return sorted(repo.status())

found = {"before": changed()}
for name, files in json.loads(sys.stdin.read()).items():
    before = {path: path.read_bytes() if path.exists() else None for path in map(pathlib.Path, files)}
    for path, content in before.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((content or b"") + b"\\n# a comment\\n")
    found[name] = changed()
    for path, content in before.items():
        path.write_bytes(content) if content is not None else path.unlink()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is done, as far as DVC knows: every out is there, and dvc.lock holds what it was built from."""
    root = tmp_path_factory.mktemp("done") / "project"
    root.mkdir()
    for name in ("tasks", "ipu_model", "inputs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, root / name)
    values = values_with(*WANTED)
    (root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    write_plan(root, define(validate_params(values)))
    for path, text in sorted(_data(read_plan(root).values()).items(), key=lambda one: -len(one[0].parts)):
        if not (root / path).exists():  # a folder of what lies deeper
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n", encoding="utf-8")
    _run(root, "-m", "dvc", "commit", "--force", "--quiet")
    return root


def code_of(stage: Stage) -> set[str]:
    return {dep for dep in stage.deps if dep.split("/")[0] in PACKAGES}


def _data(stages: Iterable[Stage]) -> dict[Path, str]:
    """Every path that a stage reads or writes, given ones aside, and what its file may hold."""
    found, parameters = {}, {}
    for stage in stages:
        read = [dep for dep in stage.deps if not dep.startswith("${") and dep not in code_of(stage)]
        found |= {Path(path): "made\n" for path in (*read, *stage.outs)}
        for path, keys in stage.params.items():
            parameters[Path(path)] = json.dumps(dict.fromkeys(keys, 1))
    del parameters[Path("params.yaml")]
    return found | parameters


def _run(root: Path, *words: str, text: str = "") -> str:
    folders = ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR")
    own = {name: str(root.parent / name.lower()) for name in folders}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={**os.environ, **own},
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def modules_of(place: str) -> list[str]:
    """The Python files of a package or a module, as a path from the project's root."""
    path = ROOT / place
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [file.relative_to(ROOT).as_posix() for file in files]


def status_after(project: Path, edits: dict[str, list[str]]) -> dict[str, list[str]]:
    """What DVC would run again after a comment in all of these files; "before": with none."""
    found = json.loads(_run(project, "-c", STATUS, text=json.dumps(edits)))
    assert found.pop("before") == [], "the project is not done before anything is edited"
    return found


@pytest.mark.soak
def test_a_comment_in_what_says_how_stages_run_runs_none_of_them_again(project: Path) -> None:
    frame = [file for place in FRAME for file in modules_of(place)]
    assert len(frame) > len(FRAME)
    assert status_after(project, {"frame": frame}) == {"frame": []}


@pytest.mark.soak
def test_a_new_kind_of_task_a_new_head_and_a_new_preset_run_nothing_again(project: Path) -> None:
    new = [
        "tasks/downstream/new/__init__.py",
        "tasks/downstream/new/spec.py",
        "ipu_model/heads/new.py",
        "ipu_model/row_kinds/new.py",
        "presets/new.yaml",
    ]
    assert not [path for path in new if (ROOT / path).exists()]
    assert status_after(project, {"new": new}) == {"new": []}


@pytest.mark.soak
def test_a_comment_in_a_package_runs_those_stages_again_that_depend_on_it(project: Path) -> None:
    stages = make_plan(define(validate_params(values_with(*WANTED))))
    places = sorted({dep for stage in stages.values() for dep in code_of(stage)})
    edits = {place: modules_of(place)[:1] for place in places}
    found = status_after(project, edits)
    for place, (edited,) in edits.items():
        assert found[place] == sorted(name for name, stage in stages.items() if lies_in(edited, code_of(stage))), place
        assert found[place]
