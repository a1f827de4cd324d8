"""The project's dvc.yaml is the only plan: what is given makes DVC run, restore, delete or hide nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.params.schema import validate_params
from tasks.plan.named_files import check_input_paths, find_dvc_files, list_files
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tests.parts import in_part
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import values_with

OWN = """
stages:
  own:
    cmd: python own.py
    deps: [inputs/corpus]
    outs: [out.txt]
"""
OWN_STAGE = """
from pathlib import Path
from tasks.plan.main import run_main
run_main(lambda: Path("out.txt").write_text(Path("inputs/corpus/a.txt").read_text()) and None)
"""
FOREIGN = """
stages:
  foreign:
    cmd: touch {ran} && echo made > {made}
    outs: [{made}]
"""
"""What it makes is in the folder that the stage `own` reads, which so needs it."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A DVC project of one stage that reads inputs/corpus, with Podium's own .dvcignore."""
    project = tmp_path / "project"
    (project / "inputs/corpus").mkdir(parents=True)
    (project / "inputs/corpus/a.txt").write_text("A.\n")
    (project / "dvc.yaml").write_text(OWN)
    (project / "own.py").write_text(OWN_STAGE)
    shutil.copy(PROJECT / ".dvcignore", project)
    assert dvc(project, "init", "--no-scm", "--quiet", "--force").returncode == 0
    assert (project / ".dvcignore").read_text() == (PROJECT / ".dvcignore").read_text()
    return project


def dvc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Plain DVC in `folder`, as a person calls it."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PROJECT), "DVC_NO_ANALYTICS": "1"}
    command, streams = [sys.executable, "-m", "dvc", *words], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=folder, text=True, env=environment, timeout=120, **streams)


def foreign(project: Path, place: str, text: str = FOREIGN) -> None:
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    made = f"made-{place.replace('/', '-')}.txt"
    (project / place).write_text(text.format(ran=project / "ran", made=made))


def plain(project: Path) -> None:
    """Those that keep one another from nothing: of others, DVC's error about one may hide the next."""
    for folder in ("inputs/corpus", "inputs/corpus/sub/more", "mine"):
        foreign(project, f"{folder}/dvc.yaml")


def linked(project: Path) -> None:
    foreign(project, "../elsewhere/stages.yaml")
    (project / "inputs/corpus/link").mkdir()
    (project / "inputs/corpus/link/dvc.yaml").symlink_to("../../../../elsewhere/stages.yaml")


def unhidden(project: Path) -> None:
    foreign(project, "inputs/corpus/dvc.yaml")
    foreign(project, "inputs/corpus/.dvcignore", "!dvc.yaml\n!/dvc.yaml\n!.dvcignore\n")
    foreign(project, "inputs/.dvcignore", "!dvc.yaml\n!**/dvc.yaml\n!.dvcignore\n")


def in_another_folder(project: Path) -> None:
    """Named by no one: with `wdir` it writes where the plan's own stages read."""
    foreign(project, "inputs/other/dvc.yaml", FOREIGN.replace("    outs", "    wdir: ../corpus\n    outs"))


PLANTED: dict[str, Callable[[Path], None]] = {
    "several plain ones": plain,
    "brought back by .dvcignore": unhidden,
    "a link": linked,
    "with wdir": in_another_folder,
}
CALLS = (("repro",), ("repro", "-P"), ("repro", "-R", "inputs"), ("repro", "inputs/corpus/dvc.yaml"))


@pytest.mark.parametrize("planted", in_part([*PLANTED], 2))
def test_plain_dvc_runs_nothing_of_another_plan(project: Path, planted: str) -> None:
    PLANTED[planted](project)
    for words in CALLS:
        dvc(project, *words)
        assert not (project / "ran").exists(), words
        assert not list(project.glob("**/made-*.txt")), words
    inside = dvc(project / "inputs/corpus", "repro")
    assert not (project / "ran").exists(), inside.stdout


