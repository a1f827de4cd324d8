"""`dvc repro`, stage by stage or together: verdicts, progress, failures, and stages that die with the flow."""

import os
import signal
import subprocess
import sys

import pytest
import yaml

from flows import dvc
from flows.repro import Repro, StageFailed, StagePaused
from tests.flows.toy_repro import repro
from tests.places import ROOT


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
    with pytest.raises(StageFailed, match="stage second failed") as failure:
        repro("second", toy_project)
    assert "told to fail" in str(failure.value)
    monkeypatch.delenv("TOY_FAILS")
    assert repro("second", toy_project) == "ran"
    assert (toy_project / "data" / "second").read_text() == "done"


def test_a_stage_that_paused_is_told_from_one_that_failed(toy_project):
    (toy_project / "stage.py").write_text("import sys\nprint('paused: time is up after update 40')\nsys.exit(4)\n")
    with pytest.raises(StagePaused, match="stage first paused: time is up after update 40"):
        repro("first", toy_project)


def test_only_stages_that_were_sent_may_run(toy_project, ran):
    script = (toy_project / "stage.py").read_text()
    enter = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tasks.project.main import run_main\nrun_main(lambda: None)\n"
    )
    (toy_project / "stage.py").write_text(enter + script)
    with pytest.raises(StageFailed, match="stage first was not sent to this worker, only second"):
        repro("second", toy_project, sent=["second"])
    assert ran() == []
    assert repro("second", toy_project, sent=["first", "second"]) == "ran"


def test_a_stage_whose_outs_dvc_could_not_keep_is_no_success_though_dvc_ends_with_0(toy_project, monkeypatch):
    monkeypatch.setattr(dvc, "DVC", ("sh", "-c", "echo \"ERROR: failed to transfer '4b98' - [Errno 28]\"; exit 0"))
    with pytest.raises(StageFailed, match=r"DVC could not keep what it made in its cache") as failure:
        repro("first", toy_project)
    assert "failed to transfer '4b98'" in str(failure.value)


def test_a_full_disk_is_named_where_dvc_does_not_say_it(toy_project, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "second")
    monkeypatch.setattr("flows.dvc_failures.LITTLE", 1 << 62)
    with pytest.raises(StageFailed, match=r"No space left on device: the disk of \S+ is full, make room there"):
        repro("second", toy_project)


def test_a_damaged_file_of_parameters_is_named_and_made_again(toy_project, ran):
    text = (toy_project / "dvc.yaml").read_text()
    read = text.replace("params: [downstream.squad.finetune.learning_rate]", "params: [data/first/facts.json: [size]]")
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
    with pytest.raises(StageFailed, match="data/first does not hold what its stage wrote"):
        repro("second", toy_project)
    assert repro("second", toy_project) == "skipped"
    assert facts.read_text() == '{"size": 4}'


