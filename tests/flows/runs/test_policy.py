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
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml
from tasks.stage.errors import ParamsError
from tasks.stage.process import STARTED_BY_A_WORKER
from tests.places import ROOT


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A worker's checkout: params.yaml, inputs and no preset, and nothing in the environment."""
    folder = tmp_path / "podium"
    folder.mkdir()
    shutil.copy(ROOT / "params.yaml", folder)
    (folder / "presets").mkdir()
    shutil.copytree(ROOT / "inputs", folder / "inputs")
    for name in (policy.INPUT_ROOTS, policy.TARGETS):
        monkeypatch.delenv(name, raising=False)
    return folder


def problems(project, *overrides):
    """What the worker says of parameters with these overrides; empty where it takes them."""
    values = resolve(read_yaml(ROOT / "params.yaml"), None, overrides)
    try:
        policy.require_parameters(values, project)
    except ParamsError as error:
        return str(error)
    return ""


def test_the_projects_own_parameters_and_every_preset_are_allowed(project):
    assert problems(project) == ""
    shutil.copytree(ROOT / "presets", project / "presets", dirs_exist_ok=True)
    for preset in sorted((ROOT / "presets").glob("*.yaml")):
        values = resolve({}, preset.stem, [], ROOT / "presets")
        policy.require_parameters(values, project)


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
    ],
)
def test_what_lies_outside_of_the_inputs_is_not_read(project, override):
    key = override.partition("=")[0]
    assert problems(project, override).startswith(f"{key}='")
    assert "its PODIUM_INPUT_ROOTS and its own params.yaml name" in problems(project, override)


@pytest.mark.parametrize(
    "override",
    [
        "downstream.squad.publish.folder=/srv/www",
        "downstream.squad.publish.folder=flows",
        "downstream.squad.publish.folder=published",
        "downstream.squad.publish.folder=.",
        "downstream.squad.publish.folder=published/../.git",
        "downstream.squad.publish.folder=inputs/corpus",
        "downstream.squad.publish.folder=runs/checkouts/x",
        "checkpoint.remote=s3://elsewhere/x",
        "checkpoint.remote=/root/.ssh",
        "tracking.folder=tasks",
        "ipu.phase1={executable_cache_dir: /tmp/programs}",
        "downstream.squad.ipu.finetune={executable_cache_dir: programs}",
    ],
)
def test_nothing_is_written_outside_of_the_checkout(project, override):
    assert problems(project, override).startswith(override.partition("=")[0])
    assert "and its own params.yaml name" in problems(project, override)


def test_roots_of_the_worker_are_read_and_not_left_through_a_link_while_links_of_its_inputs_are_the_owners(
    project, tmp_path, monkeypatch
):
    share, secret = tmp_path / "share", tmp_path / "secret"
    (share / "corpus").mkdir(parents=True)
    secret.mkdir()
    (share / "theirs").symlink_to(secret)
    (project / "inputs" / "linked").symlink_to(secret)
    monkeypatch.setenv(policy.INPUT_ROOTS, os.pathsep.join(("/nowhere", str(share))))
    assert problems(project, f"corpus.path={share}/corpus") == ""
    assert problems(project, f"corpus.path={project}/inputs/corpus") == ""
    assert problems(project, "corpus.path=inputs/linked") == ""
    assert problems(project, f"corpus.path={share}/theirs").startswith("corpus.path='")
    assert problems(project, f"corpus.path={share}/../secret").startswith("corpus.path='")
    assert problems(project, f"corpus.path={tmp_path}/share2").startswith("corpus.path='")


def test_targets_of_the_worker_are_written_to_and_their_neighbours_are_not(project, tmp_path, monkeypatch):
    monkeypatch.setenv(policy.TARGETS, f"{tmp_path}/out, s3://bucket/podium, sftp://host:22, team/podium-*")
    hub = ("publish.target=hub", "downstream.squad.publish.repository=team/podium-demo")
    assert problems(project, f"downstream.squad.publish.folder={tmp_path}/out/model") == ""
    assert problems(project, "tracking.folder=s3://bucket/podium/x") == ""
    assert problems(project, "tracking.folder=sftp://host:22/x", *hub) == ""
    for refused in (
        f"downstream.squad.publish.folder={tmp_path}/out",
        f"downstream.squad.publish.folder={tmp_path}/out/../x",
        "tracking.folder=s3://bucket/podium2",
        "tracking.folder=s3://bucket/podium/../x",
        "checkpoint.remote=s3://bucket/podium/x",
        "checkpoint.remote=sftp://host:220/",
        f"checkpoint.remote={tmp_path}/outside",
    ):
        assert problems(project, refused).startswith(refused.partition("=")[0]), refused
    for name in ("other/podium-demo", "team/podiumdemo"):
        assert problems(project, hub[0], f"downstream.squad.publish.repository={name}").startswith(
            "downstream.squad.publish.repository='"
        ), name


