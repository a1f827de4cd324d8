"""A disk that is full at every writer, then room again."""

import pytest

from tests.faults import processes, small_run
from tests.faults.small_disk import leave, small_disk
from tests.faults.small_run import PUBLISH

pytestmark = pytest.mark.faults
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
ADDING = ("corpus@text", "pretrain_rows@phase1", "rows@squad", "pretrain@phase1", "predict@squad", "evaluate@squad")
WHOLE = [(stage, "", share) for stage in (*ADDING, "gate@squad") for share in (0.02, 0.5, 0.9)]
"""Stage, the whole project, and which share of what the stage adds to the disk there is room for."""


@pytest.mark.parametrize(("stage", "folder", "room"), [*MOUNTED, *WHOLE])
def test_a_writer_meets_a_full_disk_and_ends_well_with_room_again(stage, folder, room, tmp_path, pictures, new_flow):
    project = pictures.project_before(stage, tmp_path / "project")
    kilobytes = room if folder else int(room * pictures.kilobytes_added(stage))
    with small_disk(project / folder, kilobytes) as disk:
        case = new_flow(project)
        words = case.stage(stage) if stage == PUBLISH else case.flow(stage, publish=False)
        starved = case.run(*words)
        assert starved.returncode == 1, starved.stdout
        assert any(word in starved.stdout for word in FULL), starved.stdout
        assert "Traceback" not in starved.stdout, starved.stdout
        processes.require_none(case.mark)
        leave(disk, 1 << 19)
        case.succeed(*words)
        small_run.require_whole(project, pictures.digests_after(stage), published=stage == PUBLISH)
