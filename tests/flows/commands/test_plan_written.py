"""`podium plan --write`, and the effect of a dvc.yaml that is not written again; real files, real DVC."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from flows import cli
from flows.checks import preflight
from flows.dvc.session import StageFailed
from flows.runs import checkout
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.params.schema import load_params, validate_params
from tasks.plan.dvc_records import LOCK, LOST, compute_md5
from tasks.plan.stages import define
from tasks.plan.writing import plan_text, require_plan
from tasks.stage.errors import InputError, ParamsError
from tests.flows.toy_runs import ACCEPTED, podium, repro, require_end, run, statuses
from tests.places import ROOT, copy_project
from tests.plans import GIVEN, prepare_own, resolved_params, values_with, write_outs

UNKNOWN_NOW = ("data/corpus", "data/rows/phase1", "models/phase1", "metrics/pretrain-phase2.json")
STILL_KNOWN = ("data/tokenizer", "data/rows/squad", "models/squad", "metrics/squad.json")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The plan of this project, as if all of it had run."""
    folder = copy_project(tmp_path / "project", ("params.yaml", "dvc.yaml", "presets"))
    write_outs(folder)
    monkeypatch.chdir(folder)
    return folder


def write_params(project, *overrides):
    values = values_with(*overrides)
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return validate_params(values)


def write(*words):
    cli.cli.main(["plan", "--write", *words], prog_name="podium", standalone_mode=False)


def everything(project):
    return {path.relative_to(project): path.read_bytes() for path in project.rglob("*") if path.is_file()}


def read_lock(project):
    return yaml.safe_load((project / LOCK).read_text())


def add_to_lock(project, name, outs):
    lock = read_lock(project)
    lock["stages"][name] = {"cmd": "x", "outs": outs}
    (project / LOCK).write_text(yaml.safe_dump(lock))


def out_of(project, path):
    return {"path": path, "hash": "md5", "md5": compute_md5(project / path)}


def test_the_plan_is_written_and_what_went_away_goes_with_its_lines_of_the_lock(project, capsys, tmp_path_factory):
    """What was changed by hand is left and named, and of a link only the link goes."""
    changed, linked = project / "models/phase1", project / "data/corpus"
    changed.write_text("weights of the user's own")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "text"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    params = write_params(project, *GIVEN)
    write()
    printed = capsys.readouterr()
    assert (project / "dvc.yaml").read_text() == plan_text(define(params))
    assert printed.err == "next: dvc repro, or podium run\n"
    assert [path for path in UNKNOWN_NOW if (project / path).exists()] == ["models/phase1"]
    assert [path for path in STILL_KNOWN if not (project / path).exists()] == []
    assert all(path in printed.out for path in UNKNOWN_NOW)
    assert "models/phase1 was kept" in printed.out
    assert changed.read_text() == "weights of the user's own"
    assert (elsewhere.is_file(), linked.is_symlink()) == (True, False)
    stages = read_lock(project)["stages"]
    assert not [name for name in stages if "phase" in name or "corpus" in name]
    assert "examples@squad" in stages
    before = everything(project)
    write()
    assert "already up to date" in capsys.readouterr().out
    assert everything(project) == before


def test_an_entry_that_is_taken_away_goes_and_its_neighbours_stay(project):
    write_params(project, "downstream.other={kind: squad, publish: {folder: published/other}}")
    write()
    write_outs(project)
    (project / "published/other").mkdir(parents=True)
    write_params(project)
    write()
    left = [path for path in project.rglob("*other*") if path.relative_to(project).parts[0] != "presets"]
    assert left == [project / "published/other"], "a release is not an out of a stage"
    assert (project / "models/squad").exists()


def test_nothing_outside_of_the_folders_of_runs_goes_whatever_the_lock_says(project):
    kept = []
    for place in ("../mine", "data/../../yours", "docs", "runs/checkouts", "inputs/mine", "published"):
        (project / place).mkdir(parents=True)
        kept.append(project / place / "kept.txt")
        kept[-1].write_text("kept")
        out = out_of(project, place)
        add_to_lock(project, f"old-{place}", [out, {**out, "path": str(project / place)}])
    write()
    assert [path.read_text() for path in kept] == ["kept"] * 6
    assert not [name for name in read_lock(project)["stages"] if name.startswith("old")]


HALVES = ("sche", "schema: '2.0'\nstages:\n", "stages:\n  old: {outs: [pa", "stages: []")
OUTS = ("null", "[data/corpus]", "[{hash: md5}]", "[{path: '', md5: '0'}]")


@pytest.mark.parametrize("half", [*HALVES, *(f"stages: {{old: {{cmd: x, outs: {outs}}}}}" for outs in OUTS)])
def test_half_of_a_lock_removes_nothing(project, half):
    (project / LOCK).write_text(half)
    params = write_params(project, *GIVEN)
    before = everything(project)
    write()
    require_plan(project, params)
    written = dict.fromkeys((Path(LOCK), Path("dvc.yaml")), b"")
    assert everything(project) | written == before | written


def test_parameters_of_one_run_are_refused_as_the_plan_is_of_params_yaml(project):
    before = everything(project)
    for words in (("--set", "pretrain.enabled=false"), ("--preset", "small-files")):
        with pytest.raises(ParamsError, match="--write"):
            write(*words)
    assert everything(project) == before


