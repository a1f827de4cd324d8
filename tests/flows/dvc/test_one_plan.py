"""A plan among the inputs: every way a run begins names it and refuses, and its command never runs."""

import shutil

import pytest

from flows.runs import checkout
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from flows.workers import stage_flow
from tasks.params.schema import validate_params
from tests.flows.toy_runs import ACCEPTED, call, podium, run
from tests.parts import in_part
from tests.plans import resolved_params

FOREIGN = "stages:\n  foreign:\n    cmd: touch {ran} && echo made > made.txt\n    outs: [made.txt]\n"
NAMED = "DVC would treat"


@pytest.fixture
def project(toy_project):
    """The first stage reads the corpus, and so needs what another plan makes there."""
    read_instead(toy_project, "deps: [stage.py]", "deps: [stage.py, inputs/corpus]")
    (toy_project / "inputs/corpus/a.txt").write_text("A.\n")
    return toy_project


def read_instead(project, deps, others):
    plan = project / "dvc.yaml"
    plan.write_text(plan.read_text().replace(deps, others))


def plant(project, place="inputs/corpus/dvc.yaml"):
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    (project / place).write_text(FOREIGN.format(ran=project / "foreign-ran"))
    return project / place


def add_remote(project):
    with (project / ".dvc/config").open("a") as config:
        config.write(f"    remote = store\n['remote \"store\"']\n    url = {project.parent / 'store'}\n")


@pytest.mark.parametrize(
    ("place", "remote", "overrides"),
    in_part([("inputs/corpus/dvc.yaml", True, ()), ("inputs/other/x.dvc", False, ACCEPTED)], 1),
)
def test_a_run_is_refused_before_dvc_starts(prefect_session, project, ran, place, remote, overrides, command):
    if remote:
        add_remote(project)
    planted = plant(project, place)
    state = run(*overrides)
    assert (state.is_failed(), NAMED in state.message, planted.name in state.message) == (True, True, True)
    assert ran() == []
    assert not (project / "foreign-ran").exists()
    assert not (project / ".dvc/tmp").exists(), "DVC was not started"
    planted.unlink()
    assert run(*overrides).name == ("Completed" if overrides else "Rejected")
    if not remote:
        plant(project, place)
        code, printed = command("--set", *overrides)
        assert (code in (1, 2), NAMED in printed.err) == (True, True), "with nothing to do, too"


def test_a_worker_refuses_what_is_among_its_own_inputs(prefect_session, project, ran):
    plant(project, "inputs/other/deep/dvc.yaml")
    values = resolved_params(project, None, [])
    name, code = checkout.default_name(values, None), checkout.hash_code(project)
    state = stage_flow.run_stages(["first"], values, name, code, return_state=True)
    assert (state.is_failed(), NAMED in state.message) == (True, True)
    assert ran() == []
    assert not (project / "foreign-ran").exists()


@pytest.mark.soak
def test_what_is_planted_while_a_run_is_at_work_is_not_taken(prefect_session, project, ran):
    """Neither in a checkout of its own, where `inputs` is a link."""
    add_remote(project)
    for overrides in ([], ACCEPTED):
        values = resolved_params(project, None, overrides)
        root = checkout.choose_folder(project, values, None, overrides)
        checkout.prepare_checkout(checkout.describe_checkout(project, values, validate_params(values), root))
        plant(project)
        for words in ("repro --pull first", "repro", "push --run-cache", "repro -R inputs"):
            output = call(*words.split(), root=root).stdout
            assert not (project / "foreign-ran").exists(), output
    assert ran().count("first") == 1, "the second checkout restored it"


@pytest.mark.parametrize("word", ["plan", "doctor", "publish", "run"])
def test_every_command_that_leads_to_dvc_names_it(project, capsys, monkeypatch, word):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    plant(project, "inputs/other/dvc.yaml")
    code, printed = podium(capsys, word)
    assert code in (1, 2)
    assert f"{NAMED} inputs/other/dvc.yaml as its own" in " ".join((printed.out + printed.err).split())
    assert not (project / ".dvc/tmp").exists(), "DVC was not started"


EACH = """
stages:
  each:
    foreach: [one, two]
    do: {cmd: python each.py "$DVC_STAGE", deps: [each.py], outs: ["data/${item}"]}
  after:
    foreach: [one, two]
    do: {cmd: python each.py "$DVC_STAGE", deps: [each.py, "data/${item}"], outs: ["data/${item}-after"]}
"""
EACH_STAGE = """
import os, pathlib, sys
name, _, item = sys.argv[1].partition("@")
pathlib.Path("data").mkdir(exist_ok=True)
pathlib.Path("data", item if name == "each" else f"{item}-after").write_text(sys.argv[1])
"""


def forecast(project):
    return {stage.stage: stage.status for stage in resolve_request(project, RunOptions()).forecast}


def test_stages_of_one_command_are_told_apart_by_what_they_make(project):
    (project / "dvc.yaml").write_text(EACH)
    (project / "each.py").write_text(EACH_STAGE)
    assert call("repro", root=project).returncode == 0
    shutil.rmtree(project / "data")
    (project / "dvc.lock").unlink()
    plan = ["each@one", "each@two", "after@one", "after@two"]
    assert forecast(project) == dict.fromkeys(plan, "restored")
    assert call("repro", root=project).stdout.count("is cached - skipping run") == len(plan)


def test_forecast_are_the_hashes_of_dvc_for_what_is_given_outside_of_the_project(project):
    """There DVC hashes every file, those that .dvcignore names inside as well."""
    outside = project.parent / "registry"
    (outside / "__pycache__").mkdir(parents=True)
    for name in ("a.txt", "big.txt.dvc", "dvc.yaml", "__pycache__/a.pyc"):
        (outside / name).write_text("A.\n")
    read_instead(project, "inputs/corpus", str(outside))
    assert call("repro", "first", root=project).returncode == 0
    assert forecast(project)["first"] == "skipped"
