"""Publishing to a Hub over real HTTP: one commit, verified, tagged; faults lose nothing and repeat nothing."""

from __future__ import annotations

import json
import re
import socket
import time
from email.utils import formatdate

import pytest

from tasks.release.hub.calls import Patience
from tasks.release.hub.transaction import HubRelease, release_on_hub
from tasks.release.release import NAMES
from tasks.stage.errors import PublishError
from tests.hub_server import HubServer
from tests.hub_store import Commit
from tests.tasks.release.hub_publishing import (
    CALLS,
    NAME,
    TOKEN,
    commits,
    content,
    publish_small,
    repository,
    small_release,
)


def test_a_first_publish_is_one_private_commit_verified_and_then_tagged(hub: HubServer) -> None:
    done = publish_small()
    assert [(method, path) for method, path, _ in hub.requests] == [
        ("GET", "/api/whoami-v2"),
        ("GET", "/api/models/user/demo"),
        ("POST", "/api/repos/create"),
        ("GET", "/api/models/user/demo"),
        ("POST", "/api/validate-yaml"),
        ("POST", "/api/models/user/demo/preupload/main"),
        ("POST", "/user/demo.git/info/lfs/objects/batch"),
        ("PUT", f"/upload/{small_release().files['model.safetensors'].sha256}"),
        ("POST", "/api/lfs-verify/models/user/demo"),
        ("POST", "/api/models/user/demo/commit/main"),
        ("GET", f"/api/models/user/demo/revision/{done.commit}"),
        ("POST", f"/api/models/user/demo/tag/{done.commit}"),
        ("GET", f"/api/models/user/demo/revision/{done.tag}"),
    ]
    (commit,) = commits(hub)
    assert (commit.oid, repository(hub).tags, repository(hub).private) == (done.commit, {done.tag: commit.oid}, True)
    assert content(hub, commit) == {name: file.source for name, file in small_release().files.items()}
    assert done == HubRelease(commit.oid, small_release().tag, f"{hub.endpoint}/{NAME}/tree/{done.tag}", False)


def test_the_same_content_again_makes_no_commit_and_sends_no_file(hub: HubServer) -> None:
    first = publish_small()
    hub.requests.clear()
    second = publish_small()
    assert (second.commit, second.tag, second.unchanged) == (first.commit, first.tag, True)
    assert len(commits(hub)) == 1
    assert hub.sent("POST", "preupload|commit|batch") == hub.sent("PUT", "") == []


def test_other_content_is_a_commit_on_the_last_one_and_the_old_tag_stays(hub: HubServer) -> None:
    first, second = publish_small("one"), publish_small("two")
    old, new = commits(hub)
    assert (new.oid, new.parent) == (second.commit, first.commit)
    assert repository(hub).tags == {first.tag: old.oid, second.tag: new.oid}


def test_content_that_comes_back_is_a_new_head_under_its_old_tag(hub: HubServer) -> None:
    first, _, third = publish_small("one"), publish_small("two"), publish_small("one")
    assert (third.tag, third.unchanged) == (first.tag, False)
    assert [commit.oid for commit in commits(hub)][-1] == third.commit
    assert repository(hub).tags[third.tag] == first.commit


def test_what_an_earlier_release_left_goes_and_what_others_added_stays(hub: HubServer) -> None:
    publish_small()
    examples = {"evaluation/predictions.json": b"{}", "evaluation/report.html": b"<p>"}
    hub.store.add_files(repository(hub), {"ipu_config.json": b"{}", "notes.md": b"by hand", **examples})
    publish_small("two")
    assert sorted(content(hub, commits(hub)[-1])) == [
        "README.md",
        "evaluation/metrics.json",
        "model.safetensors",
        "notes.md",
    ]
    assert "ipu_config.json" in NAMES


def test_a_commit_of_somebody_else_in_between_is_kept_and_ours_goes_on_top(hub: HubServer) -> None:
    theirs: list[Commit] = []
    hub.fault(*CALLS["commit"], hook=lambda: theirs.append(hub.store.add_files(repository(hub), {"notes.md": b"!"})))
    done = publish_small()
    assert hub.sent(*CALLS["commit"]) == [412, 200]
    assert [commit.oid for commit in commits(hub)] == [theirs[0].oid, done.commit]
    assert "notes.md" in commits(hub)[-1].tree


def test_a_publisher_of_the_same_content_who_is_faster_leaves_us_nothing_to_commit(hub: HubServer) -> None:
    files = {name: file.source for name, file in small_release().files.items()}
    hub.fault(*CALLS["commit"], hook=lambda: hub.store.add_files(repository(hub), files, "the other publisher"))
    done = publish_small()
    (only,) = commits(hub)
    assert (only.title, only.oid) == ("the other publisher", done.commit)
    assert repository(hub).tags == {done.tag: only.oid}


