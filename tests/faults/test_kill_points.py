"""SIGKILL at seeded random points of the small run, then the same run again to its end."""

import random
import signal
import time

import pytest

from flows.dvc import leftovers
from tests.faults import processes, small_run
from tests.faults.small_run import Case

SEED = 20261120
POINTS = 50
SECONDS_OF_DVC = 1.5
"""What a `dvc repro` of one stage takes before the stage begins."""
CORPUS = ["-m", "dvc", "repro", "corpus@text"]


def points():
    """Every stage in turn, the order shuffled; the training stages, where most can be lost, get what is over."""
    source = random.Random(SEED)
    training = [stage for stage in small_run.PLAN if stage.startswith(("pretrain@", "finetune@"))]
    stages = [*small_run.PLAN, small_run.PUBLISH]
    chosen = [*stages, *stages, *training * POINTS][:POINTS]
    source.shuffle(chosen)
    return [(number, stage, round(source.random(), 3)) for number, stage in enumerate(chosen)]


@pytest.mark.faults
@pytest.mark.parametrize(("number", "stage", "fraction"), points())
def test_a_killed_run_is_finished_by_the_next(number, stage, fraction, tmp_path, pictures, new_flow):
    """After a fraction of the stage's seconds: the flow alone, or all of its processes."""
    project = pictures.project_before(stage, tmp_path / "project", later_from_cache=number % 10 != 0)
    case, log = new_flow(project), tmp_path / "killed.log"
    flow = case.start(*case.flow(), log=log)
    begins = f"Running stage '{stage}'" if stage in small_run.PLAN else f"{small_run.PUBLISH}: started"
    processes.wait_for(lambda: begins in log.read_text(), 120.0, f"the flow has not come to {stage}")
    # the random moment itself, waiting for nothing
    time.sleep(fraction * max(pictures.seconds[stage] - SECONDS_OF_DVC, 0.5))
    if number % 2 == 0:
        processes.kill_all(case.mark)
    else:
        flow.send_signal(signal.SIGKILL)
    flow.wait()
    processes.require_none(case.mark)
    with processes.one_trainer(case.mark):
        case.succeed(*case.flow())
    processes.require_none(case.mark, 5.0)
    small_run.require_whole(project, pictures.digests, published=True)


@pytest.mark.faults
def test_the_temporary_server_ends_with_a_flow_that_is_killed(tmp_path):
    patience = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}  # a busy machine is not a fault
    case = Case(small_run.make_project(tmp_path / "project"), tmp_path, extra=patience)
    log = tmp_path / "flow.log"
    flow = case.start(*case.flow(), log=log)
    processes.wait_for(lambda: "Running stage 'corpus@text'" in log.read_text(), 120.0, "the flow has not begun")
    assert any("uvicorn" in command for command in processes.of_case(case.mark).values()), "it has no server"
    flow.kill()
    flow.wait()
    processes.require_none(case.mark)


def test_a_corpus_killed_twice_is_that_of_an_undisturbed_run(tmp_path):
    undisturbed, killed = (Case(small_run.make_project(tmp_path / name / "p"), tmp_path / name) for name in "ab")
    undisturbed.succeed(*CORPUS)
    source = random.Random(SEED)
    for _ in range(2):
        run = killed.start(*CORPUS)
        time.sleep(source.uniform(0.5, 2.0))  # the random moment itself
        run.kill()
        run.wait()
        processes.require_none(killed.mark)
    leftovers.repair(killed.project, print)  # as flows do: a DVC killed while it writes its list leaves half of it
    killed.succeed(*CORPUS)
    small_run.require_whole(killed.project, small_run.digests(undisturbed.project))
    processes.require_none(killed.mark, 5.0)