def test_without_the_lines_of_dvcignore_each_of_them_runs(project: Path) -> None:
    """That the test above can fail: what DVC does with a plan of others when nothing stops it."""
    (project / ".dvcignore").unlink()
    foreign(project, "inputs/corpus/dvc.yaml")
    done = dvc(project, "repro", "own")
    assert (project / "ran").exists(), done.stdout


def test_a_dvc_file_neither_deletes_nor_replaces_code_and_a_broken_one_does_not_stop_dvc(project: Path) -> None:
    out = "outs:\n- path: ../../own.py\n  md5: {md5}\n  size: 0\n  hash: md5\n".format(md5="0" * 32)
    (project / "inputs/corpus/x.dvc").write_text(out)
    for words in (("checkout", "--force"), ("pull",), ("repro", "--pull")):
        dvc(project, *words)
        assert (project / "own.py").read_text() == OWN_STAGE, words
    for name in ("dvc.yaml", "x.dvc"):
        (project / "inputs/corpus" / name).write_text("{")
    assert dvc(project, "status").returncode == 0


def test_a_dvcignore_among_the_inputs_hides_no_change(project: Path) -> None:
    stage = "cat inputs/corpus/a.txt > out.txt"  # no stage of ours, which would refuse
    (project / "dvc.yaml").write_text(OWN.replace("python own.py", stage))
    for place in ("inputs/.dvcignore", "inputs/corpus/.dvcignore"):
        (project / place).write_text("*\n!.dvcignore\n")
    assert dvc(project, "repro").returncode == 0
    (project / "inputs/corpus/a.txt").write_text("Another.\n")
    assert dvc(project, "repro").returncode == 0
    assert (project / "out.txt").read_text() == "Another.\n"


@pytest.mark.parametrize("place", in_part(["inputs/corpus/.dvc", "inputs/.dvc", "inputs/corpus/sub/.dvc"], 1))
def test_a_folder_that_hides_its_own_from_dvc_is_refused_by_the_stage(project: Path, place: str) -> None:
    """No pattern keeps DVC from passing by a folder that holds `.dvc`; that changes a hash, and so a stage runs."""
    (project / "inputs/corpus/sub").mkdir()
    (project / "inputs/corpus/sub/b.txt").write_text("B.\n")
    assert dvc(project, "repro").returncode == 0
    (project / place).mkdir()
    done = dvc(project, "repro")
    assert done.returncode != 0
    assert f"error: DVC would treat {place} " in done.stdout
    (project / place).rmdir()
    assert dvc(project, "repro").returncode == 0


@pytest.mark.parametrize("name", ["dvc.yaml", "DVC.yaml", "dvc.lock", ".dvcignore", ".dvc", "a/b/dvc.yaml", "a/x.DVC"])
@pytest.mark.parametrize("where", ["inputs/corpus", "inputs/other", "inputs", "mine"])
def test_everything_of_the_kind_is_named_whatever_it_is(tmp_path: Path, where: str, name: str) -> None:
    values = given(tmp_path, path="mine" if where == "mine" else "inputs/corpus")
    for make in (Path.touch, Path.mkdir, lambda path: path.symlink_to("..")):
        place = tmp_path / where / name
        place.parent.mkdir(parents=True, exist_ok=True)
        make(place)
        (problem,) = {text for text in check_input_paths(values, tmp_path) if "DVC would treat" in text}
        assert name in problem
        assert find_dvc_files(tmp_path, [values["corpus"]["path"]]) == [f"{where}/{name}"]
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
    assert check_input_paths(values, tmp_path) == []


def given(root: Path, **changed: str) -> dict[str, Any]:
    """Values whose paths are there, and empty."""
    shutil.copytree(PROJECT / "inputs", root / "inputs")
    (root / "mine").mkdir()
    return values_with(corpus=changed)


@pytest.mark.parametrize(
    ("key", "path", "place"),
    [
        ("path", "mine/all/text", "mine/.dvc"),
        ("path", "mine/text.dvc", "mine/text.dvc"),
        ("dataset", "mine", "mine/x.dvc"),
    ],
)
def test_folders_above_themselves_and_named_as_on_the_hub(tmp_path: Path, key: str, path: str, place: str) -> None:
    values = given(tmp_path, **{key: path})
    for folder in (path, place):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (problem,) = check_input_paths(values, tmp_path)
    assert problem.startswith(f"DVC would treat {place}")


