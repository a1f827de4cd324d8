"""Commands of the documents: those of Podium are read, or run; tests/documented.py says where others are run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from flows.checks.preflight import require_runnable
from flows.cli import cli
from flows.runs.checkout import checkout_folder
from ipu_model.core.files import write_json
from tasks.params.overlays import read_base, resolve
from tasks.params.schema import validate_params
from tasks.stage.artifacts import metrics_file
from tests.documented import DOCUMENTS, ELSEWHERE, FIRST_STEPS, HERE, LANGUAGES, blocks, every_command
from tests.places import ROOT, copy_project
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

COMMANDS = every_command()
TOWNS = list(map("".join, product(("Bel", "Tar", "Gon", "Mir", "Sol", "Ven"), ("lin", "nis", "dor", "ka", "wy"))))
RULERS = list(map("".join, product(("An", "Ot", "Lu", "Ro", "Ed", "Ka"), ("na", "to", "mir", "wig", "da"))))
TRAINED = 20
"""Of the towns: with two questions each more than the 32 sequences behind an update."""
QUESTION_WORDS = ("who", "rules", "has", "as", "ruler", "a", "town", "on", "river", ".", "?")
WORDS = sorted({*QUESTION_WORDS, *(name.lower() for name in (*TOWNS, *RULERS))})
README_WORDS = 900
DVC_CONFIG = "[core]\n    no_scm = true\n    analytics = false\n"


def podium_words(command):
    called = re.search(r"(?:^|[A-Z]+=\w+ |\| )podium (.*)", command)
    return shlex.split(re.split(r" (?:\||>|&&) ", called[1])[0]) if called else []


def test_every_block_says_what_it_is_and_none_of_words_hides_a_command():
    """A block of text may show what a command prints, and begins with none."""
    begins = re.compile(r"\s*(\$ )?(podium|make|dvc|python -m|prefect) \w")
    for name in DOCUMENTS:
        for kind, text in blocks(name):
            assert kind in LANGUAGES, name
            assert kind != "text" or not begins.match(text), name


def test_every_command_is_podiums_run_by_a_test_or_told_where_it_is_run():
    begins = [begin for some in ELSEWHERE.values() for begin in some]
    others = [command for command in COMMANDS if not podium_words(command) and command not in HERE]
    assert [command for command in others if not command.startswith(tuple(begins))] == []
    gone = [begin for begin in begins if not any(command.startswith(begin) for command in others)]
    assert sorted({*HERE, *FIRST_STEPS} - set(COMMANDS)) + gone == [], "they are in no document any more"
    places = {place for where in ELSEWHERE for place in re.findall(r"tests/[\w/.]*\w|[.]ci/\w+", where)}
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_readme_is_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS


def _article(town, ruler, number):
    """A town with its text and its questions, as SQuAD has them; no rule without a model finds every answer."""
    texts = (f"{ruler} rules {town}. {town} a town on a river.", f"{town} on a river has {ruler} as ruler.")
    text = texts[number % 2]
    asked = {town: f"Who rules {town}?", f"{town}-2": f"{town} has who as ruler?"}
    answers = [{"text": ruler, "answer_start": text.index(ruler)}]
    questions = [{"id": name, "question": question, "answers": answers} for name, question in asked.items()]
    return {"title": town, "paragraphs": [{"context": text, "qas": questions}]}


def _write_able_model(folder):
    """Write a tiny model that points at the names of rulers, so that fine-tuning it beats the baseline."""
    write_tiny_model(folder, WORDS)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith("output.dense.weight"):
            weights[name][:] = 0
    vocabulary = [*SPECIAL, *WORDS]
    weights["bert.embeddings.word_embeddings.weight"][[vocabulary.index(name.lower()) for name in RULERS], 0] = 20
    weights["qa_outputs.weight"][:, 0] = 10
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project with the files that the documents speak of; the working folder."""
    for name in ("params.yaml", "dvc.yaml", "presets", "inputs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, part in (("train", slice(TRAINED)), ("dev", slice(TRAINED, None))):
        pairs = [*zip(TOWNS, RULERS, strict=True)][part]
        articles = [_article(*pair, number) for number, pair in enumerate(pairs)]
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": articles}))
    for name in ("predictions", "first", "second"):
        answers = {town: ruler if name == "second" else "Anna" for town, ruler in pairs}
        (tmp_path / f"{name}.json").write_text(json.dumps(answers))
    _write_able_model(tmp_path / "my-bert")
    (tmp_path / "my-text").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(words):
    """The command that click finds for some words, and what it reads of them; nothing is carried out."""
    command, parent = cli, click.Context(cli, info_name="podium", **cli.context_settings)
    while isinstance(command, click.Group):
        while words[0] == "--project":
            words = words[2:]
        command = command.get_command(parent, words[0])
        assert command is not None, words
        parent = command.make_context(words[0], list(words[1:]), parent=parent)
        words = [*parent._protected_args, *parent.args] if isinstance(command, click.Group) else ()
    return parent


@pytest.mark.parametrize("command", [*filter(podium_words, COMMANDS)])
def test_the_words_of_a_command_are_read_and_its_parameters_can_be_used(here, command):
    """As far as a command goes before it looks at files and begins its first stage."""
    options = read(podium_words(command)).params
    if "overrides" in options and "preset" in options:
        values = resolve(read_base(options["preset"]), options["preset"], list(options["overrides"]))
        planned = validate_params(values).downstream
        for stage in options.get("to") or ():
            assert stage.partition("@")[2] in planned, stage


@pytest.fixture
def trained(here, monkeypatch):
    """The files that the commands of training read, and the requests that were carried out up to their first stage."""

    def make_other(text):
        return text.replace("town", "city").replace("river", "lake").replace("Anna", "Ada")

    pair = json.dumps({"data": [_article(TOWNS[0], RULERS[0], 0)]})
    tables = {
        "train.csv": "review,sentiment,text,label\n" + "a town,good,a town,good\na river,bad,a river,bad\n" * 9,
        "train.conll": "Anna B-PER\nrules O\n\n" * 9,
        "my-glue/SST-2/train.tsv": "sentence\tlabel\n" + "a town\t1\na river\t0\n" * 9,
        "train.json": pair,
        "dev.json": pair,
        "pairs.csv": "question,passage\n" + "who,a town\nwhere,a river\n" * 9,
        "pairs-dev.csv": "question,passage\n" + "who,a city\nwhere,a lake\n" * 9,
        "my-text/a.txt": "A town. It has a river.\n\n" * 20,
    }
    for name, text in tables.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.stem == "train":
            path.with_stem("dev").write_text(text if path.suffix == ".json" else make_other(text))
    (here / ".dvc").mkdir()
    write_head_model(here / "teacher", "sequence_classification", ("bad", "good"), WORDS)
    requests = []

    def start(request, *more):
        if not requests:
            require_runnable(request)
        requests.append(request)
        return 0, None

    def try_recipe(command, project, *more):
        CliRunner().invoke(cli, command[command.index("run") :], catch_exceptions=False)
        job = "pretrain-phase2" if "pretrain" in str(requests[-1].options.to) else "squad-finetune"
        held_out = {"judged_by": "loss", "loss": 1.0, "mlm_loss": 1.0}
        write_json(checkout_folder(project, requests[-1].name) / metrics_file(job), {"held_out": held_out})
        return 0

    monkeypatch.setenv("PODIUM_STAGE_KINDS", "cpu")  # or each would ask the device of this host, for a second
    monkeypatch.setattr("flows.commands.run._run_locked", start)
    monkeypatch.setattr("flows.commands.sweep_runs._run", try_recipe)
    monkeypatch.setattr("flows.commands.sweep_runs.write_seed_scores", lambda *arguments: None)
    return requests


TRAINING = [command for command in COMMANDS if re.match("podium (finetune|pretrain|sweep)(?!.*signing=key)", command)]


@pytest.mark.parametrize("command", TRAINING)
def test_a_command_that_trains_comes_to_its_first_stage(trained, command):
    words = podium_words(command.replace("--layers 3", "--layers 1"))  # the teacher has one
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert trained


@pytest.fixture
def shell(here, tmp_path_factory):
    """Runs a command of the documents in bash, with `podium` in the path; in the project."""
    tools = tmp_path_factory.mktemp("bin")
    for name, words in (("podium", "-m flows "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (tools / name).chmod(0o755)
    (here / "params.yaml").unlink()
    (here / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    (here / ".dvc").mkdir()
    (here / ".dvc" / "config").write_text(DVC_CONFIG)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "PODIUM_EXECUTABLE_CACHE": str(here / "cache"), "HOME": str(here)}

    def run(command, code=ROOT):
        environment = {**os.environ, **settings, "PYTHONPATH": str(code)}
        words = ["bash", "-c", command]
        return subprocess.run(words, cwd=here, env=environment, text=True, capture_output=True, timeout=1200)

    return run


def test_commands_that_take_seconds_do_what_is_said(shell, here):
    for command in HERE:
        words = podium_words(command)
        if words and not re.search("[$>&|]", command):
            done = CliRunner().invoke(cli, words, catch_exceptions=False)
            assert done.exit_code == 0, (command, done.output)
        else:
            done = shell(command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert json.loads((here / "comparison.json").read_text())
    assert "hidden_size: 768" in (here / "params.yaml").read_text()
    assert "store" in (here / ".dvc" / "config.local").read_text()


@pytest.mark.soak
def test_the_first_steps_of_fine_tuning(shell, here):
    """A model of a few thousand weights and thirty questions, through the commands of docs/finetune.md."""
    for name in ("dvc.yaml", "presets", "inputs", "params.yaml"):
        (here / name).unlink()
    shutil.rmtree(here / ".dvc")
    copy_project(here)
    (here / ".dvc" / "config").write_text(DVC_CONFIG)
    for command in FIRST_STEPS:
        done = shell(command, code=here)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert len(json.loads((here / "answers.json").read_text())) == 20
