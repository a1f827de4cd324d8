"""DVC in a process that stays: verdicts, progress, failures, and stages that die with the flow."""

import hashlib
import os
import select
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from flows.dvc import session as sessions
from flows.dvc.session import DvcFailed, DvcSession, Listener, PlanStatus, StageFailed
from flows.runs.stopping import RunPaused, RunStopped, stop
from tests.flows.conftest import TOY_PLAN
from tests.flows.toy_runs import repro
from tests.places import ROOT
from tests.plans import stages_of, values_with
from tests.tasks.downstream.entries import write_parameters

PLAN = ["first", "second", "gate@squad"]
SAY = Listener(print)


def test_an_output_is_linked_into_the_cache_not_copied(toy_project):
    """DVC alone copies new outputs if reflinks come first, even on a disk that has none."""
    with (toy_project / ".dvc" / "config").open("a") as config:
        config.write('[cache]\n    type = "reflink,hardlink,copy"\n')
    if subprocess.run(["cp", "--reflink=always", "stage.py", "copy.py"], cwd=toy_project, check=False).returncode == 0:
        pytest.skip("this disk has reflinks")
    repro("first", toy_project)
    out = toy_project / "data" / "first"
    md5 = hashlib.md5(out.read_bytes()).hexdigest()
    assert out.samefile(toy_project / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:])
    assert repro("first", toy_project) == "skipped"


def enter(project, rest):
    """Let the stages check, as those of the project do, what was sent to them."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{TOY_PLAN}\nfrom tasks.plan.main import run_main\n"
    (project / "stage.py").write_text(code + rest)


def test_only_stages_that_were_sent_may_run(toy_project, ran):
    enter(toy_project, f"run_main(lambda: None)\n{(toy_project / 'stage.py').read_text()}")
    with pytest.raises(StageFailed, match="stage first was not sent to this worker, only second"):
        repro("second", toy_project, sent=["second"])
    assert ran() == []
    assert repro("first", toy_project, sent=["first"]) == "ran"


def test_a_stage_whose_outs_dvc_could_not_keep_is_no_success_though_dvc_raises_nothing(toy_project):
    """DVC logs the files that it could not copy, and continues."""
    objects, lines = toy_project / ".dvc" / "cache" / "files" / "md5", []
    objects.parent.mkdir(parents=True)
    objects.symlink_to("/proc/nothing")
    with pytest.raises(StageFailed, match="stage first failed"):
        repro("first", toy_project, lines.append)
    assert [line for line in lines if line.startswith("ERROR: ")]
    objects.unlink()
    assert repro("first", toy_project) == "ran"


def test_a_full_disk_is_named_where_dvc_does_not_say_it(toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    monkeypatch.setattr("flows.dvc.session.FULL_BELOW", 1 << 62)
    with pytest.raises(StageFailed, match=r"No space left on device: the disk of \S+ is full"):
        repro("second", toy_project)


SLOW = """
import time
def main():
    line = open("lifeline", "w")
    print("started", file=line, flush=True)
    time.sleep(120)
    print("survived", file=line)
run_main(main)
"""


@pytest.mark.parametrize("shell", ["/bin/sh", pytest.param(None, marks=pytest.mark.soak)])
def test_a_stage_dies_with_the_process_that_runs_the_flow(toy_project, shell):
    """Whatever shell DVC finds: services have no $SHELL, and dash stays between DVC and the stage."""
    enter(toy_project, SLOW)
    os.mkfifo(toy_project / "lifeline")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHELL": str(shell)}
    if shell is None:
        del environment["SHELL"]
    code = "from tests.flows.toy_runs import repro; from pathlib import Path; repro('first', Path('.'))"
    flow = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pipe = os.open(toy_project / "lifeline", os.O_RDONLY | os.O_NONBLOCK)
    assert select.select([pipe], [], [], 60)[0], "no stage has started"
    os.set_blocking(pipe, True)
    with open(pipe) as line:
        assert line.readline() == "started\n"
        flow.send_signal(signal.SIGKILL)
        flow.wait()
        assert line.read() == ""  # the stage's end of the line was closed: it is dead, and was before its sleep ended


def answers(code):
    """A process in place of DVC's, which answers the requests before the update, and that with `code`."""
    text = (
        "import json, os, socket, sys, time\n"
        "from tasks.stage.events import report\n"
        "line = socket.socket(fileno=int(sys.argv[1]))\n"
        "reply = lambda **words: [line.sendall((json.dumps(word) + '\\n').encode()) for word in words.items()]\n"
        f"line.recv(4096)\nreply(answer=None)\nline.recv(4096)\n{code}\n"
    )
    return (sys.executable, "-c", text)


