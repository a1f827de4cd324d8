"""`podium clean`: what it says, what it removes, and what stays whatever is asked; with a real DVC and its cache."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from flows import dvc
from flows.commands import clean
from flows.runs import listing, report
from tests.flows.toy_runs import ACCEPTED, FASTER, call, holding, podium, require_end, run, statuses

pytestmark = pytest.mark.usefixtures("prefect_session")


def names(project):
    return {run.name for run in listing.list_all(project)}


def objects(project):
    return sorted(path.parent.name + path.name for path in (project / ".dvc/cache/files/md5").glob("??/*"))


def test_first_it_says_what_would_go_and_removes_nothing_unless_told(three, capsys):
    code, printed = podium(capsys, "clean", "fast")
    assert re.search(r"^fast +[\d.]+ kB +rejected$", printed.out, re.MULTILINE)
    assert (code, "podium clean fast --yes" in printed.err) == (0, True)
    assert names(three) == {".", "good", "fast"}
    assert podium(capsys, "clean", "fast", "--yes")[0] == 0
    assert (three / "data" / "second").read_text() == "done"
    assert podium(capsys, "clean")[0] == 0
    assert names(three) == {".", "good"}
    require_end(capsys, 2, "did you mean good", "clean", "goood")


def test_a_run_that_is_at_work_stays_whatever_is_asked(three, capsys):
    with holding("fast"):
        require_end(capsys, 1, "fast cannot be removed, so nothing was", "clean", "good", "fast", "--yes")
        require_end(capsys, 0, "fast stays: it is running", "clean", "--all", "--orphans", "--yes")
        assert names(three) == {"fast"}
        assert objects(three), "its objects are in use, and others may become so"
    planned, _ = clean.plan_removal(three, ["fast"])
    lines = []
    with holding("fast"):
        clean.remove_items(three, planned, lines.append)
    assert (len(lines), names(three)) == (1, {"fast"}), "it began after the look"


def test_a_run_in_which_somebody_calls_dvc_is_in_use(three, capsys):
    folder = three / "runs/checkouts/fast"
    script = "import os, time\nparent = os.getppid()\nprint('here', flush=True)\n"
    (folder / "stage.py").write_text(f"{script}while os.getppid() == parent:\n    time.sleep(0.1)\n")
    called = f"{sys.executable} -m dvc repro first & echo $!; wait"  # DVC is not a child of this process
    options = {"env": dvc.stage_environment(), "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(["/bin/sh", "-c", called], cwd=folder, **options)
    try:
        dvc_process = int(process.stdout.readline())
        assert any(line == "here\n" for line in process.stdout)
        require_end(capsys, 1, f"process {dvc_process}", "clean", "fast", "--yes")
        assert folder.is_dir()
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # whatever was asserted: nothing waits for it
        process.communicate()


@pytest.mark.parametrize("inside", ["folder", "link"])
def test_a_release_that_lies_in_the_checkout_or_links_into_it_keeps_it(three, capsys, inside):
    folder = three / "runs/checkouts/good"
    if inside == "folder":
        (folder / "mine").mkdir()
        (folder / "reports/publish-squad.json").write_text(json.dumps({"folder": "mine"}))
    else:
        (three / "published/podium-demo/weights").symlink_to(folder / "data/second")
    for word, code in (("good", 1), ("--all", 0)):
        require_end(capsys, code, "its published model is inside it or links into it", "clean", word, "--yes")
        assert folder.is_dir()


def test_nothing_is_removed_through_a_link(three, tmp_path, capsys):
    for name in ("logs", "damaged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.log").write_text("of another user")
        os.utime(tmp_path / name / "old.log", (0, 0))
        (three / "runs" / name).symlink_to(tmp_path / name)
    (three / "runs/checkouts").rename(tmp_path / "checkouts")
    (three / "runs/checkouts").symlink_to(tmp_path / "checkouts")
    assert podium(capsys, "clean", "--older-than", "1h", "--yes")[1].err.count("removed through links") == 2
    assert f"fast stays: {three / 'runs/checkouts'} is a link" in podium(capsys, "clean", "fast", "--yes")[1].err
    assert [(tmp_path / name).exists() for name in ("logs/old.log", "damaged/old.log", "checkouts/fast")] == [True] * 3


def test_age_takes_runs_logs_and_damaged_files_of_that_age_and_leaves_what_was_published(three, capsys):
    weights, folders = three / "published/podium-demo/weights", [three / "runs/logs", three / "runs/damaged"]
    weights.write_text("weights")
    for folder in folders:
        folder.mkdir()
        for name, days in (("old.log", 10), ("new.log", 1)):
            (folder / name).write_text("x")
            os.utime(folder / name, (time.time() - days * 86400,) * 2)
    for name, days in (("good", 40), (".", 40), ("fast", 8)):
        record = report.read_report(three, listing.run_folder(three, name))
        record.began = record.ended = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime(time.time() - days * 86400))
        record.save(three)
    for age, left in (("30d", {".", "good", "fast"}), ("1w", {".", "good"})):
        assert podium(capsys, "clean", "--older-than", age, "--yes")[0] == 0
        assert names(three) == left
    assert [path.name for folder in folders for path in folder.iterdir()] == ["new.log", "new.log"]
    require_end(capsys, 2, "'soon' is not an age", "clean", "--older-than", "soon")
    assert podium(capsys, "clean", "good", "--yes")[0] == 0
    assert (names(three), weights.read_text()) == ({"."}, "weights")


@pytest.mark.soak
def test_orphans_are_what_dvc_itself_would_remove_and_what_is_left_restores(three, capsys, ran):
    podium(capsys, "clean", "good", "--yes")
    before = objects(three)
    lost = three / ".dvc/cache/files/md5/00" / ("0" * 30)
    lost.parent.mkdir(exist_ok=True)
    lost.write_bytes(b"x" * 10_000)
    output = call("gc", "--workspace", "--dry", "--projects", str(three / "runs/checkouts/fast"), root=three).stdout
    assert output.count("\nRemoved 2 objects") == 1, output
    require_end(capsys, 0, "2 objects in DVC's cache that no run uses", "clean", "--orphans")
    assert lost.exists()
    assert podium(capsys, "clean", "--orphans", "--yes")[0] == 0
    assert (lost.exists(), len(objects(three))) == (False, len(before) - 1)
    ran()
    for root in (three, three / "runs/checkouts/fast"):
        shutil.rmtree(root / "data")
        shutil.rmtree(root / "metrics")
    for overrides, options in (((), {}), ((FASTER,), {"name": "fast"})):
        run(*overrides, **options)
        assert set(statuses(three).values()) == {"restored"}
    run(*ACCEPTED, name="good")
    assert statuses(three)["gate@squad"] == "ran", "what went is made again, by the same words"
    assert ran() == []
    assert podium(capsys, "clean", "--orphans", "--yes")[1].out == "nothing to remove\n"


def test_files_that_somebody_added_to_dvc_are_no_orphans_and_the_cache_of_other_projects_is_left_to_them(three, capsys):
    (three / "mine.txt").write_text("mine")
    (three / "folder").mkdir()
    (three / "folder/inside.txt").write_text("inside")  # only the listing of the folder names this object
    call("add", "mine.txt", "folder", root=three)
    before = objects(three)
    podium(capsys, "clean", "--orphans", "--yes")
    assert objects(three) == before
    call("cache", "dir", str(three.parent / "shared"), root=three)
    require_end(capsys, 1, "is outside the project", "clean", "--orphans", "--yes")


def test_caches_are_removed_when_asked_for_and_all_leaves_what_was_published_and_the_cache(three, capsys):
    home, live = three / "runs/home/0", three / "runs/checkouts/fast/executables/.live"
    for folder in (home, live):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (three / "inputs" / "mine.txt").write_text("mine")
    with holding("fast"):
        podium(capsys, "clean", "--caches", "--yes")
        assert ((home / "file").exists(), (live / "file").exists()) == (True, True), "a running run may use it"
    assert podium(capsys, "clean", "--caches", "--yes")[0] == 0
    assert (home.parent.exists(), live.exists()) == (False, False)
    assert names(three) == {".", "good", "fast"}
    assert podium(capsys, "clean", "--all", "--yes")[0] == 0
    left = {path.name for path in three.iterdir()}
    assert not left & {"data", "metrics", "reports", "dvc.lock"}
    assert {"published", "inputs", "params.yaml", ".dvc"} <= left
    assert (names(three), objects(three) != []) == (set(), True)
