"""What a worker does with a run whose sender may send anything: real parameters, files and links, real DVC."""

import copy
import functools
import logging
import os
import shutil
from unittest import mock

import pytest
import yaml

from flows import pipeline
from flows.runs import checkout, policy
from flows.workers import stage_flow
from tasks.params.strict_yaml import read_yaml
from tasks.stage.errors import ParamsError
from tasks.stage.process import STARTED_BY_A_WORKER
from tests.places import ROOT, copy_project
from tests.plans import resolved_params, values_with


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A worker's checkout: params.yaml, inputs and no preset, and nothing in the environment."""
    folder = copy_project(tmp_path / "podium", ("params.yaml", "inputs"))
    (folder / "presets").mkdir()
    for name in (policy.INPUT_ROOTS, policy.TARGETS):
        monkeypatch.delenv(name, raising=False)
    return folder


def problems(project, *overrides):
    """What the worker says of parameters with these overrides; empty where it takes them."""
    try:
        policy.require_parameters(values_with(*overrides), project)
    except ParamsError as error:
        return str(error)
    return ""


def require_refused(project, override, *others):
    assert problems(project, *others, override).startswith(override.partition("=")[0]), override


def test_the_projects_own_parameters_and_every_preset_are_allowed(project):
    assert problems(project) == ""
    shutil.copytree(ROOT / "presets", project / "presets", dirs_exist_ok=True)
    for preset in (ROOT / "presets").glob("*.yaml"):
        policy.require_parameters(resolved_params(ROOT, preset.stem, []), project)


FOLDERS = ("/srv/www", "flows", "published", ".", "published/../.git", "inputs/corpus", "runs/checkouts/x")


@pytest.mark.parametrize(
    "override",
    [
        "corpus.path=/etc",
        "corpus.path=..",
        "corpus.path=inputs/../flows",
        "downstream.squad.data.dev_path=/root/.ssh/id_rsa",
        "base_model.path=runs/checkouts",
        "downstream.squad.gate.released=/tmp",
        "ipu.config=/dev/zero",
        "corpus.dataset=/etc",
        "tokenizer.repository=../other",
        "tokenizer.repository=presets",
        "downstream.squad.data.dataset=./x",
        "pretrain_rows.phase1.dataset=file:///etc",
        *(f"downstream.squad.publish.folder={folder}" for folder in FOLDERS),
        "checkpoint.remote=s3://elsewhere/x",
        "checkpoint.remote=/root/.ssh",
        "tracking.folder=tasks",
        "ipu.phase1={executable_cache_dir: /tmp/programs}",
        "downstream.squad.ipu.finetune={executable_cache_dir: programs}",
    ],
)
def test_nothing_is_read_outside_of_the_inputs_or_written_outside_of_the_checkout(project, override):
    require_refused(project, override)
    assert "and its own params.yaml name" in problems(project, override)


def test_roots_of_the_worker_are_read_and_not_left_through_a_link_while_links_of_its_inputs_are_the_owners(
    project, tmp_path, monkeypatch
):
    share, secret = tmp_path / "share", tmp_path / "secret"
    (share / "corpus").mkdir(parents=True)
    secret.mkdir()
    for link in (share / "theirs", project / "inputs" / "linked"):
        link.symlink_to(secret)
    monkeypatch.setenv(policy.INPUT_ROOTS, os.pathsep.join(("/nowhere", str(share))))
    for path in (f"{share}/corpus", f"{project}/inputs/corpus", "inputs/linked"):
        assert problems(project, f"corpus.path={path}") == ""
    for path in (f"{share}/theirs", f"{share}/../secret", f"{tmp_path}/share2"):
        require_refused(project, f"corpus.path={path}")


def test_targets_of_the_worker_are_written_to_and_their_neighbours_are_not(project, tmp_path, monkeypatch):
    monkeypatch.setenv(policy.TARGETS, f"{tmp_path}/out, s3://bucket/podium, sftp://host:22, team/podium-*")
    folder, repository = "downstream.squad.publish.folder", "downstream.squad.publish.repository"
    assert problems(project, f"{folder}={tmp_path}/out/model", "tracking.folder=s3://bucket/podium/x") == ""
    hub = ("publish.target=hub", f"{repository}=team/podium-demo")
    assert problems(project, "tracking.folder=sftp://host:22/x", *hub) == ""
    for override in (
        *(f"{folder}={tmp_path}/{outside}" for outside in ("out", "out/../x")),
        *(f"tracking.folder=s3://bucket/{outside}" for outside in ("podium2", "podium/../x")),
        *(f"checkpoint.remote={place}" for place in ("s3://bucket/podium/x", "sftp://host:220/", f"{tmp_path}/x")),
        *(f"{repository}={name}" for name in ("other/podium-demo", "team/podiumdemo")),
    ):
        require_refused(project, override, *hub)


def test_what_the_worker_itself_states_is_allowed_and_its_care_is_not_taken_back(project):
    worker = (
        *("corpus.path=/data/wiki", "checkpoint.remote=s3://own/x"),
        *("downstream.squad.publish.repository=team/own", "publish.review=true", "publish.target=hub"),
    )
    data = "description: ours\ndownstream: {squad: {data: {dev_path: /data/dev.json}}}\n"
    (project / "presets" / "ours.yaml").write_text(data)
    (project / "params.yaml").write_text(yaml.safe_dump(values_with(*worker)))
    sent = *worker, "downstream.squad.data.dev_path=/data/dev.json"
    assert problems(project, *sent) == ""
    train = "downstream.squad.data.train_path=/data/dev.json"
    for override in (train, "publish.review=false", "publish.private=false", "publish.examples=true"):
        require_refused(project, override, *sent)


