"""Every module that can be run answers --help and does nothing; what `podium` finds and says before it works."""

import json
import os
import re
import subprocess
import sys
import tomllib

import click
import pytest

from flows.cli import cli
from ipu_model.core.files import write_json
from tests.places import ROOT, copy_project

PACKAGES = ("flows", "tasks", "ipu_model")
RUNNABLE = re.compile(r"^if __name__ == .__main__.:", re.MULTILINE)
HELP = """
import contextlib, io, json, runpy, sys
answers = {}
for module in json.loads(sys.argv[1]):
    printed, code = io.StringIO(), 0
    sys.argv = [module, "--help"]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = 0 if end.code is None else end.code
    answers[module] = f"{code} {printed.getvalue()}"
sys.stdout.write(json.dumps(answers))
"""
"""Runs modules one after the other in one process, so that what they import is imported once."""


def runnable():
    files = [path for package in ("flows", "tasks", "ipu_model", "bench") for path in (ROOT / package).rglob("*.py")]
    paths = [path.relative_to(ROOT) for path in files if RUNNABLE.search(path.read_text(encoding="utf-8"))]
    names = [".".join(path.with_suffix("").parts).removesuffix(".__main__") for path in paths]
    return sorted({*names} - {"tasks.stage.start"})  # which is told a module, and runs that


def test_every_module_that_can_be_run_answers_help_and_does_nothing(tmp_path):
    """In a project of which every byte is known."""
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "presets").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PODIUM_", "PREFECT_"))}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "DVC_NO_ANALYTICS": "1"}
    words = [sys.executable, "-c", HELP, json.dumps(runnable())]
    pipes = {"text": True, "stdin": subprocess.DEVNULL, "capture_output": True}
    done = subprocess.run(words, cwd=tmp_path, env=environment, timeout=300, **pipes)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) > 10
    helped = re.compile(r"0 .*(usage:|--help)", re.DOTALL | re.IGNORECASE)
    assert {module: answer for module, answer in answers.items() if not helped.match(answer)} == {}
    assert {path.name for path in tmp_path.iterdir()} - {".prefect"} == {"params.yaml", "dvc.yaml", "presets"}


PODIUM = [sys.executable, "-m", "flows"]


def podium(*words, cwd=ROOT, **environment):
    settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([*PODIUM, *words], cwd=cwd, text=True, capture_output=True, timeout=120, env=settings)


@pytest.fixture
def clone(tmp_path):
    """A folder that is taken for a clone of Podium, with no code in it."""
    folder = tmp_path / "clone"
    (folder / "flows").mkdir(parents=True)
    for name in ("dvc.yaml", "params.yaml", "flows/cli.py"):
        (folder / name).touch()
    (folder / "presets").mkdir()
    return folder


