"""Two of the same at once in one project: one works, the other says who holds it and ends; the results are right."""

import re

import pytest

from tests.faults import processes, small_run, table

ROW = "two at once"


def start_both(case, words):
    logs = [case.home / f"{name}.log" for name in ("first", "second")]
    return [(case.start(*words, log=log), log) for log in logs]


@pytest.mark.faults
@pytest.mark.parametrize("stage", ["corpus@text", "pretrain@phase1", "predict@squad"])
@pytest.mark.parametrize("what", ["flow", "dvc"])
def test_two_runs_in_one_project(stage, what, tmp_path, pictures, new_flow):
    with table.case(ROW, f"{what}, {stage}") as notes:
        case = new_flow(pictures.project_before(stage, tmp_path / "project", later_from_cache=False))
        words = case.flow(stage, publish=False) if what == "flow" else case.stage(stage)
        with processes.TrainerCount(case.mark) as trainers:
            both = start_both(case, words)
            codes = [process.wait(timeout=300) for process, _ in both]
        said = [log.read_text() for _, log in both]
        assert trainers.most <= 1, "two trainers worked at once"
        assert 0 in codes, f"neither worked:\n{said[0][-2000:]}\n{said[1][-2000:]}"
        processes.require_none(case.mark, 5.0)
        for code, text in zip(codes, said, strict=True):
            if code:  # else it began after the other had ended, and had nothing to do
                assert holder(text), f"it does not say who holds it:\n{text[-2000:]}"
                notes.append(holder(text))
        again = case.run(*words)
        assert again.returncode == 0, again.stdout
        small_run.require_same(case.project, pictures.digests_after(stage))
        small_run.require_whole(case.project)


def holder(text):
    found = re.search(r"(PID \d+|in use by process \d+ on \S+|process \d+ on \S+)", text)
    return found[0] if found else ""


@pytest.mark.faults
def test_two_trainers_without_dvc(tmp_path, pictures, new_case):
    """By hand, the stage's command in two terminals: DVC's locks are not in play, the run folder's is."""
    with table.case(ROW, "python -m tasks.pretraining.pretrain phase1") as notes:
        case = new_case(pictures.project_before("pretrain@phase1", tmp_path / "project", later_from_cache=False))
        (case.project / "models").mkdir(exist_ok=True)
        with processes.TrainerCount(case.mark):
            first, second = start_both(case, ["-m", "tasks.pretraining.pretrain", "phase1"])
            codes = [process.wait(timeout=120) for process, _ in (first, second)]
        said = [log.read_text() for _, log in (first, second)]
        assert sorted(codes) == [0, 1], said
        refused = said[codes.index(1)]
        assert re.search(r"in use by process \d+ on \S+", refused), refused
        notes.append(holder(refused))
        reference = pictures.digests_after("pretrain@phase1")
        small_run.require_same(case.project, reference)
        small_run.require_whole(case.project)