def registry(folder: Path) -> Path:
    """Text in a folder that is a DVC project of its own, as people keep data sets."""
    folder.mkdir()
    assert dvc(folder, "init", "--no-scm", "--quiet").returncode == 0
    (folder / ".dvcignore").unlink()
    (folder / "text").mkdir()
    (folder / "text/a.txt").write_text("A.\n")
    (folder / "text/big.txt.dvc").write_text("outs:\n- path: big.txt\n  md5: " + "0" * 32 + "\n")
    foreign(folder, "text/dvc.yaml")
    return folder


@pytest.mark.parametrize("written", in_part(["absolute", "relative"], 0))
def test_a_dvc_project_outside_may_be_named_as_dvc_takes_no_plan_from_there(project: Path, written: str) -> None:
    outside = registry(project.parent / "registry")
    path = str(outside / "text") if written == "absolute" else "../registry/text"
    (project / "dvc.yaml").write_text(OWN.replace("[inputs/corpus]", f"[inputs/corpus, {path}]"))
    shutil.copytree(PROJECT / "inputs", project / "inputs", dirs_exist_ok=True)
    assert check_input_paths(values_with(corpus={"path": path}), project) == []
    assert list_files(outside / "text", "corpus.path")
    for words in CALLS:
        dvc(project, *words)
    assert (project / "out.txt").read_text() == "A.\n"
    assert not (project / "ran").exists()
    assert not (outside / "ran").exists()
    assert "up to date" in dvc(project, "status").stdout
    (outside / "text/a.txt").write_text("Another.\n")
    assert "changed deps" in dvc(project, "status").stdout


def test_a_dvcignore_outside_is_refused_as_dvc_hashes_no_folder_with_one(project: Path) -> None:
    outside = project.parent / "text"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub/.dvcignore").touch()
    (project / "dvc.yaml").write_text(OWN.replace("[inputs/corpus]", "[../text]"))
    shutil.copytree(PROJECT / "inputs", project / "inputs", dirs_exist_ok=True)
    assert ".dvcignore file should not be in collected dir path" in dvc(project, "repro").stdout
    (problem,) = check_input_paths(values_with(corpus={"path": "../text"}), project)
    assert problem.startswith("corpus.path='../text' contains 1 .dvcignore")


def test_a_link_from_inside_counts_as_inside(project: Path) -> None:
    outside = registry(project.parent / "registry")
    (project / "mine").symlink_to(outside)
    shutil.copytree(PROJECT / "inputs", project / "inputs", dirs_exist_ok=True)
    problems = check_input_paths(values_with(corpus={"path": "mine/text"}), project)
    assert "DVC would treat mine/.dvc, mine/text/big.txt.dvc, mine/text/dvc.yaml" in "\n".join(problems)
    assert check_input_paths(values_with(corpus={"path": str(outside / "text")}), project) == []


@pytest.mark.parametrize(
    "word",
    in_part(["1; touch {}", "$(touch {})", "`touch {}`", '"; touch {}; "', "'; touch {}; '", "${{corpus.seed}}{}"], 1),
)
def test_no_path_of_the_parameters_is_run_or_filled_in_by_plain_dvc(project: Path, word: str) -> None:
    ran = project / "ran"
    named = word.format(ran)
    (project / named).mkdir(parents=True)
    values = values_with(corpus={"source": "files", "path": named})
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    for place in ("tasks/corpus", "tasks/records"):
        (project / place).mkdir(parents=True)
    write_plan(project, {"corpus": define(validate_params(values))["corpus"]})
    assert json.loads(dvc(project, "status", "--json").stdout.splitlines()[-1])["corpus@text"][0]["changed deps"][named]
    output = dvc(project, "repro").stdout
    assert not ran.exists(), output
    assert output.count("Running stage ") == 1, output
