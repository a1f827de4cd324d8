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

from tasks.params.schema import parameter_values
from tasks.release.hub.calls import Patience
from tasks.release.hub.token import refusal
from tasks.release.hub.transaction import HubRelease, check_access, release_on_hub
from tasks.release.publish import publish
from tasks.release.release import NAMES
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
from tests.tasks.trained_checkout import PROJECT, params_with, write_gate, write_model


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


def fine_grained(*permissions: str, on: str = "user", everywhere: tuple[str, ...] = ()) -> dict[str, Any]:
    scoped = [{"entity": {"_id": "1", "type": "user", "name": on}, "permissions": list(permissions)}]
    scopes = {"canReadGatedRepos": True, "global": list(everywhere), "scoped": scoped}
    token = {"displayName": "t", "role": "fineGrained", "fineGrained": scopes}
    return {"type": "user", "name": "user", "orgs": [], "auth": {"type": "access_token", "accessToken": token}}


def classic(role: str, **organisation: str) -> dict[str, Any]:
    orgs = [organisation] if organisation else []
    return {"type": "user", "name": "user", "orgs": orgs, "auth": {"accessToken": {"role": role}}}


@pytest.mark.parametrize(
    ("who", "review"),
    [
        (classic("write"), False),
        (classic("write", name="lab", roleInOrg="contributor"), False),
        (fine_grained("repo.content.read", "repo.write"), False),
        (fine_grained("repo.write", on=NAME), False),
        (fine_grained("discussion.write"), True),
        (fine_grained("repo.content.read", everywhere=("discussion.write",)), True),
        ({"name": "user", "auth": {"type": "oauth"}}, False),
        ({"name": "user", "auth": {"accessToken": {"role": "fineGrained", "fineGrained": "new layout"}}}, False),
        (["no mapping at all"], False),
        (classic("write") | {"name": "someone"}, True),
    ],
)
def test_a_token_that_may_write_or_cannot_be_judged_is_left_to_the_hub(who: Any, review: bool) -> None:
    assert refusal(who, NAME, review=review) is None


@pytest.mark.parametrize(
    ("who", "review", "said"),
    [
        (classic("read"), False, "may only read; a token with write access to user/demo is required"),
        (classic("read"), True, "may only read"),
        (fine_grained("repo.content.read"), False, r"needs repo\.write for user or user/demo; it has repo\.content"),
        (fine_grained("discussion.write"), False, r"needs repo\.write"),
        (fine_grained("repo.write", on="user/other"), False, "it has no permission there"),
        (fine_grained("repo.content.read"), True, r"needs discussion\.write or repo\.write"),
        (classic("write", name="user", roleInOrg="read"), False, "may only read in the organisation user"),
        (classic("write", name="lab", roleInOrg="write") | {"name": "usre"}, False, "namespace user; .* are usre, lab"),
    ],
)
def test_a_token_without_the_rights_is_refused(who: dict[str, Any], review: bool, said: str) -> None:
    reason = refusal(who, NAME, review=review)
    assert re.search(said, reason), reason


@pytest.mark.parametrize(
    ("repository", "said"),
    [("demo", "publish.repository=demo has no namespace"), ("usre/demo", "cannot write in the namespace usre")],
)
def test_a_namespace_of_others_is_refused_before_the_first_stage(hub: HubServer, repository: str, said: str) -> None:
    with pytest.raises(PublishError, match=said):
        check_access([repository], review=False)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Private repository storage limit reached", "free storage on the Hub"),
        ("You must have write access to the Resource Group", "ask an administrator for write access in the group of"),
        ("Forbidden", "HF_TOKEN may not write to user/demo: use a token with write access"),
    ],
)
def test_the_advice_after_a_refusal_is_about_its_cause(hub: HubServer, said: str, fix: str) -> None:
    hub.fault("POST", "/commit/", times=99, status=403, body=json.dumps({"error": said}).encode())
    with pytest.raises(PublishError, match=fix):
        publish_small()


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


def test_of_two_opened_at_the_same_moment_the_first_stays(hub: HubServer) -> None:
    hub.fault(*CALLS["commit"], hook=lambda: open_by_another_publisher(hub))
    done = publish_small(review=True)
    assert (done.pull_request, done.unchanged) == (1, True)
    assert open_requests(hub) == [1]
    assert len(repository(hub).pulls) == 2