def test_what_the_worker_itself_states_is_allowed_and_its_care_is_not_taken_back(project, tmp_path):
    own = (
        "corpus.path=/data/wiki",
        "checkpoint.remote=s3://own/x",
        "downstream.squad.publish.repository=team/own",
        "publish.review=true",
    )
    (project / "presets" / "ours.yaml").write_text(
        "description: ours\ndownstream: {squad: {data: {dev_path: /data/dev.json}}}\n"
    )
    stated = resolve(read_yaml(ROOT / "params.yaml"), None, [*own, "publish.target=hub"])
    (project / "params.yaml").write_text(yaml.safe_dump(stated))
    sent = *own, "publish.target=hub", "downstream.squad.data.dev_path=/data/dev.json"
    assert problems(project, *sent) == ""
    assert problems(project, *sent, "downstream.squad.data.train_path=/data/dev.json").startswith(
        "downstream.squad.data.train_path='"
    )
    assert problems(project, *sent, "publish.review=false") == (
        "publish.review=false: the params.yaml of this worker requires true, and a sent run cannot override it; "
        "change it there"
    )
    assert problems(project, *sent, "publish.private=false").startswith("publish.private=false")
    assert problems(project, *sent, "publish.examples=true").startswith("publish.examples=true")


@pytest.mark.parametrize(
    ("own", "sent", "key"),
    [
        (["publish.signing=key"], ["publish.signing=none"], "publish.signing=none: "),
        ([], ["publish.signing=key"], "publish.signing=key: "),
        ([], ["tracking.backends=[wandb]"], "tracking.backends=wandb: "),
        (["tracking.backends=[wandb]"], ["tracking.backends=[wandb, mlflow]"], "tracking.backends=wandb, mlflow: "),
        (["tracking.backends=[wandb]"], ["tracking.backends=[wandb]", "tracking.project=x"], "tracking.project=x: "),
        (["tracking.backends=[wandb]"], ["tracking.backends=[wandb]"], ""),
        ([], ["tracking.backends=[tensorboard]", "tracking.project=x"], ""),
    ],
)
def test_keys_and_accounts_of_a_worker_are_its_own(project, own, sent, key):
    (project / "params.yaml").write_text(yaml.safe_dump(resolve(read_yaml(ROOT / "params.yaml"), None, own)))
    found = problems(project, *sent)
    assert bool(found) == bool(key), found
    assert found.startswith(key)
    assert not found or "the params.yaml of this worker requires" in found


def test_values_that_are_no_plain_yaml_are_refused(project):
    values = resolve(read_yaml(ROOT / "params.yaml"), None, [])
    for key, value in (("phase1", {"a": float("nan")}), ("phase2", {"a": "x" * (1 << 20)})):
        sent = copy.deepcopy(values)
        sent["ipu"][key] = value
        with pytest.raises(ParamsError, match=r"not plain values of a params\.yaml of at most 1048576 bytes"):
            policy.require_parameters(sent, project)
    with pytest.raises(ParamsError, match="corpuss is not known; did you mean corpus"):
        policy.require_parameters({**values, "corpuss": 1}, project)


def sent(project, flow=stage_flow.run_stages.fn, **parameters):
    """The result of a run that was sent to this checkout; refused ones need no server."""
    values = read_yaml(project / "params.yaml")
    honest = {
        "names": ["first"],
        "values": values,
        "checkout_name": checkout.default_name(values, None),
        "code": checkout.hash_code(project),
    }
    with mock.patch.object(stage_flow, "get_run_logger", logging.getLogger):
        return flow(**{**honest, **parameters})


