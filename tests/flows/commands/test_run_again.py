"""Commands that take an existing run: open its page, resume it, decide again, start another like it."""

import json
import os
import webbrowser

import pytest

from flows.runs import listing
from flows.runs.report import read_report
from flows.runs.run_params import read_run_params
from tasks.params.tables import find_differing
from tests.flows.toy_runs import ACCEPTED, FASTER, holding, podium, require_end, run, statuses
from tests.plans import prepare_own, resolved_params


def record_of(project, name):
    return read_report(project, listing.run_folder(project, name))


@pytest.fixture
def failed(prefect_session, after, monkeypatch):
    """The toy project after the run `mine`, which failed in its second stage."""

    def make():
        monkeypatch.setenv("TOY_FAILS", "second")
        run(FASTER, *ACCEPTED, name="mine", publish=False, to=["gate"], command="podium run with many words")
        monkeypatch.delenv("TOY_FAILS")

    return after("failed", make)


@pytest.mark.parametrize("outcome", ["failed", "killed"])
def test_an_unfinished_run_resumes_with_the_parameters_and_options_it_had(
    failed, toy_project, monkeypatch, capsys, outcome
):
    if outcome == "killed":
        record = record_of(toy_project, "mine")
        record.error = record.ended = None  # as its last record was before the kill
        record.save(toy_project)
    require_end(capsys, 1, "podium resume mine", "publish", "mine")
    require_end(capsys, 1, "run mine has published nothing", "predict", "published/mine", "--text", "a")
    monkeypatch.chdir(toy_project / "inputs")  # nothing depends on the folder, or on params.yaml of now
    params = toy_project / "params.yaml"
    params.write_text(params.read_text().replace("min_f1: 85.0", "min_f1: 99.0"))
    code, printed = podium(capsys, "resume", "mine")
    assert code == 0, printed.err
    assert statuses(toy_project) == {"first": "skipped", "second": "ran", "gate@squad": "ran"}
    record = record_of(toy_project, "mine")
    assert record.command == "podium run with many words", "the list of runs still says what it is"
    assert (record.options["publish"], record.options["to"]) == (False, ["gate"])
    assert not (toy_project / "published").exists(), "--no-publish still holds"
    assert record.overrides == [FASTER, *ACCEPTED]
    assert [start["outcome"] for start in record.earlier] == [outcome]


def test_resume_says_where_there_is_nothing_to_resume(mine, toy_project, capsys):
    prepare_own(toy_project, resolved_params(toy_project, None, []), "new")
    require_end(capsys, 3, "next: podium run --like mine --set ...", "resume", "mine")
    require_end(capsys, 1, "podium run --like new --name new", "resume", "new")
    require_end(capsys, 2, "did you mean mine", "resume", "mien")
    with holding("mine"):
        require_end(capsys, 1, "podium open mine", "resume", "mine")


