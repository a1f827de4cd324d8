"""Files that change while they are published, at every moment that one is opened: what is sent is what was judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import HOST, sha256_of
from tasks.stage.errors import PodiumError
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME, commits, content
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import PROJECT

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


@pytest.fixture
def checkout(checkout: Path) -> Path:
    change_parameters(checkout, {"publish": {"examples": True}})
    (checkout / "metrics/squad-predict.json").write_text('{"runtime": "cpu", "precision": "fp32"}')
    return checkout


@dataclass
class Swap:
    """Another file in the place of one that is opened, from its n-th opening on."""

    target: str = ""
    other: str = ""
    at: int = 0
    opened: int = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.target or not isinstance(arguments[0], str | os.PathLike):
            return
        if os.path.abspath(os.fspath(arguments[0])) == self.target:
            self.opened += 1
            if self.opened == self.at:
                os.replace(self.other, self.target)


SWAP = Swap()
sys.addaudithook(SWAP)  # which stays as long as the process


def publish_or_fail(root: Path) -> str:
    """Publish; returns what was wrong."""
    try:
        publish_here(root)
    except PodiumError as error:
        return str(error)
    return ""


def publish_swapped(root: Path, name: str, at: int) -> tuple[str, int]:
    """Publish with a file of the same size, other by its last byte but one, in place from the n-th opening on.

    Returns what was wrong, and how often the file was opened.
    """
    text = (root / name).read_bytes()
    (root / "other").write_bytes(text[:-2] + bytes([text[-2] ^ 1]) + text[-1:])
    SWAP.other, SWAP.at, SWAP.opened, SWAP.target = str(root / "other"), at, 0, str(root / name)
    try:
        return publish_or_fail(root), SWAP.opened
    finally:
        SWAP.target = ""


@pytest.mark.parametrize("name", SWAPPED)
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_a_folder(checkout: Path, name: str) -> None:
    judged = json.loads((checkout / "metrics/squad-gate.json").read_text())["judged"]
    pristine = shutil.copytree(checkout, checkout.with_name("pristine"))
    for at in range(1, 6):
        shutil.rmtree(checkout)
        shutil.copytree(pristine, checkout)
        error, opened = publish_swapped(checkout, name, at)
        published = checkout / "published/podium-demo"
        if error:
            assert not published.exists()
        elif (sent := SWAPPED[name]) is not None:
            assert sha256_of(published / sent) == judged[name]
        assert opened <= (2 if name == "metrics/squad-gate.json" else 1), (
            "once; the verdict is asked for its answer before"
        )
        if opened < at:
            assert not error, "nothing was replaced"
            return
    raise AssertionError(f"{name} was opened too often")


@pytest.mark.parametrize("name", ["models/squad/model.safetensors", "evaluation/squad/predictions.json"])
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_the_hub(
    checkout: Path, hub: HubServer, name: str
) -> None:
    judged = json.loads((checkout / "metrics/squad-gate.json").read_text())["judged"]
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(checkout, to)
    before = (checkout / name).read_bytes()
    error, _ = publish_swapped(checkout, name, 1)
    assert f"{name} has SHA-256" in error
    assert hub.sent("POST", "commit") == []
    (checkout / name).write_bytes(before)
    assert publish_swapped(checkout, name, 2)[0] == ""
    (commit,) = commits(hub)
    (checkout / "sent").write_bytes(content(hub, commit)[SWAPPED[name]])
    assert sha256_of(checkout / "sent") == judged[name]


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
                error = publish_or_fail(checkout)
                published = checkout / "published/podium-demo/model.safetensors"
                assert not published.exists() or sha256_of(published) == judged
                assert published.exists() or "model.safetensors has SHA-256" in error
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
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", watch], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "['0o700']", done.stderr
    assert [path.name for path in (checkout / "runs").iterdir()] == [running.name]
