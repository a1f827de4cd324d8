"""Publishing to a Hub over real HTTP: one commit, or one pull request, verified, tagged, read back."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tasks.release.hub.calls import Patience
from tasks.release.hub.token import refusal
from tasks.release.hub.transaction import HubRelease, check_access, release_on_hub
from tasks.stage.errors import PublishError
from tests.hub_server import Commit, HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import (
    CALLS,
    NAME,
    TOKEN,
    commits,
    content,
    merge,
    open_requests,
    publish_small,
    repository,
    small_release,
)
from tests.tasks.trained_checkout import PROJECT, write_gate, write_model


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


def test_other_content_is_a_commit_on_the_last_one_and_every_tag_stays(hub: HubServer) -> None:
    first = publish_small("one")
    hub.requests.clear()
    again = publish_small("one")
    assert (again.commit, again.tag, again.unchanged) == (first.commit, first.tag, True)
    assert hub.sent("POST", "preupload|commit|batch") == hub.sent("PUT", "") == []
    second, third = publish_small("two"), publish_small("one")
    old, new, newest = commits(hub)
    assert (new.oid, new.parent) == (second.commit, first.commit)
    assert (third.commit, third.tag, third.unchanged) == (newest.oid, first.tag, False)
    assert repository(hub).tags == {first.tag: old.oid, second.tag: new.oid}, "content that comes back keeps its tag"


def test_what_an_earlier_release_left_goes_and_what_others_added_stays(hub: HubServer) -> None:
    publish_small()
    examples = {"evaluation/predictions.json": b"{}", "evaluation/report.html": b"<p>"}
    hub.store.add_files(repository(hub), {"ipu_config.json": b"{}", "notes.md": b"by hand", **examples})
    publish_small("two")
    assert sorted(content(hub, commits(hub)[-1])) == sorted([*small_release().files, "notes.md"])


def test_a_commit_of_somebody_else_in_between_is_kept_and_ours_goes_on_top(hub: HubServer) -> None:
    theirs: list[Commit] = []
    hub.fault(*CALLS["commit"], hook=lambda: theirs.append(hub.store.add_files(repository(hub), {"notes.md": b"!"})))
    done = publish_small()
    assert hub.sent(*CALLS["commit"]) == [412, 200]
    assert [commit.oid for commit in commits(hub)] == [theirs[0].oid, done.commit]
    assert "notes.md" in commits(hub)[-1].tree


def test_others_who_never_stop_committing_end_the_publish_after_five_attempts(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], times=1000, hook=lambda: hub.store.add_files(repository(hub), {"notes.md": b"!"}))
    with pytest.raises(PublishError, match=r"412.*main is at [0-9a-f]{40}"):
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
    with pytest.raises(PublishError, match=r"of user\) may only read"):
        publish_small()
    assert [path for _, path, _ in hub.requests] == ["/api/whoami-v2"]


@pytest.mark.parametrize("token", ["   ", "hf_two words", "hf_line\nbreak"])
def test_without_a_token_the_hub_is_not_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
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


def test_a_token_the_server_sends_back_is_hidden(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"error": f"token {TOKEN} is bad"}).encode()
    hub.fault(*CALLS["head"], status=503, body=body)
    hub.fault(*CALLS["upload"], status=500)
    hub.fault(*CALLS["commit"], status=403, body=body)
    caplog.set_level("DEBUG")
    with pytest.raises(PublishError, match=r"token \*\*\* is bad") as told:
        publish_small()
    assert "*** is bad" in caplog.text
    assert re.search(r"PUT /upload/[0-9a-f]{64}: ", caplog.text), "without the signature of its address"
    assert "signature=" not in caplog.text
    assert TOKEN not in caplog.text + str(told.value) + repr(told.value.__cause__)


def fine_grained(*permissions: str, on: str = "user", everywhere: tuple[str, ...] = ()) -> dict[str, Any]:
    scoped = [{"entity": {"_id": "1", "type": "user", "name": on}, "permissions": list(permissions)}]
    scopes = {"canReadGatedRepos": True, "global": list(everywhere), "scoped": scoped}
    token = {"displayName": "t", "role": "fineGrained", "fineGrained": scopes}
    return {"type": "user", "name": "user", "orgs": [], "auth": {"type": "access_token", "accessToken": token}}


def classic(role: str, **organisation: str) -> dict[str, Any]:
    orgs = [organisation] if organisation else []
    return {"type": "user", "name": "user", "orgs": orgs, "auth": {"accessToken": {"role": role}}}


@pytest.mark.parametrize(
    ("who", "review", "said"),
    [
        (classic("write", name="lab", roleInOrg="contributor"), False, None),
        (fine_grained("repo.content.read", "repo.write"), False, None),
        (fine_grained("repo.write", on=NAME), False, None),
        (fine_grained("discussion.write"), True, None),
        (fine_grained("repo.content.read", everywhere=("discussion.write",)), True, None),
        ({"name": "user", "auth": {"accessToken": {"role": "fineGrained", "fineGrained": "new layout"}}}, False, None),
        (["no mapping at all"], False, None),
        (classic("write") | {"name": "someone"}, True, None),
        (classic("read"), True, "may only read"),
        (fine_grained("repo.content.read"), False, r"needs repo\.write .* it has repo\.content"),
        (fine_grained("discussion.write"), False, r"needs repo\.write"),
        (fine_grained("repo.write", on="user/other"), False, "no permission there"),
        (fine_grained("repo.content.read"), True, r"needs discussion\.write or repo\.write"),
        (classic("write", name="user", roleInOrg="read"), False, "in the organisation user"),
        (classic("write", name="lab", roleInOrg="write") | {"name": "usre"}, False, "namespace user; .* usre, lab"),
    ],
)
def test_a_token_without_the_rights_is_refused_and_one_that_cannot_be_judged_left_to_the_hub(
    who: Any, review: bool, said: str | None
) -> None:
    reason = refusal(who, NAME, review=review)
    assert re.search(said, str(reason)) if said else reason is None, reason


@pytest.mark.parametrize(
    ("repository", "said"),
    [("demo", "publish.repository=demo has no namespace"), ("usre/demo", "cannot write in the namespace usre")],
)
def test_a_namespace_of_others_is_refused_before_the_first_stage(hub: HubServer, repository: str, said: str) -> None:
    with pytest.raises(PublishError, match=said):
        check_access([repository], review=False)
    hub.requests.clear()
    with pytest.raises(PublishError, match=r"publish\.repository"):
        release_on_hub(small_release(), "user/na me", private=True, patience=Patience(sleep=lambda seconds: None))
    assert hub.requests == []


def test_a_release_for_review_is_a_pull_request_and_neither_main_nor_a_tag_moves(hub: HubServer) -> None:
    done = publish_small(review=True)
    assert commits(hub) == []
    assert repository(hub).tags == {}
    assert repository(hub).private is True
    proposed = content(hub, repository(hub).resolve("refs/pr/1"))
    assert proposed == {name: file.source for name, file in small_release().files.items()}
    assert (done.tag, done.pull_request, done.unchanged) == (None, 1, False)
    assert done.url == f"{hub.endpoint}/{NAME}/discussions/1"
    assert done.commit == repository(hub).branches["refs/pr/1"]


def test_the_same_content_again_opens_no_second_one_however_many_others_are_open(hub: HubServer) -> None:
    for text in ("one", "two", "three", "four"):
        publish_small(text, review=True)
    hub.requests.clear()
    again = publish_small("one", review=True)  # on the second page of the list
    assert (again.pull_request, again.unchanged) == (1, True)
    assert open_requests(hub) == [1, 2, 3, 4]
    assert hub.sent("POST", "preupload|commit|batch") == hub.sent("PUT", "") == []


def test_once_merged_publishing_again_verifies_and_tags_main(hub: HubServer) -> None:
    request = publish_small(review=True)
    merge(hub, 1)
    done = publish_small(review=True)
    assert (done.commit, done.tag, done.pull_request) == (request.commit, small_release().tag, None)
    assert repository(hub).tags == {done.tag: request.commit}
    assert len(repository(hub).pulls) == 1


@pytest.mark.parametrize("closed", [True, False])
def test_a_request_that_was_closed_or_changed_is_not_taken_for_ours(hub: HubServer, closed: bool) -> None:
    publish_small(review=True)
    if closed:
        repository(hub).pulls[1]["status"] = "closed"
    else:
        blob = hub.store.blob("model.safetensors", b"other weights")
        hub.store.commit(repository(hub), "refs/pr/1", {"model.safetensors": blob}, (), None, "change")
    assert publish_small(review=True).pull_request == 2


@pytest.mark.parametrize("how", [{"drop": "before"}, {"drop": "after"}, {"status": 503}, {"status": 412}])
def test_an_answer_that_is_lost_never_opens_a_second_request(hub: HubServer, how: dict) -> None:
    hub.fault(*CALLS["commit"], **how)
    assert publish_small(review=True).pull_request == 1
    assert open_requests(hub) == [1]


def test_weights_changed_on_the_way_are_seen_in_the_request(hub: HubServer) -> None:
    def damage() -> None:
        if repository(hub).pulls:
            tree = repository(hub).resolve("refs/pr/1").tree
            tree["model.safetensors"] = hub.store.blob("model.safetensors", b"other weights")

    hub.fault("GET", r"/revision/refs/pr/1$", hook=damage)
    with pytest.raises(PublishError, match="pull request 1 of user/demo"):
        publish_small(review=True)


def test_the_token_is_in_nothing_that_a_run_writes(hub: HubServer, checkout: Path, tmp_path: Path) -> None:
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(checkout, to)
    own = {"PYTHONPATH": str(PROJECT), "HF_HOME": str(tmp_path / "hf-home")}

    def run() -> tuple[int, str]:
        command = [sys.executable, "-m", "tasks.release.publish"]
        done = subprocess.run(command, cwd=checkout, env={**os.environ, **own}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    hub.fault(*CALLS["head"], drop="before")
    code, done = run()
    assert code == 0, done
    write_model(checkout, seed=5)
    write_gate(checkout)
    hub.fault(*CALLS["commit"], times=9, status=401)
    code, failed = run()
    assert (code, len(commits(hub))) == (1, 1)
    places = [*checkout.rglob("*"), *(tmp_path / "hf-home").rglob("*"), *(tmp_path / "hub").rglob("*")]
    files = [path for path in places if path.is_file()]
    assert len(files) > 20
    assert TOKEN not in done + failed
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
