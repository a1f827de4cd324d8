"""Golden copies: what commands print and pages say, word for word; a change on purpose changes them in its commit.

`PODIUM_WRITE_GOLDEN=1 pytest tests/golden` writes them again; git shows what changed.
"""

import difflib
import os
import re
import sys
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
from tests.places import DVC_FOLDERS, ROOT, copy_project
from tests.tasks.downstream.inference.applied_models import GOOD
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS, device_job_here
from tests.tasks.hostile import Page
from tests.tasks.release.card_facts import full_card, model_card
from tests.tasks.validation.validation_data import (
    corpus_columns,
    judged_rows,
    row_columns,
    validate,
    write_corpus,
    write_tokenizer,
)

COPIES = Path(__file__).parent / "copies"
WRITE = "PODIUM_WRITE_GOLDEN"
LONGEST = 300
NUMBER = r"\d[\d,]*(?:\.\d+)?"
EVERYWHERE = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[+-]\d\d(?::?\d\d)?| [A-Z]{3,5}\b)?", "TIME"),
    (r"runs/logs/[\w-]+\.log", "runs/logs/LOG"),
    (r"\b[0-9a-f]{64}\b", "SHA256"),
    (r"(?i)(python) +\d+\.\d+\.\d+\w*", r"\1 VERSION"),
)
DURATION = (rf"\b{NUMBER} (?:ms|s|min|h)\b(?: \d+ (?:s|min)\b)?", "DURATION")
SIZE = (rf"\b{NUMBER} (?:bytes|[kKMGT]B)\b", "SIZE")


def text_of(html):
    """Return the words of a page, a line for each line of its source that has some; long lines are cut."""
    html = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    html = re.sub(r"</t[dh]>", " |", html).replace("<", " <")
    lines = (" ".join(line.split()) for line in Page(html).text.splitlines())
    return "\n".join(line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in lines if line)


@pytest.fixture
def same(tmp_path):
    """Return a function that compares a text with its golden copy, or writes the copy where PODIUM_WRITE_GOLDEN=1; what
    differs between hosts and runs is replaced first, by `more` patterns before the others."""
    words = {
        str(tmp_path / "project"): "PROJECT",
        str(tmp_path): "FOLDER",
        sys.executable: "PYTHON",
        str(ROOT): "PODIUM",
    }

    def require_same(name, text, more=()):
        for place in sorted(words, key=len, reverse=True):
            text = text.replace(place, words[place])
        for pattern, instead in (*more, *EVERYWHERE):
            text = re.sub(pattern, instead, text, flags=re.MULTILINE)
        lines, path = [line.rstrip() for line in text.splitlines()], COPIES / f"{name}.txt"
        if os.environ.get(WRITE) == "1":
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        kept = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        changes = "\n".join(difflib.unified_diff(kept, lines, f"{path.name}, kept", "now", n=1, lineterm=""))
        assert not changes, f"if it is on purpose, {WRITE}=1 pytest tests/golden, and commit the copies\n{changes}"

    return require_same


