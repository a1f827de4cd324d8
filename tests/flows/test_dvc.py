"""Calling DVC: verdicts, progress, failures, and stages that die with the flow."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows import dvc

ROOT = Path(__file__).resolve().parent.parent.parent


def repro(stage, root, said=None, shares=None):
    return dvc.repro(
        stage, root, (said if said is not None else []).append, (shares if shares is not None else []).append
    )


def with_remote(project, url):
    text = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {url}\n"
    (project / ".dvc" / "config.local").write_text(text)


def test_a_stage_runs_once_is_then_skipped_and_is_restored_when_its_output_is_lost(toy_project, ran):
    assert repro("first", toy_project) == "ran"
    assert repro("first", toy_project) == "skipped"
    (toy_project / "data" / "first").unlink()
    (toy_project / "dvc.lock").unlink()
    assert repro("first", toy_project) == "restored"
    assert (toy_project / "data" / "first").read_text() == "done"
    assert ran() == ["first"]


def test_the_verdict_is_the_named_stages_not_that_of_the_stages_before_it(toy_project, ran):
    repro("second", toy_project)
    (toy_project / "stage.py").write_text((toy_project / "stage.py").read_text() + "# changed\n")
    assert repro("first", toy_project) == "ran"
    assert repro("second", toy_project) == "ran"
    assert ran() == ["first", "second", "first", "second"]


def test_lines_and_progress_are_passed_on_without_dvcs_bookkeeping(toy_project):
    said, shares = [], []
    repro("first", toy_project, said, shares)
    assert shares == [50.0, 100.0]
    assert "[ 50%] half way" in said
    assert not [line for line in said if "lock" in line]


def test_a_failed_stage_names_itself_repeats_its_last_lines_and_leaves_no_output(toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    with pytest.raises(dvc.StageFailed, match="stage second failed") as failure:
        repro("second", toy_project)
    assert "told to fail" in str(failure.value)
    monkeypatch.delenv("TOY_FAILS")
    assert repro("second", toy_project) == "ran"
    assert (toy_project / "data" / "second").read_text() == "done"


def test_up_to_date_are_stages_before_the_first_that_changed(toy_project):
    plan = ["first", "second", "gate"]
    assert dvc.up_to_date(toy_project, plan) == []
    repro("second", toy_project)
    assert dvc.up_to_date(toy_project, plan) == ["first", "second"], "gate has never run"
    repro("gate", toy_project)
    assert dvc.up_to_date(toy_project, plan) == plan
    params = toy_project / "params.yaml"
    params.write_text(params.read_text().replace("learning_rate: ", "learning_rate: 1"))
    assert dvc.up_to_date(toy_project, plan) == ["first"]
    assert dvc.up_to_date(toy_project, ["gate"]) == [], "second, which it needs, changed"
    repro("gate", toy_project)
    (toy_project / "data" / "second").unlink()
    assert dvc.up_to_date(toy_project, plan) == ["first"]
    (toy_project / "dvc.yaml").write_text("stages: nonsense")
    assert dvc.up_to_date(toy_project, plan) == []


def test_a_remote_is_found_in_either_config_file(toy_project):
    assert not dvc.has_remote(toy_project)
    (toy_project / ".dvc" / "config.local").write_text("[core]\n    remote = store\n")
    assert dvc.has_remote(toy_project)


SLOW_STAGE = """
import os, sys, time
sys.path.insert(0, {root!r})
from tasks.common.errors import run_main
def main():
    line = open("lifeline", "w")
    print("started", file=line, flush=True)
    time.sleep(120)
    print("survived", file=line)
