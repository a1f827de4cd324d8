"""Stages as dvc.yaml has them, which of them may run on a worker, and one at a time on a device."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tasks.params.schema import parameter_values, validate_params
from tasks.plan import stage_kinds
from tasks.plan.dvc_records import default_remote
from tasks.plan.plan_file import Plan, expand, make_plan, read_definitions, read_plan
from tasks.plan.stage_kinds import offered_kinds
from tasks.plan.stages import define
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.plans import everything, values_with, whole_plan
from tests.tasks.downstream.entries import write_parameters


def plan_of(text):
    return Plan(expand(yaml.safe_load(text)))


FOREACH = """
rows:
  foreach:
    a: {from: in}
    b: {from: "in \\\\${x}", length: rows.b}
  do:
    desc: rows of ${key}
    cmd: rows "$DVC_STAGE"
    deps: ["${item.from}", "in/${key}", in]
    params: [packing, {"in/${key}.json": [length]}, "rows.${key}"]
    outs: ["rows/${key}", {"list/${key}": {cache: true}}]
    plots: [{"plots/${key}.csv": {x: step}}]
train:
  foreach: [one]
  do: {cmd: train, deps: [in], meta: {host: cpu:bf16}, metrics: [one.json]}
"""


def test_a_stage_is_made_for_each_item_with_its_values_filled_in():
    plan = plan_of(FOREACH)
    assert sorted(plan) == ["rows@a", "rows@b", "train@one"]
    rows = plan["rows@a"]
    assert (rows.group, rows.item, rows.cmd) == ("rows", "a", 'rows "$DVC_STAGE"')
    assert rows.deps == ("in", "in/a"), "an input counts once"
    assert rows.params == {"params.yaml": ("packing", "rows.a"), "in/a.json": ("length",)}
    assert rows.outs == ("rows/a", "list/a", "plots/a.csv")
    assert plan["rows@b"].deps == ("in ${x}", "in/b", "in"), "as DVC reads it"
    train = plan["train@one"]
    assert (train.deps, train.host, train.outs) == (("in",), "cpu:bf16", ("one.json",))


def test_a_stage_needs_what_writes_its_files_the_folder_they_are_in_or_something_in_its_folder():
    plan = plan_of("""
        gate: {deps: [metrics, data/rows/list.json]}
        rows: {outs: [data/rows]}
        score: {metrics: [metrics/score.json], params: [{data/rows/manifest.json: [length]}]}
        other: {deps: [metrics-of-others]}
    """)
    assert plan.needs == {"gate": ["rows", "score"], "rows": [], "score": ["rows"], "other": []}
    assert plan.with_upstream(["score"]) == ["rows", "score"]
    assert plan.makers("data/rows/part") == {"rows"}


def test_stages_that_need_each_other_are_refused_by_name():
    with pytest.raises(InputError, match="cycle: (a -> b -> a|b -> a -> b)"):
        plan_of("{a: {deps: [y], outs: [x]}, b: {deps: [x], outs: [y]}}")


def test_every_stage_comes_after_what_it_needs_and_dvc_sees_the_same_graph(tmp_path):
    """DVC itself is asked: its edges, and no more than those that help is taken up next to."""
    values = parameter_values(everything())
    del values["downstream"]["search"]  # of a kind that does not run on IPUs, as these parameters do
    write_parameters(tmp_path, values)
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    code = (
        "import json; from dvc.repo import Repo; graph = Repo().index.graph; "
        "print(json.dumps({one.addressing: sorted(two.addressing for two in graph.successors(one)) for one in graph}))"
    )
    graph = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    plan = read_plan(tmp_path)
    assert {name: sorted(needs) for name, needs in plan.needs.items()} == json.loads(graph)
    order = list(plan)
    for name, needs in plan.needs.items():
        assert all(order.index(other) < order.index(name) for other in needs), name


def test_data_are_checked_and_programs_built_before_training_starts():
    plan = whole_plan()
    order = list(plan)
    first = min(order.index(name) for name in order if plan[name].holds_device)
    assert {plan[name].host for name in order[:first]} == {"cpu", "compiler"}
    assert [name for name in order[first:] if name.startswith(("validate", "compile"))] == []
    hosts = [plan[name].uses_device for name in order]
    changes = sum(before != after for before, after in zip(hosts, hosts[1:], strict=False))
    assert changes == 2, "a run on workers sends three runs of stages, however many tasks it has"


OLDER = """
vars: [plan.yaml]
stages:
  rows: {foreach: "${plan.rows}", do: {cmd: rows, deps: ["${item.from}", "${plan.code}"], outs: ["rows/${key}"]}}
  build: {foreach: "${plan.built}", do: {cmd: build, outs: ["built/${item}"]}}