WANDB = "tracking.backends=[wandb]"


@pytest.mark.parametrize(
    ("worker", "sent", "key"),
    [
        (["publish.signing=key"], ["publish.signing=none"], "publish.signing=none: "),
        ([], ["publish.signing=key"], "publish.signing=key: "),
        ([], [WANDB], "tracking.backends=wandb: "),
        ([WANDB], ["tracking.backends=[wandb, mlflow]"], "tracking.backends=wandb, mlflow: "),
        ([WANDB], [WANDB, "tracking.project=x"], "tracking.project=x: "),
        ([WANDB], [WANDB], ""),
        ([], ["tracking.backends=[tensorboard]", "tracking.project=x"], ""),
    ],
)
def test_keys_and_accounts_of_a_worker_are_its_own(project, worker, sent, key):
    (project / "params.yaml").write_text(yaml.safe_dump(values_with(*worker)))
    problem = problems(project, *sent)
    assert (bool(problem), problem.startswith(key)) == (bool(key), True), problem


def test_values_that_are_no_plain_yaml_are_refused(project):
    values = values_with()
    for key, value in (("phase1", {"a": float("nan")}), ("phase2", {"a": "x" * (1 << 20)})):
        sent = copy.deepcopy(values)
        sent["ipu"][key] = value
        with pytest.raises(ParamsError, match=r"not plain values of a params\.yaml of at most 1048576 bytes"):
            policy.require_parameters(sent, project)
    with pytest.raises(ParamsError, match="corpuss is not known; did you mean corpus"):
        policy.require_parameters({**values, "corpuss": 1}, project)


def send(project, flow=stage_flow.run_stages.fn, **parameters):
    """The result of a run that was sent to this checkout; refused ones need no server."""
    values = read_yaml(project / "params.yaml")
    honest = {"names": ["first"], "values": values, "code": checkout.hash_code(project)}
    honest["checkout_name"] = checkout.default_name(values, None)
    with mock.patch.object(stage_flow, "get_run_logger", logging.getLogger):
        return flow(**{**honest, **parameters})


def everything(folder):
    """All files below a folder and what they hold, those of its checkouts and locks aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and "runs" not in path.relative_to(folder).parts)
    return {path.relative_to(folder): path.read_bytes() for path in files}


def of_squad(**changes):
    return lambda values: values["downstream"]["squad"].update(changes)


def add_entry(values):
    publish = {"folder": "published/x", "repository": None, "data_name": None}
    values["downstream"]["../../docs"] = {**values["downstream"]["squad"], "publish": publish}


NAMES = ("../..", "../../tasks", "/tmp/x", "", ".", "-set-{key}", "set-{key}/..", "set-0", "a/set-{key}")
STAGES = (["--help"], ["--all-pipelines", "first"], ["first;id"], ["publish"], [], ["first"] * 2)


@pytest.mark.parametrize(
    ("change", "parameters", "reason"),
    [
        *((None, {"checkout_name": name}, "PRESET-") for name in NAMES),
        *((None, {"names": names}, "names=") for names in STAGES),
        (None, {"code": {"dvc.yaml": "0"}}, "dvc.yaml of the checkout"),
        (None, {"code": {"x": "0"}}, "x of the checkout"),
        (add_entry, {}, "invalid values"),
        (of_squad(kind="../release"), {}, "invalid values"),
        (of_squad(parity={"against": ["cpu:../../docs"], "max_logit_difference": None}), {}, "invalid values"),
        (of_squad(start="../../docs"), {}, "invalid values"),
        (lambda values: values.update(finetune={}), {}, "finetune is not known"),
        (lambda values: values["corpus"].update(path="/nowhere"), {}, "this worker lets sent runs read its folder"),
    ],
)
def test_a_sent_run_that_does_not_fit_is_refused_and_nothing_is_touched(toy_project, ran, change, parameters, reason):
    before = everything(toy_project)
    values = read_yaml(toy_project / "params.yaml")
    if change is not None:
        change(values)
    name = parameters.get("checkout_name", checkout.default_name(values, None))
    sent = {"values": values, **parameters, "checkout_name": name.format(key=checkout.params_key(values))}
    if "code" in parameters:
        sent["code"] = {**checkout.hash_code(toy_project), **parameters["code"]}
    state = send(toy_project, **sent)
    assert (state.is_failed(), reason in state.message) == (True, True), state.message
    assert everything(toy_project) == before
    assert not (toy_project / "runs").exists()
    assert ran() == []


def test_an_honest_run_under_a_presets_name_does_its_stages(prefect_session, toy_project, ran):
    name = checkout.default_name(read_yaml(toy_project / "params.yaml"), "cpu-base")
    flow = functools.partial(stage_flow.run_stages, return_state=True)
    assert send(toy_project, flow, checkout_name=name).is_completed()
    assert ran() == ["first"]


def test_the_whole_flow_asks_the_worker_that_started_it_and_nobody_in_a_shell(
    prefect_session, toy_project, tmp_path, monkeypatch
):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.txt").write_text("text\n")
    overrides = [f"corpus.path={tmp_path / 'corpus'}"]
    assert pipeline.pipeline(None, overrides, to=["first"], return_state=True).is_completed()
    monkeypatch.setenv(STARTED_BY_A_WORKER, "17")
    state = pipeline.pipeline(None, overrides, return_state=True)
    assert state.is_failed()
    assert "this worker lets sent runs read its folder `inputs`" in state.message
