"""Files that change while they are published, at every moment that one is opened: what is sent is what was judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_model.core.files import HOST, sha256_of
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME, TOKEN, commits, content
from tests.tasks.trained_checkout import PROJECT, make_checkout

SWAPPED = {
    "models/squad/model.safetensors": "model.safetensors",
    "models/squad/config.json": "config.json",
    "data/tokenizer/tokenizer.json": "tokenizer.json",
    "data/tokenizer/vocab.txt": "vocab.txt",
    "evaluation/squad/predictions.json": "evaluation/predictions.json",
    "metrics/squad.json": None,
    "evaluation/squad/report.html": "evaluation/report.html",
    "evaluation/squad/mistakes.csv": "evaluation/mistakes.csv",
    "metrics/squad-gate.json": None,
    "metrics/squad-predict.json": None,
    "reports/validation/corpus.json": None,
}
"""File of the checkout -> its name in the release."""
SWAP = """
import os, runpy, sys
target, other, at, modules = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3]), set(sys.modules)
opened = 0

def swap(event, arguments):
    global opened
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    if os.path.abspath(os.fspath(arguments[0])) == target:
        opened += 1
        if opened == at:
            os.replace(other, target)

sys.addaudithook(swap)
sys.argv = ["tasks.release.publish"]
try:
    runpy.run_module("tasks.release.publish", run_name="__main__")
finally:
    print(f"opened {opened} times", file=sys.stderr)
"""
"""Publish, with another file in the place of one from its n-th opening on."""
REWRITE = """
import itertools, pathlib, sys
path = pathlib.Path(sys.argv[1])
good = path.read_bytes()
for number in itertools.count():
    path.write_bytes(good[:-64] + bytes([number % 2]) * 64)
    if number == 0:
        print("running", flush=True)
    path.write_bytes(good)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_checkout(tmp_path_factory.mktemp("made") / "checkout")
    change_parameters(root, {"publish": {"examples": True}})
    (root / "metrics/squad-predict.json").write_text('{"runtime": "cpu", "precision": "fp32"}')
    return root


@pytest.fixture
def checkout(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


def run(root: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def publish_swapped(root: Path, name: str, at: int, **more: str) -> subprocess.CompletedProcess[str]:
    """Publish with a file of the same size, other by its last byte but one, in place from the n-th opening on."""
    text = (root / name).read_bytes()
    (root / "other").write_bytes(text[:-2] + bytes([text[-2] ^ 1]) + text[-1:])
    return run(root, "-c", SWAP, name, "other", str(at), **more)


def to_hub(root: Path, hub: HubServer) -> dict[str, str]:
    """Sets the Hub as target; returns the environment for it."""
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(root, to)
    return {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_TELEMETRY": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWAPPED)
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_a_folder(checkout: Path, name: str) -> None:
    judged = json.loads((checkout / "metrics/squad-gate.json").read_text())["judged"]
    pristine = shutil.copytree(checkout, checkout.with_name("pristine"))
    for at in range(1, 6):
        shutil.rmtree(checkout)
        shutil.copytree(pristine, checkout)
        done = publish_swapped(checkout, name, at)
        opened = int(done.stderr.rpartition("opened ")[2].split()[0])
        published = checkout / "published/podium-demo"
        if done.returncode:
            assert done.stderr.startswith("error: "), done.stderr
            assert not published.exists()
        elif (sent := SWAPPED[name]) is not None:
            assert sha256_of(published / sent) == judged[name]
        assert opened <= (2 if name == "metrics/squad-gate.json" else 1), (
            "once; the verdict is asked for its answer before"
        )
        if opened < at:
            assert done.returncode == 0, "nothing was replaced"
            return
    raise AssertionError(f"{name} was opened too often")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["models/squad/model.safetensors", "evaluation/squad/predictions.json"])
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_the_hub(
    checkout: Path, hub: HubServer, name: str
) -> None:
    judged = json.loads((checkout / "metrics/squad-gate.json").read_text())["judged"]
    environment = to_hub(checkout, hub)
    before = (checkout / name).read_bytes()
    refused = publish_swapped(checkout, name, 1, **environment)
    assert (refused.returncode, hub.sent("POST", "commit")) == (1, [])
    assert f"{name} has SHA-256" in refused.stderr
    (checkout / name).write_bytes(before)
    done = publish_swapped(checkout, name, 2, **environment)
    assert done.returncode == 0, done.stderr
    (commit,) = commits(hub)
    (checkout / "sent").write_bytes(content(hub, commit)[SWAPPED[name]])
    assert sha256_of(checkout / "sent") == judged[name]


@pytest.mark.slow
def test_weights_that_another_process_rewrites_all_the_time_are_refused_or_are_those_that_were_judged(
    checkout: Path,
) -> None:
    name = "models/squad/model.safetensors"
    judged = json.loads((checkout / "metrics/squad-gate.json").read_text())["judged"][name]
    with subprocess.Popen([sys.executable, "-c", REWRITE, name], cwd=checkout, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"running\n"
            for _ in range(8):
                done = run(checkout, "-m", "tasks.release.publish")
                assert done.returncode in (0, 1), done.stderr
                published = checkout / "published/podium-demo/model.safetensors"
                assert not published.exists() or sha256_of(published) == judged
                assert published.exists() or "model.safetensors has SHA-256" in done.stderr
        finally:
            writer.kill()


def test_copies_are_for_this_user_alone_and_those_of_a_killed_publish_go_away(checkout: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, running = (checkout / "runs" / f"held.{HOST}-{process}.partial" for process in (dead.pid, os.getppid()))
    for folder in (left, running):
        folder.mkdir(mode=0o700, parents=True)
    watch = """
import os, runpy, stat, sys
seen = set()
def look(event, arguments):
    if event == "open" and "held." in str(arguments[0]):
        folder = str(arguments[0]).partition(".partial")[0] + ".partial"
        seen.add(oct(stat.S_IMODE(os.stat(folder).st_mode)))
sys.addaudithook(look)
sys.argv = ["tasks.release.publish"]
runpy.run_module("tasks.release.publish", run_name="__main__")
print(sorted(seen))
"""
    done = run(checkout, "-c", watch)
    assert done.stdout.splitlines()[-1] == "['0o700']", done.stderr
    assert [path.name for path in (checkout / "runs").iterdir()] == [running.name]
