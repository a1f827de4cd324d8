"""Golden copies: what commands print and pages say, word for word; a change on purpose changes them in its commit.

`PODIUM_WRITE_GOLDEN=1 pytest tests/golden` writes them again; git shows what changed.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from flows import cli
from flows.views import index_page, run_page
from flows.views.run_view import RunView
from tasks.downstream.inference import job
from tasks.params.schema import load_params
from tasks.stage import artifacts
from tasks.validation.pretraining_checks import CorpusData
from tasks.validation.validate import render_page
from tests.browser import evaluations, made_runs
from tests.browser.planted import EVIL, LONG
from tests.flows.conftest import prefect_server, prefect_session, toy_project  # noqa: F401 (fixtures)
from tests.flows.toy_runs import FASTER
from tests.flows.views.compared_runs import made
from tests.flows.views.shown_runs import shown
from tests.golden.masking import DURATION, NUMBER, SIZE, mask, require_same, text_of
from tests.places import ROOT, copy_project
from tests.tasks.downstream.inference.applied_models import GOOD
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS, device_job_here
from tests.tasks.release.card_facts import full_card, model_card
from tests.tasks.validation.validation_data import (
    corpus_columns,
    judged_rows,
    row_columns,
    validate,
    write_corpus,
    write_tokenizer,
)

Podium = Callable[..., str]


@pytest.fixture
def podium(tmp_path, monkeypatch, capsys):
    """Return a function that calls a command, and returns its words, its exit code and what it printed."""
    kept = ("PODIUM_LEDGER", "PODIUM_WRITE_GOLDEN")
    ours = [name for name in os.environ if name.startswith("PODIUM_") and name not in kept]
    for name in (*ours, "PREFECT_API_URL", "NO_COLOR", "FORCE_COLOR", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    fixed = {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "PODIUM_THREADS": "1", "PODIUM_CHECK_SECONDS": "120"}
    homes = ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR")
    for name, value in {**fixed, **{name: str(tmp_path / name.lower()) for name in homes}}.items():
        monkeypatch.setenv(name, value)

    def call(*words):
        try:
            cli.main(words)
            code = 0
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        parts = [f"$ podium {' '.join(words)}", f"exit code {code}"]
        parts += [
            f"{name}:\n{text.rstrip()}" for name, text in (("stdout", printed.out), ("stderr", printed.err)) if text
        ]
        return "\n".join(parts) + "\n\n"

    return call


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = copy_project(tmp_path / "project")
    monkeypatch.setattr(cli, "SELF", folder)  # else the command starts again with the code of the copy
    monkeypatch.chdir(folder)
    return folder


def places(project):
    return {"PROJECT": project, "FOLDER": project.parent}


def every_command(command, here):
    yield here.command_path.split()[1:]
    if isinstance(command, click.Group):
        for name in command.list_commands(here):
            below = command.get_command(here, name)
            assert below is not None
            yield from every_command(below, click.Context(below, here, name))


def test_help_of_all_commands(podium):
    commands = every_command(cli.cli, click.Context(cli.cli, info_name="podium", **cli.cli.context_settings))
    require_same("help", mask("".join(podium(*words, "--help") for words in commands), {}))


def test_refused_runs(podium, project):
    refused = (
        ("--set", "no.such=1"),
        ("--set", "downstream.squad.gate.min_f=80"),
        ("--set", "pretrain.phase1.steps=many"),
        ("--set", "model.hidden_size=7"),
        ("--preset", "no-such"),
        ("--name", "a/b"),
        ("--to", "finetun@squad"),
        ("--set", "corpus.source=files", "--set", "corpus.path=nowhere"),
        ("--no-such",),
    )
    require_same("run-refused", mask("".join(podium("run", *words) for words in refused), places(project)))


def test_a_plan_of_a_pod(podium, project):
    free = ((rf"{NUMBER} .B free", "SIZE free"),)
    require_same("plan", mask(podium("plan", "--preset", "ipu-base-pod16-examples"), places(project), free))


def test_doctor(podium, project):
    of_host = (
        (r"\n {20,}", " "),
        (r"\w+ on \w+$", "SYSTEM"),
        (r"\b\d+ cores?", "CORES"),
        (r"torch \S+ \([^)]*\)", "torch VERSION"),
        (rf"{NUMBER}(?: .B)? to {NUMBER} .B", "INTERVAL"),
        SIZE,
    )
    require_same("doctor", mask(podium("doctor"), places(project), of_host))


ACCEPTED = ("--set", "downstream.squad.gate.min_f1=80.0")
PAUSES = """import sys
from tasks.stage.events import report
report("paused", text="pretrain job: stopped on request, after update 3 of 7")
sys.exit(4)
"""
OF_RUNS = (
    (r"^(.*(?: ran| failed| paused| restored|all stages|wall time)) +\d+\.\d$", r"\1  SECONDS"),
    (r"^(started by|host) .*", r"\1 SOMEBODY"),
    (r"\| cpu \| [^ |]+ \|", "| cpu | SOMEBODY |"),
    (r"duration +age +size +command", "duration  age  size  command"),
    (r"(?:just now|\d+ min ago) +", "AGE  "),
    (rf"{SIZE[0]} +", "SIZE  "),
    SIZE,
    DURATION,
    (r"DURATION +AGE", "DURATION  AGE"),
    (r"^DURATION(?: DURATION)*$", "AXIS"),
)


def test_runs_of_a_toy_of_three_stages(podium, prefect_session, toy_project, monkeypatch):  # noqa: F811
    def same(name, text):
        require_same(name, mask(text, places(toy_project), OF_RUNS))

    script = toy_project / "stage.py"
    toy = script.read_text("utf-8")
    script.write_text(PAUSES)
    same("run-paused", podium("run", "--name", "paused"))
    script.write_text(toy)
    monkeypatch.setenv("TOY_FAILS", "second")
    same("run-failed", podium("run", "--name", "failed"))
    monkeypatch.delenv("TOY_FAILS")
    same("run-rejected", podium("run", "--name", "rejected") + podium("run", "--name", "rejected"))
    same("run-published", podium("run", "--name", "published", *ACCEPTED, "--verbose"))
    same("runs", podium("runs") + podium("runs", "show", "failed") + podium("runs", "show", "published"))
    (toy_project / "runs/checkouts/rejected/data/second").unlink()
    plans = [("--name", "published", *ACCEPTED), ("--name", "rejected"), ACCEPTED, ("--set", FASTER)]
    same("plan-toy", "".join(podium("plan", *words) for words in plans))
    for name in ("failed", "published"):
        same(f"page-toy-{name}", text_of((toy_project / f"runs/checkouts/{name}/reports/run.html").read_text("utf-8")))
    same("page-toy-index", text_of((toy_project / artifacts.INDEX_PAGE).read_text("utf-8")))


def test_compare(podium, project):
    made(project, "slow")
    made(project, "fast", FASTER, q1="two dogs")
    require_same("compare", mask(podium("compare", "slow", "fast"), places(project)))


def test_evaluate_and_predict(podium, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_device_job", device_job_here)
    for name, text in GOOD.items():
        Path(name).write_text(text)
    write_head_model(tmp_path / "qa", "question_answering", (), WORDS)
    write_head_model(tmp_path / "colours", "sequence_classification", ("blue", "red"), WORDS)
    write_head_model(tmp_path / "names", "token_classification", ("O", "B-red", "I-red"), WORDS)
    cpu = ("--runtime", "cpu", "--precision", "fp32")
    folder = {"FOLDER": tmp_path}
    predicted = podium("predict", "qa", "questions.csv", *cpu) + podium("predict", "colours", "unknown.csv", *cpu)
    require_same("predict", mask(predicted, folder, (DURATION, (r"(\d\.\d\d)\d+", r"\1"))))
    evaluated = podium("evaluate", "colours", "unknown.csv", *cpu, "--output", "colours-made")
    evaluated += podium("evaluate", "names", "tagged.csv", *cpu, "--output", "names-made")
    require_same("evaluate", mask(evaluated, folder, (DURATION,)))
    page = text_of(Path("colours-made/report.html").read_text("utf-8"))
    require_same("page-evaluate", mask(page, folder, ((r"\d+ [A-Z][a-z]+ 2\d{3}", "DATE"),)))


PLANTED = ((re.escape(re.sub("[\x1b\u202e]", "\ufffd", EVIL)), "EVIL"), (re.escape(LONG), "LONG"))


@pytest.mark.parametrize("kind", ["questions", "classes", "several_labels", "values", "entities"])
def test_pages_of_evaluations(kind):
    require_same(f"page-evaluation-{kind}", mask(text_of(getattr(evaluations, kind)()), {}, PLANTED))


@pytest.mark.parametrize("state", ["published", "rejected", "failed", "paused"])
def test_pages_of_runs(state, tmp_path):
    report, root = made_runs.run(tmp_path, state)
    require_same(
        f"page-run-{state}", mask(text_of(run_page.render_run(RunView(report, root))), {"PROJECT": root}, PLANTED)
    )


def test_model_cards():
    require_same("card", mask(f"{model_card()}\n{full_card()}", {}))


def test_page_of_all_runs():
    html = index_page.render_index(Path("/project"), [shown(number) for number in (3, 2, 1)])
    require_same("page-index", mask(text_of(html), {}))


def test_pages_of_validation(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    broken = corpus_columns()
    broken["document_id"][3], broken["text"][4], broken["text"][5] = "doc-2", None, " "
    wrong = row_columns("pretrain")
    wrong["input_ids"][1, 3], wrong["position_ids"][0, 9] = 40, 2
    limits = load_params(ROOT / "params.yaml").validate_
    verdicts = {
        "corpus": validate(CorpusData(write_corpus(tmp_path / "sound", corpus_columns()), limits)),
        "corpus-broken": validate(CorpusData(write_corpus(tmp_path / "broken", broken), limits)),
        "rows": judged_rows(tmp_path / "a", tokenizer, "squad-train"),
        "rows-wrong": judged_rows(tmp_path / "b", tokenizer, "phase1", wrong),
    }
    for name, verdict in verdicts.items():
        require_same(f"page-validation-{name}", mask(text_of(render_page(verdict)), {"FOLDER": tmp_path}))