@pytest.fixture
def browser(monkeypatch):
    """Addresses that were opened in a browser of a host with a display."""
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    for name in ("SSH_CONNECTION", "SSH_TTY", "PODIUM_PAGES_URL", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return opened


def test_open_shows_a_run_the_newest_one_or_all(toy_project, request, capsys, browser, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert podium(capsys, "open")[0] == 1, "no runs yet"
    request.getfixturevalue("three")
    for words, folder in ((["good"], "runs/checkouts/good/"), ([], "runs/checkouts/fast/"), (["--all"], "")):
        page = (toy_project / f"{folder}reports/{'run' if folder else 'index'}.html").as_uri()
        require_end(capsys, 0, page, "open", *words)
        assert browser.pop() == page
    require_end(capsys, 2, "did you mean good?", "open", "goood")
    monkeypatch.setenv("PODIUM_PAGES_URL", "https://pages.example/podium/")
    podium(capsys, "open", "good")
    assert browser.pop() == "https://pages.example/podium/runs/checkouts/good/reports/run.html"


@pytest.mark.parametrize("where", ["ssh", "no display", "pipe"])
def test_open_prints_the_address_where_no_browser_would_be_seen(mine, toy_project, capsys, browser, monkeypatch, where):
    monkeypatch.setattr("sys.stdout.isatty", lambda: where != "pipe")
    if where == "ssh":
        monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 22 10.0.0.2 22")
    elif where == "no display":
        monkeypatch.delenv("DISPLAY")
    code, printed = podium(capsys, "open", "mine")
    assert (code, printed.out) == (0, (toy_project / "runs/checkouts/mine/reports/run.html").as_uri() + "\n")
    assert browser == []


def test_the_gate_decides_again_and_publish_reads_that_verdict(mine, toy_project, capsys, ran):
    folder, floor = toy_project / "runs/checkouts/mine", "downstream.squad.gate.min_f1"
    ran()
    code, printed = podium(capsys, "gate", "mine", "--set", "min_f1=80")
    assert (code, ran()) == (0, []), printed.err
    assert "next: podium publish mine" in printed.err
    assert not (toy_project / "published").exists(), "publishing is a step of its own"
    assert "min_f1: 80\n" in (folder / "params.yaml").read_text()
    record = record_of(toy_project, "mine")
    assert (record.overrides, record.details["changed"][floor]) == ([f"{floor}=80"], "80")
    assert "accepted" in (folder / "reports/run.html").read_text()
    assert json.loads((folder / "metrics/squad-gate.json").read_text())["accepted"]
    require_end(capsys, 0, "podium predict published/podium-demo", "publish", "mine")
    code, printed = podium(capsys, "gate", "mine", "--set", f"{floor}=85.0")
    assert (code, "what was published before stays there: published/podium-demo" in printed.err) == (3, True)
    assert "squad gate: rejected\n" in printed.out
    assert "published before: published/podium-demo" in printed.out
    assert podium(capsys, "releases", "mine")[0] == 0
    assert record_of(toy_project, "mine").overrides == [f"{floor}=85"], "replaced"
    require_end(capsys, 3, "nothing changed: all 3 stages", "run", "--name=mine", "--to=gate", "--set", f"{floor}=85.0")
    assert ran() == [], "DVC has the same verdict"


@pytest.mark.parametrize("change", ["file", "bytes", "code"])
def test_no_gate_passes_on_stale_evidence(mine, toy_project, capsys, ran, change):
    folder = toy_project / "runs/checkouts/mine"
    scores = folder / "metrics/squad.json"
    if change == "file":
        (folder / "data/second").unlink()
        (folder / "data/second").write_text("other")
    elif change == "code":
        (folder / "stage.py").write_text((folder / "stage.py").read_text() + "\n# other\n")
    else:  # as by a disk: DVC would not notice it
        before, text = scores.stat(), scores.read_text().replace("80.5", "99.5")
        scores.chmod(0o644)
        scores.write_text(text)
        os.utime(scores, ns=(before.st_atime_ns, before.st_mtime_ns))
    params = (folder / "params.yaml").read_bytes()
    ran()
    code, printed = podium(capsys, "gate", "mine", "--set", "min_f1=80")
    assert (code, ran()) == (1, []), printed.out
    assert "is not up to date: " in printed.err or "is not what its stage wrote" in printed.err
    assert (folder / "params.yaml").read_bytes() == params
    assert not record_of(toy_project, "mine").results["gate@squad"]["decision"]["accepted"]


def test_a_gate_that_fails_leaves_the_limits_and_can_be_asked_again(mine, toy_project, capsys, monkeypatch):
    folder = toy_project / "runs/checkouts/mine"
    before = (folder / "params.yaml").read_bytes()
    monkeypatch.setenv("TOY_FAILS", "gate")
    require_end(capsys, 1, "stage gate@squad failed", "gate", "mine", "--set", "min_f1=80")
    assert (folder / "params.yaml").read_bytes() == before
    monkeypatch.delenv("TOY_FAILS")
    (folder / "data/second").write_text("done")  # where a toy that fails leaves its half
    assert podium(capsys, "gate", "mine", "--set", "min_f1=80")[0] == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["min_ff1=80"], "did you mean min_f1?"),
        (["min_f1=high"], "downstream.squad.gate.min_f1='high'"),
        (["downstream.squad.finetune.epochs=3"], "is not a limit of a gate"),
        (["released=published"], "is not a limit of a gate"),
        (["min_f1=80", "--entry", "sqad"], "did you mean squad?"),
    ],
)
def test_what_is_no_limit_of_the_run_is_refused(mine, toy_project, capsys, words, why):
    require_end(capsys, 2, why, "gate", "mine", "--set", *words)


def test_a_run_like_another_has_its_parameters_and_release_folder_of_its_own(prefect_session, toy_project, capsys):
    def params_of(name):
        return read_run_params(toy_project, toy_project / "runs/checkouts" / name)

    overrides = [FASTER, "downstream.squad.publish.folder=published/mine"]
    prepare_own(toy_project, resolved_params(toy_project, None, overrides), "mine")
    params, floor = toy_project / "params.yaml", "downstream.squad.gate.min_f1"
    params.write_text(params.read_text().replace("85.0", "84.0"))
    code, printed = podium(capsys, "run", "--like", "mine", "--name", "next", "--set", f"{floor}=1")
    assert code == 0, printed.err
    names = [name for name, _ in find_differing([params_of("mine"), params_of("next")])]
    assert names == [floor, "downstream.squad.publish.folder"]
    assert (toy_project / "published/next").is_dir()
    code, printed = podium(capsys, "run", "--like", "next", "--set", "gate.min_f1=2")
    newest = listing.list_all(toy_project)[0].name
    assert (code, newest[:5]) == (0, "next-"), "a name of its own"
    assert params_of(newest)["downstream"]["squad"]["gate"]["min_f1"] == 2, "the whole name needs no typing"
    code, printed = podium(capsys, "plan", "next", "--set", "gate.min_f1=2")
    assert (code, printed.err) == (0, "next: podium run --like next --set gate.min_f1=2\n")
    for words, why in (
        (["mien"], "did you mean mine?"),
        (["mine", "--preset", "bert"], "leave out --preset"),
        (["mine", "--name", "next"], "run next exists with other parameters"),
    ):
        require_end(capsys, 2, why, "run", "--like", *words)
    code, printed = podium(capsys, "params", "list", "squad.finetune.learning_rate", "--name", "mine")
    assert (code, printed.out.split()[1]) == (0, "3.0e-05")
    require_end(capsys, 2, "did you mean mine", "params", "list", "--name", "mien")