TABLE = """
from pathlib import Path
from tasks.plan import plan_file, stages

def define(params):
    toys = plan_file.read_dvc_file(Path("{}"))["stages"]
    return toys if params.pretrain.enabled else toys | {{"more": {{"cmd": "true"}}}}

stages.define = define
"""


def test_a_stage_under_dvc_refuses_a_plan_of_other_parameters_and_names_the_command(toy_project, ran):
    stage, table = toy_project / "stage.py", TABLE.format(shutil.copy(toy_project / "dvc.yaml", toy_project / "toys"))
    enter = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{table}\nfrom tasks.plan.main import run_main\n"
    stage.write_text(f"{enter}run_main(lambda: None)\n{stage.read_text()}")
    exec(table, {})  # `toy_project` takes it back
    write_params(toy_project, "pretrain.enabled=false")
    with pytest.raises(StageFailed, match="podium plan --write"):
        repro("first", toy_project)
    assert ran() == []
    write()
    assert repro("first", toy_project) == "ran"
    write_params(toy_project, "pretrain.enabled=false", "corpus.demo_documents=77")
    assert repro("first", toy_project) == "ran", "other values, and no other plan"


def test_a_run_writes_the_plan_and_says_what_went_away(project):
    params, lines = write_params(project, *GIVEN), []
    with pytest.raises(InputError):
        require_plan(project, params)
    values = resolved_params(project, None, [])
    checkout.prepare_checkout(
        checkout.describe_checkout(project, values, validate_params(values), project), lines.append
    )
    require_plan(project, load_params(project / "params.yaml"))
    assert "data/corpus" in "".join(lines)
    assert not (project / "data/corpus").exists()


def test_a_checkout_forgets_the_stages_that_only_an_older_dvc_yaml_has(toy_project):
    values = resolved_params(toy_project, None, [])
    folder = prepare_own(toy_project, values, "one")
    write_outs(folder)
    before, old = everything(folder), folder / "data/near_duplicates/squad.json"
    kept = [{**out, "md5": "0" * 32} for stage in read_lock(folder)["stages"].values() for out in stage["outs"]]
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    add_to_lock(folder, "validate_examples@squad", [*kept, out_of(folder, "data/near_duplicates/squad.json")])
    prepare_own(toy_project, values, "one")
    assert everything(folder).keys() == before.keys()
    assert "validate_examples@squad" not in read_lock(folder)["stages"]


def forecast(project, *overrides):
    """Stage -> status and reasons, as podium plan finds them."""
    stages = resolve_request(project, RunOptions(None, overrides)).forecast
    return {stage.stage: (stage.status, stage.why) for stage in stages}


def test_what_is_forecast_is_what_a_run_then_does(request, toy_project):
    expected = forecast(toy_project)
    assert expected["first"] == ("runs", ("never ran here",))
    assert expected["gate@squad"] == ("runs", ("after second",))
    request.getfixturevalue("rejected")
    assert set(forecast(toy_project).values()) == {("skipped", ())}

    rate = "downstream.squad.finetune.learning_rate=3e-5"
    expected = forecast(toy_project, rate)
    assert expected["first"][0] == "restored"
    assert expected["second"] == ("runs", ("downstream.squad.finetune.learning_rate 0.001 -> 3e-05",))
    assert expected["gate@squad"][1] == ("after second",), "what second makes is not known; DVC may find it unchanged"
    run(rate, publish=False)
    assert (statuses(toy_project)["first"], statuses(toy_project)["second"]) == ("restored", "ran")
    assert {status for status, _ in forecast(toy_project, rate).values()} == {"skipped"}

    (toy_project / "stage.py").write_text((toy_project / "stage.py").read_text() + "# a change\n")
    assert forecast(toy_project)["first"][1] == ("stage.py changed",)
    run(publish=False)
    assert statuses(toy_project)["first"] == "ran"
    (toy_project / "data" / "first").unlink()
    assert forecast(toy_project)["first"] == ("restored", ("data/first is missing",))
    shutil.rmtree(toy_project / ".dvc" / "cache" / "files")
    assert forecast(toy_project)["first"] == ("runs", (LOST,))
    findings = preflight.check_cache(resolve_request(toy_project, RunOptions()))
    [warning] = [finding.text for finding in findings if finding.level == "warning"]
    assert warning.startswith("data/first")


def test_a_plan_changes_nothing_in_the_project(rejected, toy_project, capsys):
    before = everything(toy_project)
    require_end(capsys, 0, "downstream.squad.gate.min_f1 85.0 -> 80.0", "plan", "--set", *ACCEPTED)
    stages = json.loads(podium(capsys, "plan", "--json")[1].out)["stages"]
    assert [stage["status"] for stage in stages] == ["skipped"] * 3
    assert everything(toy_project) == before
    assert Path.cwd() == toy_project


def test_a_given_folder_that_cannot_be_looked_at_is_refused_by_its_name(toy_project, capsys):
    (toy_project / "inputs" / "corpus" / "lost.txt").symlink_to("nowhere.txt")
    code, printed = podium(capsys, "plan")
    assert (code, "corpus.path=" in printed.err, "lost.txt" in printed.err) == (2, True, True)
