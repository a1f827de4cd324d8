"""Stages that do not need each other at the same time: who begins when, and the same result as one by one."""

import json
import threading

import pytest
import yaml

from flows import pipeline
from flows.dvc import stages
from flows.dvc.stages import run_parallel
from tasks.plan.plan_file import Plan, expand
from tasks.stage.errors import ParamsError
from tasks.stage.parallel import STAGES_AT_ONCE, runs_at_once, stages_at_once

PATIENCE_S = 60.0


class Lane:
    """Stands for a DVC that stays: counts who works with it, and hears that it is ended."""

    def __init__(self):
        self.ready, self.ended = 0, threading.Event()

    def start(self):
        assert threading.current_thread() is threading.main_thread()
        self.ready += 1

    def end(self):
        self.ended.set()


def plan(**needs):
    """Stages of these names, each of which reads what others made; those in capitals need a device."""
    definitions = {
        name: {
            "cmd": name,
            "deps": [f"data/{other}" for other in before],
            "outs": [f"data/{name}"],
            "meta": {"host": "device"} if name.isupper() else {},
        }
        for name, before in needs.items()
    }
    return Plan(expand(definitions, {}))


class Record:
    """What begins next to what; a stage of `meets` ends when all of them have begun, one of `fails` by an error."""

    def __init__(self, meets=(), fails=()):
        self.meets, self.fails = meets, fails
        self.begun, self.done, self.alongside = [], [], {}
        self._all, self._lock = threading.Barrier(max(len(meets), 1), timeout=PATIENCE_S), threading.Lock()

    def bring(self, stage, lane):
        with self._lock:
            self.begun.append(stage)
            self.alongside[stage] = {*self.begun} - {*self.done, stage}
        if stage in self.meets:
            self._all.wait()
        with self._lock:
            self.done.append(stage)
        if stage in self.fails:
            raise stages.RunFailed(f"{stage} failed")


def test_stages_that_do_not_need_each_other_meet_and_others_wait_for_what_they_read():
    known = plan(text=[], questions=[], words=["text"], rows=["words", "questions"])
    record, lanes = Record(meets=("text", "questions")), [Lane(), Lane()]
    assert run_parallel(list(known), known, lanes, record.bring, pytest.fail) == []
    assert sorted(record.done) == sorted(known)
    assert record.done.index("text") < record.begun.index("words")
    assert record.begun[-1] == "rows"
    assert [lane.ready for lane in lanes].count(0) == 0


def test_never_more_at_once_than_lanes():
    known = plan(**{f"stage{number}": [] for number in range(9)})
    record = Record()
    assert run_parallel(list(known), known, [Lane(), Lane()], record.bring, pytest.fail) == []
    assert max(map(len, record.alongside.values())) <= 1
    assert len(record.done) == 9


def test_a_stage_that_needs_a_device_has_the_host_for_itself():
    known = plan(text=[], questions=[], TRAIN=["text"], OTHER=["text"], judge=["TRAIN"], page=["OTHER"])
    record = Record(meets=("text", "questions"))
    assert run_parallel(list(known), known, [Lane(), Lane(), Lane()], record.bring, pytest.fail) == []
    assert (record.alongside["TRAIN"], record.alongside["OTHER"]) == (set(), set())
    assert len(record.done) == 6


def test_after_a_failure_nothing_begins_and_who_is_at_work_comes_to_an_end():
    known, said = plan(text=[], questions=[], words=["text"], rows=["questions"]), []
    record, failed = Record(meets=("text", "questions"), fails=("questions",)), threading.Event()

    def bring(stage, lane):
        if stage != "text":
            record.bring(stage, lane)
            return
        record._all.wait()
        assert failed.wait(PATIENCE_S)
        record.done.append("text")

    def tell(text):
        said.append(text)
        failed.set()

    errors = run_parallel(list(known), known, [Lane(), Lane()], bring, tell)
    assert [str(error) for error in errors] == ["questions failed"]
    assert said == ["no more stages start after questions; waiting for text"]
    assert sorted(record.done) == ["questions", "text"]


def test_what_ends_this_process_ends_every_lane_and_so_its_threads():
    known, lanes, began = plan(text=[], questions=[]), [Lane(), Lane()], []

    def bring(stage, lane):
        began.append(stage)
        if stage == "questions":
            raise stages.RunFailed("questions failed")
        assert lane.ended.wait(PATIENCE_S), "its DVC was not ended"

    def tell(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_parallel(list(known), known, lanes, bring, tell)
    assert sorted(began) == ["questions", "text"]


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_what_is_no_number_of_stages_is_refused(monkeypatch, text):
    monkeypatch.setenv(STAGES_AT_ONCE, text)
    with pytest.raises(ParamsError, match=f"PODIUM_STAGES_AT_ONCE='{text}' must be a whole number"):
        stages_at_once()


def test_a_system_that_does_not_say_which_cores_are_ours_has_as_many_as_there_are(monkeypatch):
    monkeypatch.delenv(STAGES_AT_ONCE, raising=False)
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: None)
    assert (stages_at_once(), runs_at_once("cpu")) == (3, 3)


def test_cores_and_memory_say_how_many_stages_there_is_room_for(monkeypatch):
    monkeypatch.delenv(STAGES_AT_ONCE, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(2)))
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: 64_000_000_000)
    assert stages_at_once() == 2
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: 5_000_000_000)
    assert stages_at_once() == 1
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: 1_000_000_000)
    assert stages_at_once() == 1
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    assert stages_at_once() == 4
    monkeypatch.setenv(STAGES_AT_ONCE, "7")
    assert stages_at_once() == 7