run_main(main)
"""


@pytest.mark.parametrize("shell", [None, "/bin/sh", "/bin/bash"])
def test_a_stage_dies_with_the_process_that_runs_the_flow(toy_project, shell):
    """Whatever shell DVC finds: services have no $SHELL, and dash stays between DVC and the stage."""
    (toy_project / "stage.py").write_text(SLOW_STAGE.format(root=str(ROOT)))
    os.mkfifo(toy_project / "lifeline")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHELL": shell or ""}
    if shell is None:
        del environment["SHELL"]
    flow = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from flows import dvc; from pathlib import Path; dvc.repro('first', Path('.'), print, print)",
        ],
        env=environment,
    )
    with open(toy_project / "lifeline") as line:
        assert line.readline() == "started\n"
        flow.send_signal(signal.SIGKILL)
        flow.wait()
        assert line.read() == ""  # the stage's end of the line was closed: it is dead, and was before its sleep ended


STATUS = """
from pathlib import Path
from flows import dvc
dvc.DVC = ("sh", "-c", "exec > lifeline; echo started; exec sleep 120")
dvc.up_to_date(Path("."), ["first"])
"""


def test_a_look_at_what_changed_dies_with_the_flow_too(toy_project):
    (toy_project / "dvc.lock").write_text("stages: {first: {}}\n")
    os.mkfifo(toy_project / "lifeline")
    flow = subprocess.Popen([sys.executable, "-c", STATUS], env={**os.environ, "PYTHONPATH": str(ROOT)})
    with open(toy_project / "lifeline") as line:
        assert line.readline() == "started\n"
        flow.send_signal(signal.SIGKILL)
        flow.wait()
        assert line.read() == ""


def test_a_stage_that_paused_is_told_from_one_that_failed(toy_project):
    (toy_project / "stage.py").write_text("import sys\nprint('paused: time is up after update 40')\nsys.exit(4)\n")
    with pytest.raises(dvc.StagePaused, match="stage first paused: time is up after update 40"):
        repro("first", toy_project)


def test_only_stages_that_were_sent_may_run(toy_project, ran):
    script = (toy_project / "stage.py").read_text()
    enter = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tasks.common.errors import run_main\nrun_main(lambda: None)\n"
    )
    (toy_project / "stage.py").write_text(enter + script)
    with pytest.raises(dvc.StageFailed, match="stage first was not sent to this worker, only second"):
        dvc.repro("second", toy_project, print, print, ["second"])
    assert ran() == []
    assert dvc.repro("second", toy_project, print, print, ["first", "second"]) == "ran"


def test_what_one_checkout_pushed_another_restores_figures_included(toy_project, ran, monkeypatch):
    remote = toy_project.parent / "remote"
    with_remote(toy_project, remote)
    for stage in ("first", "second", "gate"):
        repro(stage, toy_project)
    dvc.push(["first", "second", "gate"], toy_project, print)
    other = toy_project.parent / "other"
    shutil.copytree(
        toy_project, other, ignore=shutil.ignore_patterns("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    )
    assert dvc.repro("gate", other, print, print, []) == "restored", "nothing may run there"
    assert (other / "metrics" / "gate.json").read_text() == (toy_project / "metrics" / "gate.json").read_text()
    assert ran() == ["first", "second"]


def test_a_remote_that_takes_nothing_ends_with_its_name_and_the_outs_stay(toy_project, monkeypatch):
    blocked = toy_project.parent / "file"
    blocked.write_text("no folder")
    with_remote(toy_project, f"{blocked}/store")
    monkeypatch.setattr(dvc, "PUSH_WAITS", (0.0,))
    repro("first", toy_project)
    said = []
    with pytest.raises(dvc.PushFailed, match=r"the remote store \(\S+file/store\) did not take the outs of first"):
        dvc.push(["first"], toy_project, said.append)
    assert len(said) == 1
    assert (toy_project / "data" / "first").read_text() == "done"


def test_a_stage_whose_outs_dvc_could_not_keep_is_no_success_though_dvc_ends_with_0(toy_project, monkeypatch):
    monkeypatch.setattr(dvc, "DVC", ("sh", "-c", "echo \"ERROR: failed to transfer '4b98' - [Errno 28]\"; exit 0"))
    with pytest.raises(dvc.StageFailed, match=r"DVC could not keep what it made in its cache") as failure:
        repro("first", toy_project)
    assert "failed to transfer '4b98'" in str(failure.value)


def test_a_full_disk_is_named_where_dvc_does_not_say_it(toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    monkeypatch.setattr("flows.dvc_failures.LITTLE", 1 << 62)
    with pytest.raises(dvc.StageFailed, match=r"No space left on device: the disk of \S+ is full, make room there"):
        repro("second", toy_project)


def test_a_damaged_file_of_parameters_is_named_and_made_again(toy_project, ran):
    text = (toy_project / "dvc.yaml").read_text()
    read = text.replace("params: [finetune.learning_rate]", "params: [data/first/facts.json: [size]]")
    (toy_project / "dvc.yaml").write_text(read)
    script = (toy_project / "stage.py").read_text()
    folder = 'if name == "first":\n    p = pathlib.Path("data/first"); p.mkdir(parents=True); (p / "facts.json")'
    (toy_project / "stage.py").write_text(
        script.replace('if name == "gate":', folder + '.write_text(json.dumps({"size": 4}))\nelif name == "gate":', 1)
    )
    repro("second", toy_project)
    facts = toy_project / "data" / "first" / "facts.json"
    state = facts.stat()
    facts.write_text('{"size": 4)')
    os.utime(facts, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(dvc.StageFailed, match="data/first does not hold what its stage wrote"):
        repro("second", toy_project)
    assert repro("second", toy_project) == "skipped"
    assert facts.read_text() == '{"size": 4}'
