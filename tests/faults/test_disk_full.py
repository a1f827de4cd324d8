"""A disk that is full at every writer, then room again."""

import pytest

from tests.faults import processes, small_run, table
from tests.faults.damage import DISK_FULL, leave, small_disk
from tests.faults.small_run import PUBLISH

FULL = ("No space left on device", "os error 28", "nothing was started. disk: ")
"""What says so: the system, a library, or the look around before a run."""

MOUNTED = (
    ("corpus@text", "data", 0),
    ("pretrain_rows@phase1", "data/rows", 8),
    ("pretrain@phase1", "runs", 48),
    ("pretrain@phase1", "runs", 160),
    ("pretrain@phase1", "models", 12),
    ("pretrain@phase1", "plots", 0),
    ("evaluate@squad", "metrics", 0),
    (PUBLISH, "published", 40),
    (PUBLISH, "reports", 0),
    ("pretrain@phase1", ".dvc/cache", 16),
    ("pretrain_rows@phase1", ".dvc/cache", 4),
)
"""Stage, folder, KB of room it has (next to what is in it)."""
WHOLE = tuple(
    (stage, share)
    for stage in (
        "corpus@text",
        "pretrain_rows@phase1",
        "rows@squad",
        "pretrain@phase1",
        "predict@squad",
        "evaluate@squad",
        "gate@squad",
    )
    for share in (0.02, 0.5, 0.9)
)
"""Stage, and which share of what it adds to the disk there is room for."""


def starve_then_feed(case, stage, words, disk, reference):
    """Run the words on the full disk and again with room; says how the first run ended."""
    starved = case.run(*words)
    said = [line for line in starved.stdout.splitlines() if any(word in line for word in FULL)]
    assert starved.returncode == 1, f"exit code {starved.returncode} on a full disk:\n{starved.stdout[-2500:]}"
    assert said, f"it does not say that the disk is full:\n{starved.stdout[-2500:]}"
    assert "Traceback" not in starved.stdout, f"a traceback is not a message:\n{starved.stdout[-4000:]}"
    processes.require_none(case.mark)
    leave(disk, 1 << 19)
    fed = case.run(*words)
    if fed.returncode:
        raise table.Lost(f"with room again it ended with exit code {fed.returncode}:\n{fed.stdout[-2500:]}")
    small_run.require_same(case.project, reference)
    small_run.require_whole(case.project)
    if stage == PUBLISH:
        small_run.require_published_once(case.project)
    return said[0].split(" - ")[-1].strip()[:150]


@pytest.mark.faults
@pytest.mark.parametrize(("stage", "folder", "room"), MOUNTED)
def test_a_writer_meets_a_full_disk(stage, folder, room, tmp_path, pictures, new_flow):
    project = pictures.project_before(stage, tmp_path / "project", later_from_cache=False)
    with small_disk(project / folder, room) as disk, table.case(DISK_FULL, f"{stage}, {folder}, {room} KB") as notes:
        case = new_flow(project)
        words = case.stage(stage) if stage == PUBLISH else case.flow(stage, publish=False)
        notes.append(starve_then_feed(case, stage, words, disk, pictures.digests_after(stage)))


@pytest.mark.faults
@pytest.mark.parametrize(("stage", "share"), WHOLE)
def test_the_whole_project_meets_a_full_disk(stage, share, tmp_path, pictures, new_flow):
    project = pictures.project_before(stage, tmp_path / "project", later_from_cache=False)
    room = int(share * pictures.kilobytes_added(stage))
    with small_disk(project, room) as disk, table.case(DISK_FULL, f"{stage}, whole project, {share:.0%}") as notes:
        case = new_flow(project)
        words = case.flow(stage, publish=False)
        notes.append(starve_then_feed(case, stage, words, disk, pictures.digests_after(stage)))
