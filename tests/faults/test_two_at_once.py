"""Two of the same at once in one project: one works, the other says who holds it and ends; the results are right."""

import contextlib
import re
from itertools import product

import pytest

from tests.faults import processes, small_run

pytestmark = pytest.mark.faults
BY_HAND = ["-m", "tasks.pretraining.pretrain", "phase1"]
"""The stage's command in two terminals: DVC's locks are not in play, the run folder's is."""
HOLDER = r"PID \d+|process \d+ on \S+|Unable to acquire lock"


STAGES = ("corpus@text", "pretrain@phase1", "predict@squad")


@pytest.mark.parametrize(("what", "stage"), [*product(("flow", "dvc"), STAGES), ("by hand", "pretrain@phase1")])
def test_two_at_once_in_one_project(what, stage, tmp_path, pictures, new_flow):
    case = new_flow(pictures.project_before(stage, tmp_path / "project"))
    (case.project / "models").mkdir(exist_ok=True)
    words = {"flow": case.flow(stage, publish=False), "dvc": case.stage(stage), "by hand": BY_HAND}[what]
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    # By hand, the second is a trainer too, until it finds the folder in use.
    with contextlib.nullcontext() if what == "by hand" else processes.one_trainer(case.mark):
        both = [case.start(*words, log=log) for log in logs]
        codes = [process.wait(timeout=300) for process in both]
    texts = [log.read_text() for log in logs]
    assert 0 in codes, texts
    processes.require_none(case.mark, 5.0)
    for code, text in zip(codes, texts, strict=True):
        # else it began after the other had ended, and had nothing to do
        assert code == 0 or re.search(HOLDER, text), text
    if what == "by hand":
        assert sorted(codes) == [0, 1], texts
    else:
        case.succeed(*words)
    small_run.require_whole(case.project, pictures.digests_after(stage))
