"""What runs again when code changes, asked of DVC itself: a comment in one file of a package, and `dvc status`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.places import ROOT
from tests.test_architecture import EXAMPLES, FRAME, code_of, dvc_stages, lies_in, outs_of

pytestmark = pytest.mark.slow
STATUS = """
import json, pathlib, sys
from dvc.repo import Repo

def changed():
    with Repo(".") as repo:
        return sorted(repo.status())

found = {"": changed()}
for name, files in json.loads(sys.stdin.read()).items():
    before = {path: pathlib.Path(path).read_bytes() for path in files}
    for path, content in before.items():
        pathlib.Path(path).write_bytes(content + b"\\n# a comment\\n")
    found[name] = changed()
    for path, content in before.items():
        pathlib.Path(path).write_bytes(content)
found["again"] = changed()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that is done, as far as DVC knows: every out is there, and dvc.lock holds what it was made of."""
    root = tmp_path_factory.mktemp("done") / "project"
    root.mkdir()
    for name in ("tasks", "ipu_model", "inputs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, root / name)
    values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    for place, items in EXAMPLES.items():
        section, _, key = place.strip("${}").partition(".")
        values[section][key] = items
    (root / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    for path, text in sorted(_data().items(), key=lambda one: -len(one[0].parts)):
        if not (root / path).exists():  # a folder of what lies deeper
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n", encoding="utf-8")
    _run(root, "-m", "dvc", "commit", "--force", "--quiet")
    return root


def _data() -> dict[Path, str]:
    """Every path that a stage reads or writes, given ones aside, and what its file may hold."""
    found, parameters = {}, {}
    for stage in dvc_stages().values():
        read = [dep for dep in stage["deps"] if not dep.startswith("${") and dep not in code_of(stage)]
        found |= {Path(path): "made\n" for path in (*read, *outs_of(stage))}
        for entry in stage.get("params", []):
            if isinstance(entry, dict):
                parameters |= {Path(path): json.dumps(dict.fromkeys(keys, 1)) for path, keys in entry.items()}
    return found | parameters


def _run(root: Path, *words: str, text: str = "") -> str:
    folders = ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR")
    own = {name: str(root.parent / name.lower()) for name in folders}
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env={**os.environ, **own}, input=text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def modules_of(place: str) -> list[str]:
    """The Python files of a package or a module, as a path from the project's root."""
    path = ROOT / place
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return [file.relative_to(ROOT).as_posix() for file in files]


def test_a_comment_runs_those_stages_again_that_depend_on_its_package_and_none_for_the_frame(project: Path) -> None:
    stages = dvc_stages()
    places = sorted({dep for stage in stages.values() for dep in code_of(stage)})
    edits: dict[str, Any] = {place: modules_of(place)[:1] for place in places}
    edits |= {place: modules_of(place) for place in FRAME}
    found = json.loads(_run(project, "-c", STATUS, text=json.dumps(edits)))
    assert found.pop("") == found.pop("again") == [], "the project is not done before anything is edited"
    assert {place: found[place] for place in FRAME} == {place: [] for place in FRAME}
    for place in places:
        edited = edits[place][0]
        assert found[place] == sorted(name for name, stage in stages.items() if lies_in(edited, code_of(stage))), place
        assert found[place]
