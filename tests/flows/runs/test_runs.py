"""Runs have names, are listed with their results, and a lock tells them from running ones."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from flows import pipeline  # noqa: F401 (what the flow imports is counted as well)
from flows.runs import checkout, listing, locks, report
from flows.runs.log import redirect_logging
from flows.runs.run_options import RunOptions
from flows.runs.run_params import read_run_params, require_same_params
from flows.runs.run_request import resolve_request
from flows.views import screen
from ipu_model.core.files import write_json
from tasks.params import schema
from tasks.params.schema import validate_params
from tasks.plan import stages, writing
from tasks.stage.errors import ParamsError
from tests.flows.toy_runs import ACCEPTED, FASTER, holding, podium, require_end, run, run_json
from tests.plans import prepare_own, resolved_params

BEGAN = {"began": "2026-11-23T10:00:00+0000"}


def listed(capsys, *words):
    """Name -> what `podium runs` says of a run."""
    code, printed = podium(capsys, "runs", *words, "--json")
    assert code == 0, printed.err
    return {values["name"]: values for values in json.loads(printed.out)}


def prepare(project, name, *overrides):
    return prepare_own(project, resolved_params(project, None, list(overrides)), name)


def test_what_a_run_sent_to_a_worker_of_its_own_host_is_listed_once(toy_project, capsys):
    for name, values in {
        "ours": {"options": {"on_workers": True}},
        "ours-1a2b3c4d": {"command": report.SENT},
        "theirs-1a2b3c4d": {"command": report.SENT},  # of a run on another host
        "mine": {"options": {"on_workers": False}},
        "mine-1a2b3c4d": {"command": "podium run"},
    }.items():
        report.RunReport(f"runs/checkouts/{name}", **BEGAN, **values).save(toy_project)
    names = {"ours", "theirs-1a2b3c4d", "mine", "mine-1a2b3c4d"}
    assert listed(capsys).keys() == names
    podium(capsys, "runs", "--page")
    page = (toy_project / "reports/index.html").read_text()
    assert set(re.findall(r'data-word="(.*?)"', page)) == names
    assert len(listing.list_all(toy_project)) == 5, "podium clean sees all"


def test_trials_are_listed_below_their_sweep(toy_project, capsys):
    trials = []
    for number, score in ((1, 0.5), (2, 0.75)):
        name, began = f"try-{number}", f"2026-11-23T1{number}:00:00+0000"
        report.RunReport(f"runs/checkouts/{name}", command="podium sweep", began=began, ended=began).save(toy_project)
        scores = {"score": score, "held_out": {"judged_by": "label_accuracy", "label_accuracy": score}}
        trials.append({"name": name, "values": {"learning_rate": number}, "state": "complete", **scores})
    report.RunReport("runs/checkouts/other", began="2026-11-23T11:30:00+0000").save(toy_project)
    write_json(toy_project / "runs/sweeps/try.json", {"trials": trials})
    lines = podium(capsys, "runs")[1].out.splitlines()[1:5]
    rows = [re.split(r"  +", line.strip())[:3] for line in lines]
    assert rows[:3] == [
        ["try", "2 trials", "best held-out label accuracy 75.00 %"],
        ["try-2", "finished", "held-out label accuracy 75.00 %"],
        ["try-1", "finished", "held-out label accuracy 50.00 %"],
    ]
    assert (lines[1][:7], rows[3][0]) == ("  try-2", "other")


def test_a_name_goes_on_with_the_same_parameters_and_refuses_others(prefect_session, toy_project, capsys, ran):
    assert run(FASTER, name="fast", command="podium run --name fast --set ...").name == "Rejected"
    folder = toy_project / "runs" / "checkouts" / "fast"
    assert (folder / "data" / "second").read_text() == "done"
    ran()
    assert run(FASTER, name="fast").name == "Rejected"
    assert ran() == [], "it went on where it was"
    before = (folder / "params.yaml").read_bytes()
    for words in (["run"], ["plan"], ["doctor"], ["publish", "--set", "device.runtime=cpu"]):
        require_end(capsys, 2, "finetune.learning_rate  3e-05", *words, "--name", "fast")
    assert (folder / "params.yaml").read_bytes() == before


def test_a_run_that_failed_before_its_first_training_does_not_use_up_its_name(
    prefect_session, toy_project, monkeypatch, capsys
):
    monkeypatch.setenv("TOY_FAILS", "second")
    run("corpus.demo_documents=500", name="mine")
    monkeypatch.delenv("TOY_FAILS")
    code, printed = podium(capsys, "run", "--name", "mine", "--set", FASTER, "--set", *ACCEPTED)
    assert code == 0, printed.err
    assert "learning_rate: 3.0e-05" in (toy_project / "runs/checkouts/mine/params.yaml").read_text()
    assert [start["outcome"] for start in run_json(toy_project)["earlier"]] == ["failed"]
    require_end(capsys, 2, "run mine exists with other parameters", "run", "--name", "mine")


@pytest.mark.parametrize("evidence", ["stage", "running", "lock", "checkpoint"])
def test_a_failed_run_that_has_trained_keeps_its_parameters(toy_project, capsys, evidence):
    folder = prepare(toy_project, "mine")
    record = report.RunReport("runs/checkouts/mine", error="it failed", **BEGAN)
    record.end()
    record.stages = [report.StageRecord("finetune@squad", "ran" if evidence == "stage" else "failed", 1.0)]
    if evidence == "running":  # killed
        record.ended, record.at_work = None, {"pretrain@phase1": 1.0}
    elif evidence == "lock":
        (folder / "dvc.lock").write_text("schema: '2.0'\nstages:\n  finetune@squad: {cmd: one}\n")
    elif evidence == "checkpoint":
        (folder / "runs/squad-finetune/abc/step-00000100").mkdir(parents=True)
    record.save(toy_project)
    require_end(capsys, 2, "run mine exists with other parameters", "plan", "--name", "mine", "--set", FASTER)


EMPTY = [[option, ""] for option in ("--to", "--part", "--set")]


@pytest.mark.parametrize("words", [*([f"--name={name}"] for name in ("", "..", "a/b", ".x", "é", "x" * 81)), *EMPTY])
def test_what_cannot_be_a_name_and_an_empty_option_are_refused_and_touch_nothing(toy_project, capsys, words):
    require_end(capsys, 2, words[0].partition("=")[0], "run", *words)
    assert not (toy_project / "runs").exists()


def test_a_given_file_counts_as_the_same_parameter_from_wherever_the_checkout_sees_it(toy_project):
    (toy_project.parent / "mine.txt").write_text("text")
    values = resolved_params(toy_project, None, ["corpus.path=../mine.txt"])
    prepare_own(toy_project, values, "mine")
    require_same_params(toy_project, values, "mine")
    assert read_run_params(toy_project, toy_project / "runs/checkouts/mine") == values
    with pytest.raises(ParamsError, match="corpus.path"):
        require_same_params(toy_project, resolved_params(toy_project, None, []), "mine")


def test_a_parameter_that_came_since_counts_with_its_default(toy_project):
    file = prepare(toy_project, "old") / "params.yaml"
    lines = file.read_text().splitlines(True)
    file.write_text("".join(line for line in lines if "evaluate_rows" not in line))
    assert file.read_text() != "".join(lines)
    require_same_params(toy_project, resolved_params(toy_project, None, []), "old")
    with pytest.raises(ParamsError, match="pretrain.evaluate_rows"):
        require_same_params(toy_project, resolved_params(toy_project, None, ["pretrain.evaluate_rows=7"]), "old")


def test_publish_takes_a_run_by_its_name_and_changes_parameters_of_publishing_alone(
    prefect_session, toy_project, capsys, monkeypatch
):
    run(*ACCEPTED, name="good", publish=False)
    file = toy_project / "runs/checkouts/good/params.yaml"
    before = file.read_text()
    license = ("publish", "good", "--set", "publish.license=mit")
    for words in (
        (*license, "--set", "publish.signing=wax"),
        (*license, "--set", "pretrain.evaluate_rows=7"),
        ("publish", ".", "--set", "publish.license=mit"),
    ):
        assert (podium(capsys, *words)[0], file.read_text()) == (2, before)
    monkeypatch.setenv("TOY_FAILS", "publish")
    assert (podium(capsys, *license)[0], file.read_text()) == (1, before)
    monkeypatch.delenv("TOY_FAILS")
    assert (podium(capsys, *license)[0], "license: mit\n" in file.read_text()) == (0, True)
    assert report.read_report(toy_project, file.parent).overrides == [*ACCEPTED, 'publish.license="mit"']
    assert (toy_project / "published" / "podium-demo").is_dir()
    require_end(capsys, 2, "run bad not found", "publish", "--name", "bad")
    require_end(capsys, 2, "--task sst2 not found", "publish", "good", "--task", "sst2")


def test_the_list_says_when_by_what_words_what_became_of_it_scores_and_size(three, toy_project, capsys):
    shutil.rmtree(toy_project / "runs/checkouts/fast")
    for name in ("broken", "untouched"):
        prepare(toy_project, name)
    failed = report.RunReport("runs/checkouts/broken", command="podium run --name broken", error="it failed")
    failed.begin(toy_project)
    failed.end()
    failed.save(toy_project)
    with holding("good"):
        assert listed(capsys)["good"]["status"] == "running"
    runs = listed(capsys)
    statuses = {name: values["status"] for name, values in runs.items()}
    assert statuses == {".": "rejected", "good": "published", "broken": "failed", "untouched": "never started"}
    good = runs["good"]
    assert good["scores"] == {"squad": {"exact_match": 70.0, "f1": 80.5}}
    assert runs["."]["scores"] == good["scores"], "its record is not lost to the runs after it"
    assert good["command"] == "podium run --name good"
    assert (good["began"] <= good["ended"], good["bytes"] > 0) == (True, True)
    assert [*listed(capsys, "GOOD")] == ["good"]
    assert [*listed(capsys, "--status", "failed", "--status", "rejected")] == ["broken", "."]
    assert "did you mean rejected" in podium(capsys, "runs", "rejcted")[1].out


def test_a_run_that_was_killed_is_told_by_its_lock_and_its_record(toy_project, capsys):
    record = report.RunReport("runs/checkouts/slow", command="podium run --name slow")
    with holding("slow") as process:
        record.begin(toy_project)
        assert listed(capsys)["slow"]["status"] == "running"
        process.kill()
        process.wait()
        assert listed(capsys)["slow"]["status"] == "killed"


def test_two_runs_of_one_name_take_turns(prefect_session, toy_project, ran):
    class Watched(screen.Screen):
        waits = threading.Event()

        def tell(self, text):
            if text == "run fast is already in progress; waiting":
                self.waits.set()

    ended = []
    with holding("fast") as process, screen.use_screen(Watched(None, verbose=False)):
        second = threading.Thread(target=lambda: ended.append(run(FASTER, name="fast")))
        second.start()
        assert Watched.waits.wait(120)
        assert not (toy_project / "runs/checkouts/fast").exists(), "nothing is touched while another run of it runs"
        process.kill()
        second.join()
    assert ended[0].name == "Rejected"
    assert ran() == ["first", "second"]


def test_size_counts_each_file_once_and_what_has_a_name_elsewhere_apart(tmp_path):
    run_folder, cache = tmp_path / "run", tmp_path / "cache"
    run_folder.mkdir()
    cache.mkdir()
    (run_folder / "file").write_bytes(b"x" * 100_000)
    os.link(run_folder / "file", run_folder / "again")
    (cache / "object").write_bytes(b"y" * 50_000)
    os.link(cache / "object", run_folder / "out")
    (run_folder / "link").symlink_to(cache)
    files = (run_folder / "file", cache / "object", run_folder / "link")
    file, shared, link = (path.lstat().st_blocks * 512 for path in files)
    assert listing.measure_disk([run_folder]) == listing.DiskUsage(file + link, shared)
    assert listing.measure_disk([run_folder, cache]) == listing.DiskUsage(file + link + shared, 0)
    assert listing.measure_disk([tmp_path / "nowhere"]) == listing.DiskUsage(0, 0)


def test_what_one_process_holds_it_need_not_wait_for(toy_project):
    with locks.hold_run(toy_project, "one", pytest.fail), locks.hold_run(toy_project, "one", pytest.fail):
        assert locks.is_running(toy_project, "one")
        with locks.try_lock_cache(toy_project) as free:
            assert not free
    assert not locks.is_running(toy_project, "one")


@pytest.fixture
def old_run(toy_project):
    """A run of 24 November 2026 (791af9c), after its clone was updated to this version."""
    folder, before = toy_project / "runs/checkouts/older", Path(__file__).parent / "version_before"
    (folder / "reports").mkdir(parents=True)
    shutil.copy(before / "params.yaml", folder)
    shutil.copy(before / "run.json", folder / "reports")
    return folder


UNKNOWN = "another version of Podium (791af9cb): pretrain_rows.shares"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["runs"], 0, "older  rejected (other version)  accuracy 47.50"),
        (["runs", "--page"], 0, "reports/index.html"),
        (["resume", "older"], 3, "run older is rejected"),
        (["run", "--like", "older", "--name", "newer"], 1, UNKNOWN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_run_of_another_version_is_listed_and_refused_in_one_line_where_it_cannot_be_used(
    old_run, capsys, words, code, text
):
    ended, printed = podium(capsys, *words)
    assert (ended, text in printed.out + printed.err) == (code, True), printed
    assert code != 1 or len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(("recorded", "text"), [({"part": "all"}, UNKNOWN), ({}, "repeat its command")])
def test_an_unfinished_run_of_another_version_is_not_resumed(old_run, capsys, recorded, text):
    record = json.loads((old_run / "reports/run.json").read_text())
    record |= {"error": "it failed", "options": recorded, "field of a later version": {}}
    record["stages"][0]["another"] = 1
    (old_run / "reports/run.json").write_text(json.dumps(record))
    code, printed = podium(capsys, "resume", "older")
    assert (code, len(printed.err.splitlines()), text in printed.err) == (1, 1, True), printed


@pytest.mark.parametrize("damaged", ["", '{"began": "2026', "\xff", '{"folder": "a", "results": 7}'])
def test_a_damaged_record_hides_no_other_run_and_can_be_removed(old_run, toy_project, capsys, damaged):
    broken = toy_project / "runs/checkouts/broken"
    shutil.copytree(old_run, broken)
    (broken / "reports/run.json").write_bytes(damaged.encode("latin-1"))
    assert listed(capsys).keys() >= {"older", "broken"}
    code, printed = podium(capsys, "resume", "broken")
    assert (code, len(printed.err.splitlines()), "run.json is damaged" in printed.err) == (1, 1, True)
    assert podium(capsys, "clean", "broken", "--yes")[0] == 0
    assert not broken.exists()


def test_a_log_that_cannot_be_written_says_so_once_and_ends_nothing(capsys):
    with redirect_logging(Path("/dev/full")):
        for number in range(3):
            logging.getLogger().warning("line %d", number)
    assert capsys.readouterr().err.count("/dev/full cannot be written (No space left on device)") == 1


PART = {"options": {"to": ["first"]}, "plan": ["first"]}


@pytest.mark.parametrize(
    ("before", "spent"),
    [
        (PART, 42.0),
        (PART | {"plan": ["first", "second"]}, 0.0),
        ({"paused": "at a checkpoint"}, 42.0),
        (PART | {"details": {"changed": {"a": "1"}}}, 0.0),
        ({"plan": ["first", "second"]}, 0.0),
    ],
    ids=["a part", "the whole again", "paused", "other parameters", "done"],
)
def test_the_time_of_the_starts_that_a_run_continues_counts(tmp_path, before, spent):
    ended = {**BEGAN, "ended": "2026-11-23T10:00:40+0000"}
    report.RunReport(".", earlier_seconds=2.0, **ended, **before).save(tmp_path)
    record = report.RunReport(".", plan=["first", "second"])
    record.begin(tmp_path)
    assert record.earlier_seconds == spent
    record.end()
    assert listing.Run(".", tmp_path, record, False).seconds == pytest.approx(spent + record.seconds)


def test_a_checkout_has_what_its_own_parameters_would_compose_to(toy_project):
    (toy_project.parent / "mine.txt").write_text("text")
    words = ("corpus.source=files", "corpus.path=../mine.txt", "downstream.squad.data.source=files", FASTER)
    request = resolve_request(toy_project, RunOptions(overrides=words, name="mine"))
    assert request.values["corpus"]["path"] == "../mine.txt" == request.params.corpus.path
    assert request.checkout.values["corpus"]["path"] == "../../../../mine.txt"
    assert request.checkout.definitions == stages.define(validate_params(request.checkout.values))
    checkout.prepare_checkout(request.checkout)
    assert json.loads(json.dumps(request.checkout.values)) == checkout.read_base(None, request.root)
    writing.require_plan(request.root, schema.load_params(request.root / "params.yaml"))


def test_0_and_0_0_are_one_value_of_a_parameter(toy_project):
    key = "downstream.squad.finetune.weight_decay"
    requests = [resolve_request(toy_project, RunOptions(None, [f"{key}={text}"])) for text in ("0", "0.0")]
    assert requests[0].name == requests[1].name
    decays = [request.values["downstream"]["squad"]["finetune"]["weight_decay"] for request in requests]
    assert [type(decay) for decay in decays] == [float, float]
