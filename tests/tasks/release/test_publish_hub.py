"""Publishing to a Hub over real HTTP: one commit, or one pull request, verified, tagged, read back."""

import re
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from tasks.release.hub.calls import Patience
from tasks.release.hub.token import refusal
from tasks.release.hub.transaction import HubRelease, check_access, release_on_hub
from tasks.stage.errors import PublishError
from tests.hub_server import HubServer
from tests.tasks.release.hub_publishing import (
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

HEAD = ("GET", r"^/api/models/user/demo$")
COMMIT = ("POST", r"/commit/")
SENDS = ("POST", "preupload|commit|batch")
SMALL = {name: file.source for name, file in small_release().files.items()}


def add_notes(hub: HubServer) -> None:
    hub.store.add_files(repository(hub), {"notes.md": b"by hand"})


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
    assert (repository(hub).tags, repository(hub).private) == ({done.tag: commit.oid}, True)
    assert content(hub, commit) == SMALL
    assert done == HubRelease(commit.oid, small_release().tag, f"{hub.endpoint}/{NAME}/tree/{done.tag}", False)


def test_other_content_is_a_commit_on_the_last_one_and_every_tag_stays(hub: HubServer) -> None:
    first = publish_small("one")
    hub.requests.clear()
    again = publish_small("one")
    assert (again.commit, again.tag, again.unchanged) == (first.commit, first.tag, True)
    assert hub.sent(*SENDS) == hub.sent("PUT", "") == []
    second, third = publish_small("two"), publish_small("one")
    old, new, newest = commits(hub)
    assert (new.oid, new.parent) == (second.commit, first.commit)
    assert (third.commit, third.tag, third.unchanged) == (newest.oid, first.tag, False)
    assert repository(hub).tags == {first.tag: old.oid, second.tag: new.oid}, "content that comes back keeps its tag"


def test_what_an_earlier_release_left_goes_and_what_others_added_stays(hub: HubServer) -> None:
    publish_small()
    add_notes(hub)
    hub.store.add_files(repository(hub), {"ipu_config.json": b"{}", "evaluation/predictions.json": b"{}"})
    publish_small("two")
    assert sorted(content(hub, commits(hub)[-1])) == sorted([*SMALL, "notes.md"])


def test_a_commit_of_somebody_else_in_between_is_kept_and_ours_goes_on_top(hub: HubServer) -> None:
    hub.fault(*COMMIT, hook=lambda: add_notes(hub))
    done = publish_small()
    assert hub.sent(*COMMIT) == [412, 200]
    assert [commit.title for commit in commits(hub)] == ["add files", small_release().title]
    assert set(content(hub, repository(hub).resolve(done.commit))) == {*SMALL, "notes.md"}


def test_others_who_never_stop_committing_end_the_publish_after_five_attempts(hub: HubServer) -> None:
    hub.fault(*COMMIT, times=1000, hook=lambda: add_notes(hub))
    with pytest.raises(PublishError, match=r"412.*main is at [0-9a-f]{40}"):
        publish_small()
    assert len(hub.sent(*COMMIT)) == 5
    assert {commit.title for commit in commits(hub)} == {"add files"}


def test_a_commit_that_lands_after_we_stopped_listening_is_not_made_twice(hub: HubServer) -> None:
    hub.fault(*COMMIT, hook=lambda: time.sleep(0.8))
    patience = Patience(sleep=time.sleep, first_wait_s=0.1, commit_timeout_s=0.4)
    done = release_on_hub(small_release(), NAME, private=True, patience=patience)
    deadline = time.monotonic() + 10
    while 0 in hub.sent(*COMMIT) and time.monotonic() < deadline:
        time.sleep(0.05)  # until the server is through with the first request as well
    assert sorted(hub.sent(*COMMIT)) == [200, 412]
    assert [commit.oid for commit in commits(hub)] == [done.commit]


def test_a_date_in_retry_after_is_waited_for_and_an_hour_is_refused(hub: HubServer) -> None:
    waits: list[float] = []
    hub.fault(*HEAD, status=429, headers={"Retry-After": formatdate(time.time() + 30, usegmt=True)})
    publish_small(waits=waits)
    assert len(waits) == 1
    assert 27 < waits[0] < 33
    hub.fault(*HEAD, status=429, headers={"Retry-After": "3600"})
    with pytest.raises(PublishError, match="429"):
        publish_small("two", waits=waits)
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("review", "checks", "branch", "words"),
    [
        (False, r"/revision/[0-9a-f]{40}$", "main", r"differs from the release \(model\.safetensors has SHA-256"),
        (True, r"/revision/refs/pr/1$", "refs/pr/1", "pull request 1 of user/demo"),
    ],
)
def test_files_that_are_not_what_was_sent_get_no_tag(
    hub: HubServer, review: bool, checks: str, branch: str, words: str
) -> None:
    def damage() -> None:
        tree = repository(hub).resolve(branch).tree
        tree["model.safetensors"] = hub.store.blob("model.safetensors", b"other weights")

    hub.fault("GET", checks, hook=damage)
    with pytest.raises(PublishError, match=words):
        publish_small(review=review)
    assert repository(hub).tags == {}