SLOW_STAGE = """
import os, sys, time
sys.path.insert(0, {root!r})
from tasks.project.main import run_main
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
            "from tests.flows.toy_repro import repro; from pathlib import Path; repro('first', Path('.'))",
        ],
        env=environment,
    )
    with open(toy_project / "lifeline") as line:
        assert line.readline() == "started\n"
        flow.send_signal(signal.SIGKILL)
        flow.wait()
        assert line.read() == ""  # the stage's end of the line was closed: it is dead, and was before its sleep ended


def starts(project, monkeypatch):
    """Count the starts of a DVC that stays: a list that grows with its words."""
    log = project.parent / "starts.txt"
    log.touch()
    counted = 'echo "$*" >> "$0"; exec "$@"'
    monkeypatch.setattr(dvc, "LANE", ("sh", "-c", counted, str(log), *dvc.LANE))
    return lambda: [line.partition(" dvc ")[2] for line in log.read_text().splitlines()]


def test_a_dvc_that_stays_brings_all_stages_and_each_hears_its_own_lines(toy_project, ran, monkeypatch):
    plan, started = ["first", "second", "gate@squad"], starts(toy_project, monkeypatch)
    said, shares = {stage: [] for stage in plan}, {stage: [] for stage in plan}
    with Repro(toy_project, stays=True) as one:
        verdicts = [one.bring(stage, said[stage].append, shares[stage].append) for stage in plan]
    assert verdicts == ["ran", "ran", "ran"]
    assert started() == ["repro --single-item"]
    assert ran() == ["first", "second"]
    for stage in plan:
        assert said[stage] == [f"Running stage '{stage}':", "[ 50%] half way", "[100%] all the way"]
        assert shares[stage] == [50.0, 100.0]
    (toy_project / "data" / "second").unlink()
    lock = yaml.safe_load((toy_project / "dvc.lock").read_text())
    del lock["stages"]["second"]
    (toy_project / "dvc.lock").write_text(yaml.safe_dump(lock))
    with Repro(toy_project, stays=True) as one:
        verdicts = [one.bring(stage, said[stage].append, shares[stage].append) for stage in plan]
    assert verdicts == ["skipped", "restored", "skipped"]
    assert ran() == []


def test_a_dvc_that_stays_outlives_a_stage_that_fails_and_those_before_it_are_kept(toy_project, ran, monkeypatch):
    plan = ["first", "second", "gate@squad"]
    monkeypatch.setenv("TOY_FAILS", "second")
    with Repro(toy_project, stays=True) as one:
        assert one.bring("first", print, print) == "ran"
        with pytest.raises(StageFailed, match="stage second failed") as failure:
            one.bring("second", print, print)
        assert one.bring("first", print, print) == "skipped"
    assert "told to fail" in str(failure.value)
    assert "stage first" not in str(failure.value)
    monkeypatch.delenv("TOY_FAILS")
    with Repro(toy_project, stays=True) as one:
        assert [one.bring(stage, print, print) for stage in plan] == ["skipped", "ran", "ran"]
    assert ran() == ["first", "second"]


def test_a_stage_that_reads_its_input_does_not_read_the_names_of_others_and_may_end_within_a_line(toy_project):
    (toy_project / "stage.py").write_text(
        "import pathlib, sys\nprint(repr(sys.stdin.read()))\nsys.stdout.write('no end of line')\n"
        "pathlib.Path('data').mkdir(exist_ok=True)\npathlib.Path('data', sys.argv[1]).write_text('done')\n"
        "pathlib.Path('metrics').mkdir(exist_ok=True)\npathlib.Path('metrics/squad.json').write_text('{}')\n"
    )
    said = []
    with Repro(toy_project, stays=True) as one:
        assert [one.bring(stage, said.append, print) for stage in ("first", "second")] == ["ran", "ran"]
    assert said[:2] == ["Running stage 'first':", "''"]
    assert not [line for line in said if one._word in line]


SAYS = """read name; echo "Running stage '$name':"; {}; echo "$0 0"; exec sleep 120"""


def test_a_stage_whose_outs_a_dvc_that_stays_could_not_keep_has_failed(toy_project, monkeypatch):
    transfer = "echo \"ERROR: failed to transfer '4b98' - [Errno 28]\""
    monkeypatch.setattr(dvc, "LANE", ("sh", "-c", SAYS.format(transfer)))
    with Repro(toy_project, stays=True) as one:
        with pytest.raises(StageFailed, match="stage first failed .DVC could not keep what it made in its cache"):
            one.bring("first", print, print)
        process = one._process
    assert process.returncode == -signal.SIGKILL


def test_a_dvc_that_stays_must_have_said_a_word_of_each_stage(toy_project, monkeypatch):
    monkeypatch.setattr(dvc, "LANE", ("sh", "-c", 'read name; echo "Running stage \'first\':"; echo "$0 0"'))
    with Repro(toy_project, stays=True) as one:
        assert one.bring("first", print, print) == "ran"
        with pytest.raises(StageFailed, match="stage second failed .DVC ended without a word of it"):
            one.bring("second", print, print)
