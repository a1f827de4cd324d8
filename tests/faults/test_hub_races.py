"""Three publishers at the same moment, each a process of its own, against one Hub."""

import json
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.tasks.release.hub_publishing import commits, content, repository, small_release

pytestmark = [pytest.mark.faults, pytest.mark.parametrize("again", range(5))]
WRITER = """
import dataclasses, json, sys, time
from pathlib import Path
from tasks.release.hub.calls import Patience
from tasks.release.hub.transaction import release_on_hub
from tasks.stage.errors import PublishError
from tests.tasks.release.hub_publishing import NAME, small_release

text, how, start = sys.argv[1:]
release, until = small_release(text), time.monotonic() + 60
print("ready", flush=True)
while not Path(start).exists():
    assert time.monotonic() < until, "no start was given"
    time.sleep(0.001)
try:
    patience = Patience(first_wait_s=0.05)
    done = release_on_hub(release, NAME, private=True, review=how == "review", patience=patience)
    print(json.dumps(dataclasses.asdict(done)))
except PublishError as error:
    print(json.dumps({"error": str(error)}))
"""


def race(folder, texts, how="direct"):
    """What each of the publishers says, in order of `texts`; they start together."""
    start = folder / "start"
    commands = ([sys.executable, "-c", WRITER, text, how, str(start)] for text in texts)
    writers = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) for words in commands]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    start.touch()
    return [json.loads(writer.communicate(timeout=120)[0]) for writer in writers]


def test_three_writers_of_the_same_content_make_one_commit_and_all_report_it(hub, tmp_path, again):
    answers = race(tmp_path, ("one", "one", "one"))
    (made,) = commits(hub)
    assert repository(hub).tags == {small_release().tag: made.oid}
    assert {answer.get("commit") for answer in answers} == {made.oid}, answers


def test_three_writers_of_different_content_follow_each_other_and_every_tag_is_whole(hub, tmp_path, again):
    texts = ("one", "two", "three")
    whole = {text: {name: file.source for name, file in small_release(text).files.items()} for text in texts}
    answers = dict(zip(texts, race(tmp_path, texts), strict=True))
    released = {text: answer["tag"] for text, answer in answers.items() if "error" not in answer}
    made = commits(hub)
    assert all(content(hub, commit) in whole.values() for commit in made)
    assert len(made) <= len(texts)
    assert [commit.parent for commit in made[1:]] == [commit.oid for commit in made[:-1]]
    assert released, answers
    for text, tag in released.items():
        assert content(hub, repository(hub).resolve(tag)) == whole[text]


def test_three_who_propose_the_same_content_leave_one_open_pull_request(hub, tmp_path, again):
    answers = race(tmp_path, ("one", "one", "one"), "review")
    still_open = {number for number, pull in repository(hub).pulls.items() if pull["status"] == "open"}
    assert (len(still_open), commits(hub)) == (1, [])
    assert {answer.get("pull_request") for answer in answers} == still_open, answers