"""


def test_the_stages_of_a_finished_run_of_an_older_version_are_known_and_a_broken_plan_is_named(tmp_path):
    (tmp_path / "dvc.yaml").write_text("stages: [")
    with pytest.raises(InputError, match="dvc.yaml is not YAML"):
        read_definitions(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: words")
    assert list(read_plan(tmp_path)) == []
    (tmp_path / "dvc.yaml").write_text(OLDER)
    assert list(read_plan(tmp_path)) == [], "its items are lost"
    (tmp_path / "plan.yaml").write_text("plan: {code: tasks/rows, built: [a], rows: {a: {from: in}}}")
    plan = read_plan(tmp_path)
    assert {name: (stage.deps, stage.outs) for name, stage in plan.items()} == {
        "rows@a": (("in", "tasks/rows"), ("rows/a",)),
        "build@a": ((), ("built/a",)),
    }


REMOTE = "[core]\n    remote = store\n['remote \"store\"']\n    url = ssh://podium:geheim@host/srv/store\n"


@pytest.fixture
def project(tmp_path):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def start(stage, project, **environment):
    """The first thing a stage does under DVC, then `entered`, then it waits for the end of its input."""
    code = "from tasks.plan.main import run_main; run_main(lambda: print('entered', flush=True) or input())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project,
        text=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        env={**os.environ, "PYTHONPATH": str(ROOT), "DVC_STAGE": stage, "DVC_ROOT": str(project), **environment},
    )


@pytest.mark.parametrize(
    ("stage", "runtime", "kind"),
    [
        ("corpus@text", "ipu", "cpu"),
        ("gate@squad", "cuda", "cpu"),
        ("pretrain@phase2", "ipu", "ipu"),
        ("finetune@squad", "cuda", "cuda"),
        ("predict@squad", "auto", "auto"),
        ("compile_pretrain@phase1", "ipu", "ipu"),
        ("parity@squad-cpu:bf16", "ipu", "cpu"),
        ("parity@squad-ipu", "cpu", "ipu"),
    ],
)
def test_a_stage_without_a_device_job_is_of_kind_cpu_and_others_of_their_runtime(stage, runtime, kind):
    values = values_with("downstream.squad.parity.against=[cpu:bf16,ipu]", "device.runtime=ipu")
    assert make_plan(define(validate_params(values)))[stage].kind(runtime) == kind


def test_a_kind_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("PODIUM_STAGE_KINDS", "ipu, gpu")
    with pytest.raises(InputError, match="gpu; valid: cpu"):
        offered_kinds()
    monkeypatch.setenv("PODIUM_STAGE_KINDS", " ipu,cpu ")
    assert offered_kinds() == ("ipu", "cpu")


def test_the_remote_is_named_without_its_password_and_wrong_settings_with_their_file(project):
    assert default_remote(project) is None
    (project / ".dvc" / "config.local").write_text(REMOTE)
    assert default_remote(project) == ("store", "ssh://podium:***@host/srv/store")
    (project / ".dvc" / "config").write_text("[core]\n    remote = a\n[core]\n    remote = b\n")
    with pytest.raises(InputError, match=r"config.*section 'core'"):
        default_remote(project)


def test_a_stage_of_another_kind_refuses_and_names_its_outs_and_the_remote(project):
    (project / ".dvc" / "config").write_text(REMOTE)
    output, errors = start("rows@squad", project, PODIUM_STAGE_KINDS="ipu").communicate(timeout=30)
    assert output == ""
    assert "stage rows@squad needs a worker of kind cpu" in errors
    assert "(data/rows/squad, reports/validation/squad-rows.json, " in errors
    assert "store (ssh://podium:***@host/srv/store)" in errors


def test_two_device_stages_of_a_host_take_turns(project):
    lock = str(project / "pod.lock")
    first = start("finetune@squad", project, PODIUM_DEVICE_LOCK=lock)
    assert first.stdout.readline() == "entered\n"
    second = start("predict@squad", project, PODIUM_DEVICE_LOCK=lock)
    assert second.stdout.readline() == f"waiting for the device: process {first.pid} uses it (lock {lock})\n"
    corpus = start("corpus@text", project, PODIUM_DEVICE_LOCK=lock)
    assert corpus.communicate("\n", 30)[0] == "entered\n", "needs no device"
    first.kill()  # a killed stage keeps no lock
    assert second.stdout.readline() == "entered\n"
    second.communicate("\n", 30)
    first.communicate()


@pytest.mark.parametrize("name", ["params.yaml", "dvc.yaml"])
def test_a_stage_checks_a_plan_that_no_flow_has_checked_for_it(project, monkeypatch, name):
    """What the flow resolved it takes, as long as neither file was touched since."""
    checked = []
    monkeypatch.setattr(stage_kinds, "require_plan", lambda root, params: checked.append(params))
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("DVC_STAGE", "tokenizer")
    monkeypatch.setenv(stage_kinds.RESOLVED, stage_kinds.hash_of_parameters(project))
    stage_kinds.enter_stage()
    assert not checked
    (project / name).write_text((project / name).read_text() + "# a line more\n")
    stage_kinds.enter_stage()
    monkeypatch.delenv(stage_kinds.RESOLVED)
    stage_kinds.enter_stage()
    assert len(checked) == 2