def test_one_process_updates_all_stages_and_each_hears_its_own_lines(toy_project, ran):
    lines, shares = ({stage: [] for stage in PLAN} for _ in range(2))

    def listen(stage):
        return Listener(lines[stage].append, progress=lambda share, text: shares[stage].append(share))

    def update(session):
        return [session.update(stage, listen(stage)) for stage in PLAN]

    with DvcSession(toy_project) as session:
        assert update(session) == ["ran", "ran", "ran"]
    assert ran() == ["first", "second"]
    assert lines == {stage: [f"Running stage '{stage}':", "stage output"] for stage in PLAN}
    assert shares == dict.fromkeys(PLAN, [50, 100])
    (toy_project / "data" / "second").unlink()
    lock = yaml.safe_load((toy_project / "dvc.lock").read_text())
    del lock["stages"]["second"]
    (toy_project / "dvc.lock").write_text(yaml.safe_dump(lock))
    with DvcSession(toy_project) as session:
        assert update(session) == ["skipped", "restored", "skipped"]
    assert ran() == []


def test_a_session_outlives_a_stage_that_fails_and_those_before_it_are_kept(toy_project, ran, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    with DvcSession(toy_project) as session:
        assert session.update("first", SAY) == "ran"
        with pytest.raises(StageFailed, match="stage second failed.*told to fail"):
            session.update("second", SAY)
        assert session.update("first", SAY) == "skipped"
    monkeypatch.delenv("TOY_FAILS")
    with DvcSession(toy_project) as session:
        assert [session.update(stage, SAY) for stage in PLAN] == ["skipped", "ran", "ran"]
    assert (toy_project / "data" / "second").read_text() == "done", "half of it had been written"
    assert ran() == ["first", "second"]


REPLY = '["answer", {"verdict": "skipped", "lost": []}]'
SPEAKS = f"""
import pathlib, sys
from tasks.stage.events import report
print(repr(sys.stdin.read()))
print({REPLY!r}, flush=True)
report("note", text="3 dev examples with labels not in train")
pathlib.Path("data").mkdir(exist_ok=True)
pathlib.Path("data", sys.argv[1]).write_text("done")
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff no end of line")
sys.stdout.flush()
if sys.argv[1] == "second":
    print()
    report("paused", text="time is up after update 40")
    sys.exit(4)
"""


def test_what_a_stage_says_is_no_reply_and_what_it_reads_no_request(toy_project):
    """It may end within a line; its notes reach users when its other lines are not shown, and a pause is no failure."""
    (toy_project / "stage.py").write_text(SPEAKS)
    lines, notes = [], []
    with DvcSession(toy_project) as session:
        assert session.update("first", Listener(lines.append, notes.append)) == "ran"
        with pytest.raises(RunPaused, match="stage second paused: time is up after update 40"):
            session.update("second", Listener(lines.append))
    assert notes == ["3 dev examples with labels not in train"]
    assert lines[:5] == ["Running stage 'first':", "''", REPLY, "\ufffd no end of line", "Running stage 'second':"]


def test_dvcs_own_errors_are_said_with_their_causes(toy_project):
    plan = toy_project / "dvc.yaml"
    plan.write_text(plan.read_text().replace("outs: [data/first]", "outs: [data/other]"))
    with pytest.raises(StageFailed, match=r"(?s)first failed .exit code 255.*ERROR: .*output 'data/other'") as failure:
        repro("first", toy_project)
    assert "Traceback" not in str(failure.value)
    plan.write_text("stages: nonsense")
    with DvcSession(toy_project) as session, pytest.raises(DvcFailed, match=r"ERROR: .*dvc.yaml"):
        session.request("pull", targets=["first"])


def test_a_process_that_dies_is_told_with_what_it_printed_and_another_takes_its_place(toy_project, monkeypatch):
    output = "print('half of it', flush=True); report('paused', text='stopped on request (checkpoint saved)')"
    killed = answers(f"{output}; os.kill(os.getpid(), 9)")  # when memory is short, the kernel does
    with DvcSession(toy_project) as session:
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "CHILD", killed)
            with pytest.raises(StageFailed, match=r"(?s)stage first failed .SIGKILL .*out of memory.*half of it"):
                session.update("first", SAY)
        assert session.update("first", SAY) == "ran"