@pytest.mark.parametrize(
    ("script", "late"),
    [
        ("from flows.cli import cli; cli.main(['--help'], standalone_mode=False)", "prefect torch pydantic yaml dvc"),
        (  # nothing between the parameters and the first line of a run imports these (flows/commands/run.py)
            "import flows.commands.finetune, flows.commands.run, flows.runs.run_request",
            "prefect numpy pyarrow torch flows.checks.preflight",
        ),
    ],
    ids=["help", "first line of a run"],
)
def test_what_takes_long_is_imported_late(script, late):
    ask = f"{script}; import sys; print([m for m in {late.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, text=True, capture_output=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_command_works_from_any_folder_of_the_project_and_from_elsewhere_by_name(tmp_path):
    inside = podium("params", "list", "min_f1", cwd=ROOT / "tests" / "flows")
    assert inside.stdout.startswith("downstream.squad.gate.min_f1"), inside.stderr
    elsewhere = podium("--project", str(ROOT), "params", "list", "min_f1", cwd=tmp_path)
    assert elsewhere.stdout == inside.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "neither {folder} nor"),
        (["--project", "no-such", "run"], "--project no-such is not"),
        (["params", "show"], "dvc.yaml, params.yaml, presets/"),
    ],
)
def test_where_there_is_no_project_it_is_said_plainly(tmp_path, words, message):
    done = podium(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.match(f"error: .*{message.format(folder=tmp_path)}", done.stderr)


def test_files_of_the_command_line_count_from_where_it_was_called(tmp_path):
    question = {"id": "1", "question": "who?", "answers": [{"text": "dog", "answer_start": 2}]}
    paragraph = {"context": "a dog", "qas": [question]}
    write_json(tmp_path / "questions.json", {"data": [{"title": "t", "paragraphs": [paragraph]}]})
    write_json(tmp_path / "answers.json", {"1": "dog"})
    done = podium("--project", str(ROOT), "evaluate", "answers.json", "questions.json", cwd=tmp_path)
    assert done.stdout == "1 questions, exact match 100.00, F1 100.00\n", done.stderr


def test_a_project_runs_its_own_code_and_not_that_of_the_command(clone):
    (clone / "flows" / "__init__.py").touch()
    (clone / "flows" / "__main__.py").write_text("import os, sys; print('own', os.getcwd(), sys.argv[1:])")
    done = podium("params", "list", cwd=clone / "presets")
    assert done.stdout == f"own {clone} ['params', 'list']\n"


def test_a_python_that_takes_other_code_than_the_projects_is_refused_and_not_started_for_ever(clone):
    done = podium("params", "list", cwd=clone)  # its flows are no package: that of PYTHONPATH comes first
    assert done.returncode == 2
    assert re.fullmatch(f"error: .*{ROOT}.*{clone}.*PYTHONPATH\n", done.stderr)


@pytest.mark.parametrize("words", [["params", "list", "min_f1"], ["--project", "clone", "params", "list", "min_f1"]])
def test_packages_elsewhere_that_are_called_as_ours_are_not_taken(tmp_path, words):
    """Whatever PYTHONPATH names, and with a Python that does not take what is in the current folder."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('another package')")
    copy_project(tmp_path / "clone")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["podium"].split(":")
    code = f"import sys; sys.path.append({str(ROOT)!r}); from {module} import {function}; {function}()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=tmp_path if "--project" in words else ROOT,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
    )
    assert done.stdout.startswith("downstream.squad.gate.min_f1"), done.stderr


@pytest.mark.parametrize(
    ("earlier", "today"),
    [
        ("ask MODEL QUESTION --context C", "predict MODEL --text QUESTION --context C"),
        ("score QUESTIONS PREDICTIONS --json", "evaluate PREDICTIONS QUESTIONS --json"),
        ("ledger --json", "plan --ledger --json"),
        ("presets show bert", "params presets show bert"),
        ("promote RUN --as stable", "releases promote RUN --as stable"),
        ("rollback RUN", "releases rollback RUN"),
    ],
)
def test_commands_of_earlier_versions_run_as_those_of_today(earlier, today):
    resolved = [cli.resolve_command(click.Context(cli), words.split()) for words in (earlier, today)]
    assert resolved[0] == resolved[1]


def test_words_that_are_no_command_end_with_2_and_where_help_is():
    for words in (["no-such-command"], ["run", "--no-such"], ["run", "more"]):
        done = podium(*words)
        assert done.returncode == 2, done.stderr
        assert (done.stderr.startswith("error: "), "\nnext: podium" in done.stderr) == (True, True), done.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("podium run --preset small", ["small-files"]),
        ("podium run --preset glue-sst2-small --set downstream.glue-sst2.t", ["downstream.glue-sst2.task="]),
        ("podium params diff de", ["demo"]),
    ],
)
def test_parameters_are_completed_as_the_preset_has_them(words, completed):
    done = podium(_PODIUM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert done.stdout.split() == [f"plain,{word}" for word in completed], done.stderr


def test_outside_the_environment_it_is_said_how_to_make_one(tmp_path):
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import flows.__main__"]
    done = subprocess.run(bare, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*\bclick\b.*`make setup`.*\n", done.stderr)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_json_stays_json_where_the_terminal_lacks_letters(tmp_path, encoding):
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text("corpus: {path: été}\n", encoding="utf-8")
    (tmp_path / "presets").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    printed = subprocess.check_output([*PODIUM, "params", "list", "--json"], cwd=tmp_path, env=environment)
    assert json.loads(printed.decode(encoding))[0]["value"] == "été"


def test_what_a_full_disk_left_of_compiled_modules_is_said(tmp_path):
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    assert podium("params", "presets", "bert", **compiled).returncode == 0
    (module,) = tmp_path.rglob("flows/commands/presets.*.pyc")
    module.write_bytes(module.read_bytes()[:-40])
    done = podium("params", "presets", "bert", **compiled)
    assert done.returncode == 1
    assert "compiled files are damaged" in done.stderr