def test_a_tag_of_that_name_on_other_content_is_not_taken_for_the_release(hub: HubServer) -> None:
    other = hub.store.create("model", NAME, private=True)
    other.tags[small_release().tag] = other.branches["main"]
    with pytest.raises(PublishError, match="differs from the release"):
        publish_small()


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (lambda hub, patch: hub.store.create("model", NAME), r"publish\.private=false"),
        (lambda hub, patch: hub.users[TOKEN].update(role="read"), r"of user\) may only read"),
        (lambda hub, patch: patch.setenv("HF_TOKEN", "   "), "HF_TOKEN"),
        (lambda hub, patch: patch.setenv("HF_TOKEN", "hf_two words"), "HF_TOKEN"),
        (lambda hub, patch: patch.setenv("HF_TOKEN", "hf_line\nbreak"), "HF_TOKEN"),
    ],
    ids=["public", "read", "empty", "blank", "break"],
)
def test_where_a_release_may_not_go_nothing_is_sent(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, arrange: Callable[..., Any], words: str
) -> None:
    arrange(hub, monkeypatch)
    with pytest.raises(PublishError, match=words):
        publish_small()
    assert {method for method, _, _ in hub.requests} <= {"GET"}


def test_no_hub_at_the_endpoint_is_said_with_its_address(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable = "http://127.0.0.1:1"
    monkeypatch.setenv("HF_ENDPOINT", unreachable)
    waits: list[float] = []
    with pytest.raises(PublishError, match=rf"ConnectError.*{unreachable} \(HF_ENDPOINT\)"):
        publish_small(waits=waits)
    assert len(waits) == 4


def fine_grained(*permissions: str, on: str = "user", everywhere: tuple[str, ...] = ()) -> dict[str, Any]:
    scoped = [{"entity": {"name": on}, "permissions": list(permissions)}]
    scopes = {"global": list(everywhere), "scoped": scoped}
    return {"name": "user", "orgs": [], "auth": {"accessToken": {"role": "fineGrained", "fineGrained": scopes}}}


def classic(role: str, name: str = "user", **organisations: str) -> dict[str, Any]:
    orgs = [{"name": organisation, "roleInOrg": right} for organisation, right in organisations.items()]
    return {"name": name, "orgs": orgs, "auth": {"accessToken": {"role": role}}}


@pytest.mark.parametrize(
    ("who", "review", "words"),
    [
        (classic("write", lab="contributor"), False, None),
        (fine_grained("repo.content.read", "repo.write"), False, None),
        (fine_grained("repo.write", on=NAME), False, None),
        (fine_grained("discussion.write"), True, None),
        (fine_grained("repo.content.read", everywhere=("discussion.write",)), True, None),
        ({"name": "user", "auth": {"accessToken": {"role": "fineGrained", "fineGrained": "new layout"}}}, False, None),
        (["no mapping at all"], False, None),
        (classic("write", "someone"), True, None),
        (classic("read"), True, "may only read"),
        (fine_grained("repo.content.read"), False, r"needs repo\.write .* it has repo\.content"),
        (fine_grained("discussion.write"), False, r"needs repo\.write"),
        (fine_grained("repo.write", on="user/other"), False, "no permission there"),
        (fine_grained("repo.content.read"), True, r"needs discussion\.write or repo\.write"),
        (classic("write", user="read"), False, "in the organisation user"),
        (classic("write", "usre", lab="write"), False, "namespace user; .* usre, lab"),
    ],
)
def test_a_token_without_the_rights_is_refused_and_one_that_cannot_be_judged_left_to_the_hub(
    who: Any, review: bool, words: str | None
) -> None:
    reason = refusal(who, NAME, review=review)
    assert re.search(words, str(reason)) if words else reason is None, reason


@pytest.mark.parametrize(("name", "words"), [("demo", "demo has no namespace"), ("usre/demo", "write .* usre")])
def test_a_namespace_of_others_is_refused_before_the_first_stage(hub: HubServer, name: str, words: str) -> None:
    with pytest.raises(PublishError, match=words):
        check_access([name], review=False)
    hub.requests.clear()
    with pytest.raises(PublishError, match=r"publish\.repository"):
        release_on_hub(small_release(), "user/na me", private=True)
    assert hub.requests == []


def test_a_release_for_review_is_a_pull_request_and_tagged_once_it_is_merged(hub: HubServer) -> None:
    request = publish_small(review=True)
    assert commits(hub) == []
    assert repository(hub).tags == {}
    assert repository(hub).private is True
    assert content(hub, repository(hub).resolve("refs/pr/1")) == SMALL
    commit = repository(hub).branches["refs/pr/1"]
    assert request == HubRelease(commit, None, f"{hub.endpoint}/{NAME}/discussions/1", False, 1)
    merge(hub, 1)
    done = publish_small(review=True)
    assert (done.commit, done.tag, done.pull_request) == (commit, small_release().tag, None)
    assert repository(hub).tags == {done.tag: commit}
    assert len(repository(hub).pulls) == 1


def test_the_same_content_again_opens_no_second_one_however_many_others_are_open(hub: HubServer) -> None:
    for text in ("one", "two", "three", "four"):
        publish_small(text, review=True)
    hub.requests.clear()
    again = publish_small("one", review=True)  # on the second page of the list
    assert (again.pull_request, again.unchanged) == (1, True)
    assert open_requests(hub) == [1, 2, 3, 4]
    assert hub.sent(*SENDS) == hub.sent("PUT", "") == []


@pytest.mark.parametrize("closed", [True, False])
def test_a_request_that_was_closed_or_changed_is_not_taken_for_ours(hub: HubServer, closed: bool) -> None:
    publish_small(review=True)
    if closed:
        repository(hub).pulls[1]["status"] = "closed"
    else:
        blob = hub.store.blob("model.safetensors", b"other weights")
        hub.store.commit(repository(hub), "refs/pr/1", {"model.safetensors": blob}, "change")
    assert publish_small(review=True).pull_request == 2


@pytest.mark.parametrize("how", [{"drop": "before"}, {"drop": "after"}, {"status": 503}, {"status": 412}])
def test_an_answer_that_is_lost_never_opens_a_second_request(hub: HubServer, how: dict) -> None:
    hub.fault(*COMMIT, **how)
    assert publish_small(review=True).pull_request == 1
    assert open_requests(hub) == [1]
