"""Which stages may run on a worker, what a refusal says, and one stage at a time on a device."""

import os
import shutil
import subprocess
import sys

import pytest

from tasks.params.schema import validate_params
from tasks.plan import stage_kinds
from tasks.plan.dvc_records import default_remote
from tasks.plan.plan_file import make_plan
from tasks.plan.stage_kinds import offered_kinds
from tasks.plan.stages import define
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.plans import values_with

REMOTE = "[core]\n    remote = store\n['remote \"store\"']\n    url = ssh://podium:geheim@host/srv/store\n"


@pytest.fixture
def checkout(tmp_path):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def start(stage, checkout, **environment):
    """The first thing a stage does under DVC, then `entered`, then it waits for the end of its input."""
    code = "from tasks.plan.main import run_main; run_main(lambda: print('entered', flush=True) or input())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=checkout,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DVC_STAGE": stage, "DVC_ROOT": str(checkout), **environment},
    )


@pytest.mark.parametrize(
    ("stage", "runtime", "kind"),
    [
        ("corpus@text", "ipu", "cpu"),
        ("validate@phase1", "ipu", "cpu"),
        ("gate@squad", "cuda", "cpu"),
        ("pretrain@phase2", "ipu", "ipu"),
        ("finetune@squad", "cuda", "cuda"),
        ("predict@squad", "auto", "auto"),
        ("compile@squad", "ipu", "ipu"),
        ("compile_pretrain@phase1", "ipu", "ipu"),
        ("pretrain_rows@phase1", "ipu", "cpu"),
        ("parity@squad-cpu:bf16", "ipu", "cpu"),
        ("parity@squad-ipu", "cpu", "ipu"),
    ],
)
def test_a_stage_without_a_device_job_is_of_kind_cpu_and_others_of_their_runtime(stage, runtime, kind):
    values = values_with("downstream.squad.parity.against=[cpu:bf16,ipu]", "device.runtime=ipu")
    assert make_plan(define(validate_params(values)))[stage].kind(runtime) == kind


def test_a_kind_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("PODIUM_STAGE_KINDS", "ipu, gpu")
    with pytest.raises(InputError, match="contains gpu; valid: cpu, cuda, ipu"):
        offered_kinds()
    monkeypatch.setenv("PODIUM_STAGE_KINDS", " ipu,cpu ")
    assert offered_kinds() == ("ipu", "cpu")


def test_the_remote_is_named_without_its_password(checkout):
    assert default_remote(checkout) is None
    (checkout / ".dvc" / "config.local").write_text(REMOTE)
    assert default_remote(checkout) == ("store", "ssh://podium:***@host/srv/store")


def test_a_stage_of_another_kind_refuses_and_names_its_outs_and_the_remote(checkout):
    (checkout / ".dvc" / "config").write_text(REMOTE)
    said, errors = start("rows@squad", checkout, PODIUM_STAGE_KINDS="ipu").communicate(timeout=30)
    assert said == ""
    assert "stage rows@squad needs a worker of kind cpu; this worker offers ipu" in errors
    assert "(data/rows/squad, reports/validation/squad-rows.json, " in errors
    assert "the remote store (ssh://podium:***@host/srv/store)" in errors
    assert "geheim" not in errors


def test_a_stage_that_was_not_sent_refuses_whatever_its_kind(checkout):
    refused = start("corpus@text", checkout, PODIUM_STAGES_SENT="evaluate@squad gate@squad")
    _, errors = refused.communicate(timeout=30)
    assert refused.returncode == 1
    assert "stage corpus@text was not sent to this worker, only evaluate@squad gate@squad" in errors
    assert "there is no remote" in errors
    assert (
        start("gate@squad", checkout, PODIUM_STAGES_SENT="evaluate@squad gate@squad").communicate("\n", 30)[0]
        == "entered\n"
    )


def test_two_device_stages_of_a_host_take_turns(checkout):
    lock = str(checkout / "pod.lock")
    first = start("finetune@squad", checkout, PODIUM_DEVICE_LOCK=lock)
    assert first.stdout.readline() == "entered\n"
    second = start("predict@squad", checkout, PODIUM_DEVICE_LOCK=lock)
    assert second.stdout.readline() == f"waiting for the device: process {first.pid} uses it (lock {lock})\n"
    assert start("corpus@text", checkout, PODIUM_DEVICE_LOCK=lock).communicate("\n", 30)[0] == "entered\n", (
        "needs no device"
    )
    first.kill()  # a killed stage keeps no lock
    assert second.stdout.readline() == "entered\n"
    second.communicate("\n", 30)
    first.communicate()


@pytest.mark.parametrize("name", ["params.yaml", "dvc.yaml"])
def test_a_stage_checks_a_plan_that_no_flow_has_checked_for_it(checkout, monkeypatch, name):
    """What the flow resolved it takes, as long as neither file was touched since."""
    checked = []
    monkeypatch.setattr(stage_kinds, "require_plan", lambda root, params: checked.append(params))
    monkeypatch.setenv("DVC_ROOT", str(checkout))
    monkeypatch.setenv("DVC_STAGE", "tokenizer")
    monkeypatch.setenv(stage_kinds.RESOLVED, stage_kinds.hash_of_parameters(checkout))
    stage_kinds.enter_stage()
    assert not checked
    (checkout / name).write_text((checkout / name).read_text() + "# a line more\n")
    stage_kinds.enter_stage()
    monkeypatch.delenv(stage_kinds.RESOLVED)
    stage_kinds.enter_stage()
    assert len(checked) == 2


def test_settings_of_dvc_that_name_a_section_twice_are_refused_with_the_file(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    remote = a\n[core]\n    remote = b\n")
    with pytest.raises(InputError, match=r"DVC's settings are invalid: .*config.*section 'core' already exists"):
        default_remote(tmp_path)