@pytest.fixture
def podium(tmp_path, monkeypatch, capsys):
    """Return a function that calls a command, and returns its words, its exit code and what it printed."""
    kept = ("PODIUM_LEDGER", WRITE)
    ours = [name for name in os.environ if name.startswith("PODIUM_") and name not in kept]
    for name in (*ours, "PREFECT_API_URL", "NO_COLOR", "FORCE_COLOR", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    fixed = {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "PODIUM_THREADS": "1", "PODIUM_CHECK_SECONDS": "120"}
    for name, value in {**fixed, **{name: str(tmp_path / name.lower()) for name in DVC_FOLDERS}}.items():
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


def every_command(command, here):
    yield here.command_path.split()[1:]
    if isinstance(command, click.Group):
        for name in command.list_commands(here):
            below = command.get_command(here, name)
            assert below is not None
            yield from every_command(below, click.Context(below, here, name))


def test_help_of_all_commands(podium, same):
    commands = every_command(cli.cli, click.Context(cli.cli, info_name="podium", **cli.cli.context_settings))
    same("help", "".join(podium(*words, "--help") for words in commands))


def test_refused_runs(podium, same, project):
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
    same("run-refused", "".join(podium("run", *words) for words in refused))


def test_a_plan_of_a_pod(podium, same, project):
    same("plan", podium("plan", "--preset", "ipu-base-pod16-examples"), ((rf"{NUMBER} .B free", "SIZE free"),))


OF_HOST = (
    (r"\n {20,}", " "),
    (r"\w+ on \w+$", "SYSTEM"),
    (r"\b\d+ cores?", "CORES"),
    (r"torch \S+ \([^)]*\)", "torch VERSION"),
    (rf"{NUMBER}(?: .B)? to {NUMBER} .B", "INTERVAL"),
    SIZE,
)


def test_doctor(podium, same, project):
    same("doctor", podium("doctor"), OF_HOST)


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


def test_runs_of_a_toy_of_three_stages(podium, same, prefect_session, toy_project, monkeypatch):  # noqa: F811
    script = toy_project / "stage.py"
    toy = script.read_text("utf-8")
    script.write_text(PAUSES)
    same("run-paused", podium("run", "--name", "paused"), OF_RUNS)
    script.write_text(toy)
    monkeypatch.setenv("TOY_FAILS", "second")
    same("run-failed", podium("run", "--name", "failed"), OF_RUNS)
    monkeypatch.delenv("TOY_FAILS")
    same("run-rejected", podium("run", "--name", "rejected") + podium("run", "--name", "rejected"), OF_RUNS)
    same("run-published", podium("run", "--name", "published", *ACCEPTED, "--verbose"), OF_RUNS)
    shown_runs = podium("runs") + podium("runs", "show", "failed") + podium("runs", "show", "published")
    same("runs", shown_runs, OF_RUNS)
    (toy_project / "runs/checkouts/rejected/data/second").unlink()
    plans = [("--name", "published", *ACCEPTED), ("--name", "rejected"), ACCEPTED, ("--set", FASTER)]
    same("plan-toy", "".join(podium("plan", *words) for words in plans), OF_RUNS)
    pages = {name: f"runs/checkouts/{name}/reports/run.html" for name in ("failed", "published")}
    for name, page in {**pages, "index": artifacts.INDEX_PAGE}.items():
        same(f"page-toy-{name}", text_of((toy_project / page).read_text("utf-8")), OF_RUNS)


def test_compare(podium, same, project):
    made(project, "slow")
    made(project, "fast", FASTER, q1="two dogs")
    same("compare", podium("compare", "slow", "fast"))


def test_evaluate_and_predict(podium, same, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "run_device_job", device_job_here)
    for name, text in GOOD.items():
        Path(name).write_text(text)
    write_head_model(tmp_path / "qa", "question_answering", (), WORDS)
    write_head_model(tmp_path / "colours", "sequence_classification", ("blue", "red"), WORDS)
    write_head_model(tmp_path / "names", "token_classification", ("O", "B-red", "I-red"), WORDS)
    cpu = ("--runtime", "cpu", "--precision", "fp32")
    predicted = podium("predict", "qa", "questions.csv", *cpu) + podium("predict", "colours", "unknown.csv", *cpu)
    same("predict", predicted, (DURATION, (r"(\d\.\d\d)\d+", r"\1")))
    evaluated = podium("evaluate", "colours", "unknown.csv", *cpu, "--output", "colours-made")
    evaluated += podium("evaluate", "names", "tagged.csv", *cpu, "--output", "names-made")
    same("evaluate", evaluated, (DURATION,))
    page = text_of(Path("colours-made/report.html").read_text("utf-8"))
    same("page-evaluate", page, ((r"\d+ [A-Z][a-z]+ 2\d{3}", "DATE"),))


PLANTED = ((re.escape(re.sub("[\x1b\u202e]", "\ufffd", EVIL)), "EVIL"), (re.escape(LONG), "LONG"))


@pytest.mark.parametrize("kind", ["questions", "classes", "several_labels", "values", "entities"])
def test_pages_of_evaluations(same, kind):
    same(f"page-evaluation-{kind}", text_of(getattr(evaluations, kind)()), PLANTED)


@pytest.mark.parametrize("state", ["published", "rejected", "failed", "paused"])
def test_pages_of_runs(same, state, tmp_path):
    report, root = made_runs.run(tmp_path / "project", state)
    same(f"page-run-{state}", text_of(run_page.render_run(RunView(report, root))), PLANTED)


def test_model_cards_and_the_page_of_all_runs(same):
    same("card", f"{model_card()}\n{full_card()}")
    same("page-index", text_of(index_page.render_index(Path("/project"), [shown(number) for number in (3, 2, 1)])))


def test_pages_of_validation(same, tmp_path):
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
        same(f"page-validation-{name}", text_of(render_page(verdict)))