def test_others_who_never_stop_committing_end_the_publish_after_five_attempts(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], times=1000, hook=lambda: hub.store.add_files(repository(hub), {"notes.md": b"!"}))
    with pytest.raises(PublishError, match=r"412.*main is at [0-9a-f]{40}.*Others keep committing"):
        publish_small()
    assert len(hub.sent(*CALLS["commit"])) == 5
    assert {commit.title for commit in commits(hub)} == {"add files"}


def test_a_commit_that_lands_after_we_stopped_listening_is_not_made_twice(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], hook=lambda: time.sleep(0.8))
    patience = Patience(sleep=time.sleep, first_wait_s=0.1, commit_timeout_s=0.4)
    done = release_on_hub(small_release(), NAME, private=True, patience=patience)
    deadline = time.monotonic() + 10
    while 0 in hub.sent(*CALLS["commit"]) and time.monotonic() < deadline:
        time.sleep(0.05)  # until the server is through with the first request as well
    assert sorted(hub.sent(*CALLS["commit"])) == [200, 412]
    assert [commit.oid for commit in commits(hub)] == [done.commit]


def test_a_date_in_retry_after_is_waited_for_and_an_hour_is_refused(hub: HubServer) -> None:
    waits: list[float] = []
    hub.fault(*CALLS["head"], status=429, headers={"Retry-After": formatdate(time.time() + 30, usegmt=True)})
    publish_small(waits=waits)
    assert len(waits) == 1
    assert 27 < waits[0] < 33
    hub.fault(*CALLS["head"], status=429, headers={"Retry-After": "3600"})
    with pytest.raises(PublishError, match="429"):
        publish_small("two", waits=waits)
    assert len(waits) == 1


def test_a_commit_whose_files_are_not_what_was_sent_gets_no_tag(hub: HubServer) -> None:
    def damage() -> None:
        head = commits(hub)[-1]
        head.tree["model.safetensors"] = hub.store.blob("model.safetensors", b"other weights")

    hub.fault(*CALLS["verify"], hook=damage)
    with pytest.raises(PublishError, match=r"differs from the release \(model\.safetensors has SHA-256"):
        publish_small()
    assert repository(hub).tags == {}


def test_a_tag_of_that_name_on_other_content_is_not_taken_for_the_release(hub: HubServer) -> None:
    other = hub.store.create("model", NAME, private=True)
    other.tags[small_release().tag] = other.branches["main"]
    with pytest.raises(PublishError, match="differs from the release"):
        publish_small()


def test_a_public_repository_is_refused_while_private_is_wanted(hub: HubServer) -> None:
    hub.store.create("model", NAME)
    with pytest.raises(PublishError, match=r"publish\.private=false"):
        publish_small()
    assert commits(hub) == []
    assert hub.sent("PUT", "") == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_token_that_may_only_read_is_told_before_a_byte_is_sent(hub: HubServer, exists: bool) -> None:
    hub.users[TOKEN]["role"] = "read"
    if exists:
        hub.store.create("model", NAME, private=True)
    with pytest.raises(PublishError, match=r"of user\) may only read; a token with write access to"):
        publish_small()
    assert [path for _, path, _ in hub.requests] == ["/api/whoami-v2"]


@pytest.mark.parametrize("token", ["", "   ", "hf_two words", "hf_line\nbreak"])
def test_without_a_usable_token_nothing_is_asked_of_the_hub(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(PublishError, match="HF_TOKEN"):
        publish_small()
    assert hub.requests == []


def test_no_hub_at_the_endpoint_is_said_with_its_address(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        unreachable = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", unreachable)
    waits: list[float] = []
    with pytest.raises(PublishError, match=rf"ConnectError.*Check that {unreachable} \(HF_ENDPOINT\)"):
        publish_small(waits=waits)
    assert len(waits) == 4


def test_a_name_the_hub_does_not_know_is_refused_without_a_request(hub: HubServer) -> None:
    with pytest.raises(PublishError, match=r"publish\.repository"):
        release_on_hub(small_release(), "user/na me", private=True, patience=Patience(sleep=lambda seconds: None))
    assert hub.requests == []


def test_a_token_the_server_sends_back_is_hidden(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"error": f"token {TOKEN} is bad"}).encode()
    hub.fault(*CALLS["head"], status=503, body=body)
    hub.fault(*CALLS["commit"], status=403, body=body)
    with pytest.raises(PublishError, match=r"token \*\*\* is bad") as told:
        publish_small()
    assert "*** is bad" in caplog.text
    assert TOKEN not in caplog.text + str(told.value) + repr(told.value.__cause__)


def test_a_wait_is_said_without_the_right_to_write(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    hub.fault(*CALLS["upload"], status=500)
    publish_small()
    assert re.search(r"PUT /upload/[0-9a-f]{64}: .*; retrying in \d\.\d s \(attempt 2 of 5\)", caplog.text)
    assert "signature=" not in caplog.text