BRANCHES = ("red", "green", "blue", "grey")
MEETS = """
import os, pathlib, sys, time
name, others = sys.argv[1], sys.argv[2:]
pathlib.Path(name + ".here").write_text(str(os.getpid()))
until = time.monotonic() + 120
while not all(pathlib.Path(other + ".here").exists() for other in others):
    assert time.monotonic() < until, "it is alone"
    time.sleep(0.02)
"""
"""A stage that continues when all the others have begun."""
WRITES = """
pathlib.Path("data").mkdir(exist_ok=True)
pathlib.Path("data", name).write_text(name)
print("[100%] " + name)
"""
FAILS = """
if name == "green":
    pathlib.Path("failed").touch()
    sys.exit("error: green was told to fail")
while not pathlib.Path("failed").exists():
    time.sleep(0.02)
green = int(pathlib.Path("green.here").read_text())
while pathlib.Path(f"/proc/{green}/cmdline").exists():
    time.sleep(0.02)
"""
"""green fails, and the others end after it has."""


def make_branches(project, body, names=BRANCHES, meet=True):
    """Give the toy project a stage for each name, two stages deep, and one that reads what all of them made."""
    definitions = {}
    for name in names:
        others = " ".join(other for other in names if other != name) if meet else ""
        first = {"cmd": f"python stage.py {name} {others}".strip(), "deps": ["stage.py"], "outs": [f"data/{name}"]}
        deep = {"cmd": f"cp data/{name} data/{name}2", "deps": [f"data/{name}"], "outs": [f"data/{name}2"]}
        definitions |= {name: first, f"{name}2": deep}
    made = [f"data/{name}2" for name in names]
    definitions["all"] = {"cmd": f"cat {' '.join(made)} > data/all", "deps": made, "outs": ["data/all"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": definitions}, sort_keys=False))
    (project / "stage.py").write_text(MEETS + body + WRITES)


def run_json(project):
    return json.loads((project / "reports" / "run.json").read_text())


def statuses(project):
    return {stage["name"]: stage["status"] for stage in run_json(project)["stages"]}


def lock_of(project):
    return yaml.safe_load((project / "dvc.lock").read_text())["stages"]


def test_four_at_once_come_to_what_one_by_one_comes_to(prefect_session, toy_project, monkeypatch):
    """Every DVC writes the one dvc.lock; none of its stages may be lost."""
    make_branches(toy_project, "", meet=False)
    monkeypatch.setenv(STAGES_AT_ONCE, "1")
    assert pipeline.pipeline(return_state=True).is_completed()
    alone, order = lock_of(toy_project), list(statuses(toy_project))
    outs = {path.name: path.read_text() for path in (toy_project / "data").iterdir()}
    assert outs["all"] == "redgreenbluegrey"
    (toy_project / "dvc.lock").unlink()
    for path in (toy_project / "data").iterdir():
        path.unlink()
    make_branches(toy_project, "")
    monkeypatch.setenv(STAGES_AT_ONCE, "4")
    assert pipeline.pipeline(return_state=True).is_completed()
    assert set(statuses(toy_project).values()) == {"ran", "restored"}
    assert list(statuses(toy_project)) == order, "the report has the order of the plan"
    together = lock_of(toy_project)
    for name in BRANCHES:  # which say in their words whom they wait for
        together[name]["cmd"] = alone[name]["cmd"]
    assert together == alone
    assert {path.name: path.read_text() for path in (toy_project / "data").iterdir()} == outs
    assert pipeline.pipeline(return_state=True).is_completed()
    assert set(statuses(toy_project).values()) == {"skipped"}


def test_one_fails_the_other_is_kept_and_the_error_is_said_once(prefect_session, toy_project, monkeypatch):
    make_branches(toy_project, FAILS, ("red", "green"))
    monkeypatch.setenv(STAGES_AT_ONCE, "2")
    state = pipeline.pipeline(return_state=True)
    assert state.is_failed()
    assert state.message == "stage green failed (exit code 1): green was told to fail"
    assert statuses(toy_project) == {"red": "ran", "green": "failed"}
    assert (toy_project / "data" / "red").read_text() == "red"
    script = (toy_project / "dvc.yaml").read_text().replace("stage.py green red", "second.py green red")
    (toy_project / "dvc.yaml").write_text(script)
    (toy_project / "second.py").write_text(MEETS + WRITES)
    assert pipeline.pipeline(return_state=True).is_completed()
    assert statuses(toy_project)["red"] == "skipped"
    assert (toy_project / "data" / "all").read_text() == "redgreen"


def test_two_that_fail_are_both_told(prefect_session, toy_project, monkeypatch):
    make_branches(toy_project, "sys.exit('error: no ' + name)\n", ("red", "green"))
    monkeypatch.setenv(STAGES_AT_ONCE, "2")
    state = pipeline.pipeline(return_state=True)
    assert state.is_failed()
    told = {f"stage {name} failed (exit code 1): no {name}" for name in ("red", "green")}
    assert set(state.message.splitlines()) == told
    assert statuses(toy_project) == {"red": "failed", "green": "failed"}


@pytest.mark.parametrize(
    ("pool", "cores", "free", "runs"),
    [("ipu", 64, 1e12, 1), ("cuda", 64, 1e12, 1), ("cpu", 8, 2.5e10, 6), ("cpu", 2, 2.5e10, 2), ("cpu", 8, 1e9, 1)]
    + [("flows", 2, 2.1e9, 5), ("flows", 2, 1e11, 32), ("cpu", 8, None, 8)],
)
def test_a_worker_takes_as_many_runs_as_its_host_has_room_for(monkeypatch, pool, cores, free, runs):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: free)
    assert runs_at_once(pool) == runs
