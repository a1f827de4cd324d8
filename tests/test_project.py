"""What the project says of itself holds: declared dependencies are those imported, and a clone keeps its line ends."""

import functools
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.places import ROOT
from tests.source_files import PACKAGES, imported_modules, sources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT_IMPORT = {
    "accelerate": "transformers' Trainer imports it",
    "dvc-s3": "a plug-in of DVC",
    "dvc-ssh": "a plug-in of DVC",
    "fastapi": "Prefect's, and limited here",
    "flask": "moto's server imports it",
    "flask-cors": "moto's server imports it",
    "furo": "a theme of Sphinx",
    "mypy": "a command",
    "myst-parser": "a plug-in of Sphinx",
    "pandas-stubs": "types for mypy",
    "pytest-xdist": "a plug-in of pytest",
    "regex": "datatrove imports it",
    "ruff": "a command",
    "sphinx": "a command",
    "types-pyyaml": "types for mypy",
}
"""Declared, and imported nowhere: why it is needed all the same."""
NOT_OURS_TO_INSTALL = {"poptorch", "popdist"}
ALONGSIDE = {file.stem for file in (ROOT / "tests").rglob("*.py")}
BRINGS = packages_distributions()
RUNTIME = ("flows", "ipu_model", "tasks")


def declared(*extras):
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@functools.cache
def needed_by(path):
    """Third-party imports of a file, each with the distributions that could bring it."""
    ours = {*PACKAGES, "tests", "constraints", "docs", *NOT_OURS_TO_INSTALL}
    beside = ALONGSIDE if path.is_relative_to(ROOT / "tests") else set()
    tops = {name.split(".")[0] for name in imported_modules(path)} - ours - beside - set(sys.stdlib_module_names)
    return {top: {canonicalize_name(name) for name in BRINGS.get(top, ())} for top in tops}


EXTRAS = {
    "ipu_model/models/transformers_encoder.py": ("encoders",),
    "tasks/stage/cluster.py": ("cluster",),
    "tasks/corpus/quality.py": ("quality",),
    "tasks/tracking/track_": ("tracking",),
    "tasks/downstream/export/": ("export",),
    "tasks/downstream/inference/onnx_answers.py": ("export",),
    "tasks/release/signing.py": ("signing",),
    "tasks/release/verify.py": ("signing",),
    "bench/": ("bench",),
    "tests/": ("bench", "dev", "export", "signing", "tracking"),
}
"""Begin of a file's path -> the extras without which it need not work."""


def extras_of(path):
    here = path.relative_to(ROOT).as_posix()
    return next((extras for begin, extras in EXTRAS.items() if here.startswith(begin)), ())


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_every_import_is_declared_where_it_is_needed(folder):
    undeclared = [
        f"{path.relative_to(ROOT)} imports {top}"
        for path in sources(folder)
        for top, distributions in needed_by(path).items()
        if not distributions & declared(*extras_of(path))
    ]
    assert undeclared == []


@pytest.mark.parametrize(
    ("extra", "folders"),
    [
        (None, RUNTIME),
        ("bench", ("bench",)),
        ("dev", ("tests",)),
        ("encoders", ("ipu_model",)),
        ("tracking", ("tasks",)),
        ("cluster", ("tasks",)),
        ("quality", ("tasks",)),
        ("remotes", ()),
        ("docs", ()),
    ],
)
def test_nothing_is_declared_that_nothing_of_its_place_uses(extra, folders):
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    used = {name for path in sources(*folders) for names in needed_by(path).values() for name in names}
    assert {canonicalize_name(Requirement(line).name) for line in lines} - used - set(WITHOUT_IMPORT) == set()


def test_what_is_kept_without_an_import_is_declared_and_has_none():
    imported = {name for path in sources(*PACKAGES, "tests") for names in needed_by(path).values() for name in names}
    assert set(WITHOUT_IMPORT) <= declared(*PROJECT["optional-dependencies"])
    assert imported & set(WITHOUT_IMPORT) == set()


def test_a_clone_with_autocrlf_keeps_the_line_ends_of_scripts(tmp_path):
    def git(*words, where):
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True)

    project, clone = tmp_path / "project", tmp_path / "clone"
    shutil.copytree(ROOT / ".ci", project / ".ci")
    for name in ("Makefile", ".gitattributes", "dvc.yaml"):
        shutil.copy2(ROOT / name, project / name)
    for words in (("init",), ("add", "."), ("commit", "-m", "as it is")):
        git(*words, where=project)
    git("clone", "-c", "core.autocrlf=true", project.as_uri(), "clone", where=tmp_path)
    files = [path for path in clone.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert [path.name for path in files if b"\r" in path.read_bytes()] == []
    subprocess.run(["bash", "-n", ".ci/run"], cwd=clone, check=True)


def test_a_fresh_test_of_a_python_that_is_not_there_says_so():
    done = subprocess.run([ROOT / ".ci/fresh", "python3.99"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert re.search("no python3.99 here; .*FRESH_PYTHONS", done.stdout)