def everything(folder):
    """All files below a folder and what they hold, those of its checkouts and locks aside."""
    files = (path for path in folder.rglob("*") if path.is_file() and "runs" not in path.relative_to(folder).parts)
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "name", ["../..", "../../tasks", "/tmp/x", "", ".", "-set-{key}", "set-{key}/..", "set-0", "a/set-{key}"]
)
def test_a_checkout_of_another_name_is_refused_and_nothing_is_touched(toy_project, ran, name):
    before = everything(toy_project)
    key = checkout.params_key(read_yaml(toy_project / "params.yaml"))
    state = sent(toy_project, checkout_name=name.format(key=key))
    assert state.is_failed()
    assert f"must be PRESET-{key} or set-{key} for these parameters" in state.message
    assert everything(toy_project) == before
    assert not (toy_project / "runs").exists()
    assert ran() == []


@pytest.mark.parametrize(
    "names", [["--help"], ["--all-pipelines", "first"], ["first;id"], ["publish"], [], ["first"] * 2]
)
def test_what_is_no_stage_of_the_parameters_is_refused(toy_project, ran, names):
    state = sent(toy_project, names=names)
    assert state.is_failed()
    assert "names=" in state.message
    assert not (toy_project / "runs").exists()
    assert ran() == []


def changed(project, **downstream):
    """params.yaml of a checkout with another section of downstream work."""
    values = read_yaml(project / "params.yaml")
    squad = values["downstream"]["squad"]
    named = {name: {**squad, **changes} for name, changes in downstream.items()}
    return {**values, "downstream": {**values["downstream"], **named}}


@pytest.mark.parametrize(
    "downstream",
    [
        {"../../docs": {"publish": {"folder": "published/x", "repository": None, "data_name": None}}},
        {"squad": {"kind": "../release"}},
        {"squad": {"parity": {"against": ["../../docs"], "max_logit_difference": None}}},
        {"squad": {"start": "../../docs"}},
    ],
)
def test_a_sent_entry_whose_words_lead_elsewhere_is_refused_and_nothing_is_written(toy_project, ran, downstream):
    before = everything(toy_project)
    values = changed(toy_project, **downstream)
    state = sent(toy_project, values=values, checkout_name=checkout.default_name(values, None))
    assert state.is_failed()
    assert "invalid values in the parameters of this run" in state.message
    assert everything(toy_project) == before
    assert not (toy_project / "runs").exists()
    assert ran() == []


def test_parameters_of_unknown_names_that_are_sent_are_refused(toy_project, ran):
    values = read_yaml(toy_project / "params.yaml")
    unknown = {**values, "finetune": values["downstream"]["squad"]["finetune"]}
    state = sent(toy_project, values=unknown, checkout_name=checkout.default_name(unknown, None))
    assert state.is_failed()
    assert "finetune is not known; valid: base_model, " in state.message
    assert ran() == []


def test_an_honest_run_under_a_presets_name_does_its_stages(prefect_session, toy_project, ran):
    values = read_yaml(toy_project / "params.yaml")
    flow = functools.partial(stage_flow.run_stages, return_state=True)
    assert sent(toy_project, flow, checkout_name=checkout.default_name(values, "cpu-base")).is_completed()
    assert ran() == ["first"]


def test_a_sent_run_names_no_file_of_the_host_and_does_not_even_look_for_it(toy_project, tmp_path, ran):
    values = resolve(read_yaml(toy_project / "params.yaml"), None, [f"corpus.path={tmp_path}/nowhere"])
    state = sent(toy_project, values=values, checkout_name=checkout.default_name(values, None))
    assert state.is_failed()
    assert "this worker lets sent runs read its folder `inputs`" in state.message
    assert "is not there" not in state.message


def test_other_code_is_refused_however_it_is_named(toy_project):
    code = checkout.hash_code(toy_project)
    assert "dvc.yaml of the checkout" in sent(toy_project, code={**code, "dvc.yaml": "0"}).message
    assert "x of the checkout" in sent(toy_project, code={**code, "x": "0"}).message


def test_the_whole_flow_asks_the_worker_that_started_it_and_nobody_in_a_shell(
    prefect_session, toy_project, tmp_path, monkeypatch
):
    outside = tmp_path / "corpus"
    outside.mkdir()
    (outside / "a.txt").write_text("text\n")
    overrides = [f"corpus.path={outside}"]
    assert pipeline.pipeline(None, overrides, to=["first"], return_state=True).is_completed()
    monkeypatch.setenv(STARTED_BY_A_WORKER, "17")
    state = pipeline.pipeline(None, overrides, return_state=True)
    assert state.is_failed()
    assert "this worker lets sent runs read its folder `inputs`" in state.message