def test_a_stage_that_was_asked_to_stop_and_has_nothing_to_keep_is_told_from_one_that_failed(toy_project, monkeypatch):
    monkeypatch.setattr(stop, "number", 0)
    monkeypatch.setattr(sessions, "CHILD", answers("reply(say='asked'); reply(failed={'code': -2}); time.sleep(120)"))
    with DvcSession(toy_project) as session:
        with pytest.raises(RunStopped):
            session.update("first", Listener(lambda line: setattr(stop, "number", signal.SIGINT)))
        with pytest.raises(RunStopped):
            session.update("second", SAY)


def test_equal_stages_of_two_checkouts_on_one_cache_run_once_and_the_second_is_restored(toy_project, tmp_path, ran):
    go, other, lines = tmp_path / "go", tmp_path / "other", []
    with (toy_project / "stage.py").open("a") as stage:
        stage.write(f"import time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n")
    shutil.copytree(toy_project, other)
    (other / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {toy_project / '.dvc' / 'cache'}\n")

    def hear(line):
        lines.append(line)
        if "waiting for it" in line:
            go.touch()

    with DvcSession(toy_project) as first, DvcSession(other) as second, ThreadPoolExecutor(2) as threads:
        for session in (first, second):
            session.start()  # here: it ends with the thread that starts it
        both = [threads.submit(session.update, "first", Listener(hear)) for session in (first, second)]
        assert sorted(update.result() for update in both) == ["ran", "restored"]
    assert any("stage first: an equal stage is running" in line for line in lines)
    assert ran() == ["first"]
    assert (other / "data/first").read_text() == (toy_project / "data/first").read_text() == "done"


def test_up_to_date_are_stages_before_the_first_that_changed(toy_project):
    params, plan = toy_project / "params.yaml", toy_project / "dvc.yaml"
    with DvcSession(toy_project) as session:
        for number, stage in enumerate(PLAN):
            assert session.check_plan(PLAN) == PlanStatus(PLAN[:number], True)
            session.update(stage, SAY)
        assert session.check_plan(PLAN) == PlanStatus(PLAN, True)
        params.write_text(params.read_text().replace("learning_rate: ", "learning_rate: 1"))
        assert session.check_plan(PLAN) == PlanStatus(["first"], True)
        assert session.check_plan(["gate@squad"]) == PlanStatus([], False), "second, which it needs, changed"
        for stage in PLAN:
            session.update(stage, SAY)
        (toy_project / "data" / "second").unlink()
        assert session.check_plan(PLAN) == PlanStatus(["first"], True)
        plan.write_text(plan.read_text().replace("cmd: python stage.py first", "cmd: env python stage.py first"))
        assert session.update("first", SAY) == "ran", "the plan changed meanwhile"
        plan.write_text("stages: nonsense")
        assert session.check_plan(PLAN) == PlanStatus([], False), "DVC says what is wrong"


def test_every_part_but_fine_tuning_makes_all_that_it_needs(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    (tmp_path / "dvc.yaml").write_bytes((ROOT / "dvc.yaml").read_bytes())
    values = values_with("downstream.glue-sst2={kind: glue, task: sst2}")
    write_parameters(tmp_path, values)
    with DvcSession(tmp_path) as session:
        for part in ("all", "pretraining", "glue", "squad", "finetuning"):
            assert session.check_plan(stages_of(values, part)) == PlanStatus([], part != "finetuning"), part
