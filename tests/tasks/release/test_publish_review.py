"""Review mode: one open pull request per content, nothing on main, nothing tagged before it is merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.params.schema import parameter_values
from tasks.release.publish import publish
from tasks.stage.errors import PublishError
from tests.hub_server import HubServer
from tests.tasks.release.hub_publishing import (
    CALLS,
    NAME,
    commits,
    merge,
    open_requests,
    publish_small,
    repository,
    small_release,
)
from tests.tasks.trained_checkout import params_with


def proposed(hub: HubServer, number: int) -> dict[str, bytes]:
    tree = repository(hub).resolve(f"refs/pr/{number}").tree
    return {path: hub.store.read(blob.sha256) for path, blob in tree.items() if path != ".gitattributes"}


def open_by_another_publisher(hub: HubServer) -> None:
    target = repository(hub)
    target.pulls[1] = {"title": f"Publish {small_release().tag}", "status": "open", "author": "another"}
    target.branches["refs/pr/1"] = target.branches["main"]
    files = {name: hub.store.blob(name, file.source) for name, file in small_release().files.items()}
    hub.store.commit(target, "refs/pr/1", files, (), None, "the other publisher")


def test_a_release_for_review_is_a_pull_request_and_neither_main_nor_a_tag_moves(hub: HubServer) -> None:
    done = publish_small(review=True)
    assert commits(hub) == []
    assert repository(hub).tags == {}
    assert repository(hub).private is True
    assert proposed(hub, 1) == {name: file.source for name, file in small_release().files.items()}
    assert (done.tag, done.pull_request, done.unchanged) == (None, 1, False)
    assert done.url == f"{hub.endpoint}/{NAME}/discussions/1"
    assert done.commit == repository(hub).branches["refs/pr/1"]


def test_the_receipt_of_a_proposal_names_the_request_and_no_tag(hub: HubServer, checkout: Path) -> None:
    params = params_with(target="hub", repository=NAME, review=True)
    receipt = publish(parameter_values(params), "squad", checkout)
    address = f"{hub.endpoint}/{NAME}/discussions/1"
    assert (receipt["tag"], receipt["pull_request"], receipt["url"]) == (None, 1, address)
    assert json.loads((checkout / "reports/publish-squad.json").read_text()) == receipt
    assert repository(hub).tags == {}


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


def test_a_request_that_was_closed_is_not_reopened_a_new_one_is_opened(hub: HubServer) -> None:
    publish_small(review=True)
    repository(hub).pulls[1]["status"] = "closed"
    assert publish_small(review=True).pull_request == 2


def test_a_request_that_somebody_changed_is_not_taken_for_ours(hub: HubServer) -> None:
    publish_small(review=True)
    blob = hub.store.blob("model.safetensors", b"other weights")
    hub.store.commit(repository(hub), "refs/pr/1", {"model.safetensors": blob}, (), None, "change")
    assert publish_small(review=True).pull_request == 2


@pytest.mark.parametrize("how", [{"drop": "before"}, {"drop": "after"}, {"status": 503}, {"status": 412}])
def test_an_answer_that_is_lost_never_opens_a_second_request(hub: HubServer, how: dict) -> None:
    hub.fault(*CALLS["commit"], **how)
    assert publish_small(review=True).pull_request == 1
    assert open_requests(hub) == [1]


def test_of_two_opened_at_the_same_moment_the_first_stays(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], hook=lambda: open_by_another_publisher(hub))
    done = publish_small(review=True)
    assert (done.pull_request, done.unchanged) == (1, True)
    assert open_requests(hub) == [1]
    assert len(repository(hub).pulls) == 2


def test_a_request_that_cannot_be_opened_is_told_with_what_main_is_now(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], times=1000, status=503)
    with pytest.raises(PublishError, match=r"opening the pull request failed.*503.*main is at [0-9a-f]{40}, nothing"):
        publish_small(review=True)
    assert len(hub.sent(*CALLS["commit"])) == 5
    assert repository(hub).pulls == {}


def test_weights_changed_on_the_way_are_seen_in_the_request(hub: HubServer) -> None:
    def damage() -> None:
        if repository(hub).pulls:
            tree = repository(hub).resolve("refs/pr/1").tree
            tree["model.safetensors"] = hub.store.blob("model.safetensors", b"other weights")

    hub.fault("GET", r"/revision/refs/pr/1$", hook=damage)
    with pytest.raises(PublishError, match="pull request 1 of user/demo differs from the release"):
        publish_small(review=True)