def test_weights_changed_on_the_way_are_seen_in_the_request(hub: HubServer) -> None:
    def damage() -> None:
        if repository(hub).pulls:
            tree = repository(hub).resolve("refs/pr/1").tree
            tree["model.safetensors"] = hub.store.blob("model.safetensors", b"other weights")

    hub.fault("GET", r"/revision/refs/pr/1$", hook=damage)
    with pytest.raises(PublishError, match="pull request 1 of user/demo differs from the release"):
        publish_small(review=True)


def run_in(root: Path, hub: HubServer, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "PYTHONPATH": str(PROJECT),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(root.parent / "hf-home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


READ_BACK = """
import json, re, sys
from pathlib import Path
import torch
from huggingface_hub import snapshot_download
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
folder = Path(snapshot_download("user/demo", revision=sys.argv[1]))
expected = json.loads(sys.argv[2])
found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
assert found == {*expected, ".gitattributes", "README.md", "stage_runs.json"}
for name, path in expected.items():
    assert path is None or (folder / name).read_bytes() == Path(path).read_bytes(), name
pair = "where does the river rise ?", "in northern hills"
inputs = AutoTokenizer.from_pretrained("user/demo")(*pair, return_tensors="pt")
here = AutoTokenizer.from_pretrained("data/tokenizer")(*pair, return_tensors="pt")
assert inputs["input_ids"].tolist() == here["input_ids"].tolist()
with torch.no_grad():
    there = AutoModelForQuestionAnswering.from_pretrained("user/demo").eval()(**inputs)
    here = AutoModelForQuestionAnswering.from_pretrained("models/squad").eval()(**inputs)
assert torch.equal(there.start_logits, here.start_logits) and torch.equal(there.end_logits, here.end_logits)
assert there.start_logits.unique().numel() > 3
code = re.search("```python\\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
exec(compile(code, "README.md", "exec"))
"""


@pytest.mark.soak
def test_a_published_model_downloads_loads_and_answers_as_it_did(hub: HubServer, checkout: Path) -> None:
    root = checkout
    values = params_with(target="hub", repository=NAME)
    receipt = publish(parameter_values(values), "squad", root)
    stated = [receipt[key] for key in ("target", "repository", "commit", "unchanged")]
    assert stated == ["hub", NAME, commits(hub)[-1].oid, False]
    own = {
        "config.json": "models/squad/config.json",
        "model.safetensors": "models/squad/model.safetensors",
        "tokenizer.json": "data/tokenizer/tokenizer.json",
        "vocab.txt": "data/tokenizer/vocab.txt",
        "evaluation/predictions.json": "evaluation/squad/predictions.json",
    }
    expected = {name: own.get(name) for name in receipt["files"]}
    read = run_in(root, hub, "-c", READ_BACK, receipt["tag"], json.dumps(expected))
    assert read.returncode == 0, read.stderr
    answer = read.stdout.strip()
    assert answer
    assert answer in "The river rises in the northern hills and ends in a lake."


def test_the_token_is_in_nothing_that_a_run_writes(hub: HubServer, checkout: Path, tmp_path: Path) -> None:
    root = checkout
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(root, to)
    hub.fault(*CALLS["head"], drop="before")
    done = run_in(root, hub, "-m", "tasks.release.publish")
    assert done.returncode == 0, done.stderr
    write_model(root, seed=5)
    write_gate(root)
    hub.fault(*CALLS["commit"], times=9, status=401)
    failed = run_in(root, hub, "-m", "tasks.release.publish")
    assert (failed.returncode, len(commits(hub))) == (1, 1)
    written = done.stdout + done.stderr + failed.stdout + failed.stderr
    places = [*root.rglob("*"), *(tmp_path / "hf-home").rglob("*"), *(tmp_path / "hub").rglob("*")]
    files = [path for path in places if path.is_file()]
    assert len(files) > 20
    assert TOKEN not in written
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_a_dry_run_asks_nothing_of_the_hub_and_writes_nothing(hub: HubServer, checkout: Path) -> None:
    values = params_with(target="hub", repository=NAME)
    receipt = publish(parameter_values(values), "squad", checkout, dry_run=True)
    assert "model.safetensors" in receipt["files"]
    assert hub.requests == []
    assert not (checkout / "reports/publish-squad.json").exists()
