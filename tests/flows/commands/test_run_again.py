"""Commands that take an existing run: open its page, resume it."""

import webbrowser

import pytest

from flows.runs import listing
from flows.runs.report import read_report
from tests.flows.runs.test_runs import Holding, podium
from tests.flows.test_pipeline import ACCEPTED, run, statuses
from tests.plans import prepare_own, resolved_params

FASTER = "downstream.squad.finetune.learning_rate=3e-5"


def record_of(project, name):
    return read_report(project, listing.run_folder(project, name))


def test_a_failed_run_resumes_with_the_parameters_and_options_it_had(
    prefect_session, toy_project, monkeypatch, capsys, ran
):
    monkeypatch.setenv("TOY_FAILS", "second")
    run(FASTER, *ACCEPTED, name="mine", publish=False, to=["gate"], command="podium run with many words")
    monkeypatch.delenv("TOY_FAILS")
    monkeypatch.chdir(toy_project / "inputs")  # nothing depends on the folder, or on params.yaml of now
    text = (toy_project / "params.yaml").read_text()
    (toy_project / "params.yaml").write_text(text.replace("min_f1: 85.0", "min_f1: 99.0"))
    ran()
    code, said = podium(capsys, "resume", "mine")
    assert code == 0, said.err
    assert statuses(toy_project) == {"first": "skipped", "second": "ran", "gate@squad": "ran"}
    record = record_of(toy_project, "mine")
    assert record.command == "podium run with many words", "the list of runs still says what it is"
    assert (record.options["publish"], record.options["to"]) == (False, ["gate"])
    assert not (toy_project / "published").exists()
    values = record_of(toy_project, "mine").overrides
    assert values == [FASTER, *ACCEPTED]


def test_a_killed_run_resumes(prefect_session, toy_project, monkeypatch, capsys):
    monkeypatch.setenv("TOY_FAILS", "second")
    run(*ACCEPTED, name="killed", publish=False)
    monkeypatch.delenv("TOY_FAILS")
    record = record_of(toy_project, "killed")
    record.error = record.ended = None  # as its last record was before the kill
    record.save(toy_project)
    code, said = podium(capsys, "resume", "killed")
    assert code == 0, said.err
    assert record_of(toy_project, "killed").results["gate@squad"]["published"] is None, "--no-publish still holds"
    assert [one["outcome"] for one in record_of(toy_project, "killed").earlier] == ["interrupted"]


def test_resume_says_where_there_is_nothing_to_resume(prefect_session, toy_project, capsys, ran):
    run(name="bad")
    ran()
    code, said = podium(capsys, "resume", "bad")
    assert (code, ran()) == (3, [])
    assert "run bad is rejected: there is nothing to resume\nnext: podium run --like bad --set ..." in said.err
    with Holding("bad"):
        code, said = podium(capsys, "resume", "bad")
    assert (code, said.err) == (1, "error: run bad is running: podium open bad shows its progress\n")
    prepare_own(toy_project, resolved_params(toy_project, None, []), "new")
    code, said = podium(capsys, "resume", "new")
    assert (code, "run new never started: podium run --like new --name new" in said.err) == (1, True)
    code, said = podium(capsys, "resume", "bda")
    assert (code, said.err) == (2, "error: run bda not found; did you mean bad?\n")


@pytest.fixture
def browser(monkeypatch):
    """Addresses that were opened in a browser of a host with a display."""
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    for name in ("SSH_CONNECTION", "SSH_TTY", "PODIUM_PAGES_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return opened


def test_open_shows_a_run_the_newest_one_or_all(prefect_session, toy_project, capsys, browser, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, said = podium(capsys, "open")
    assert (code, said.err) == (1, "error: no runs yet: podium run starts one\n")
    run(name="first")
    run(name="second")
    pages = {name: (toy_project / f"runs/checkouts/{name}/reports/run.html").as_uri() for name in ("first", "second")}
    pages["--all"] = (toy_project / "reports/index.html").as_uri()
    for words, name in ((["first"], "first"), ([], "second"), (["--all"], "--all")):
        code, said = podium(capsys, "open", *words)
        assert (code, said.out) == (0, f"{pages[name]}\n"), said.err
        assert browser.pop() == pages[name]
    code, said = podium(capsys, "open", "frist")
    assert (code, said.err) == (2, "error: run frist not found; did you mean first?\n")
    monkeypatch.setenv("PODIUM_PAGES_URL", "https://pages.example/podium/")
    podium(capsys, "open", "first")
    assert browser.pop() == "https://pages.example/podium/runs/checkouts/first/reports/run.html"


@pytest.mark.parametrize("where", ["ssh", "no display", "pipe"])
def test_open_prints_the_address_where_no_browser_would_be_seen(
    prefect_session, toy_project, capsys, browser, monkeypatch, where
):
    run(name="first")
    monkeypatch.setattr("sys.stdout.isatty", lambda: where != "pipe")
    if where == "ssh":
        monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 22 10.0.0.2 22")
    elif where == "no display":
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
    code, said = podium(capsys, "open", "first")
    assert (code, said.out) == (0, (toy_project / "runs/checkouts/first/reports/run.html").as_uri() + "\n")
    assert browser == []
