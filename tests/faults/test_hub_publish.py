"""Every fault at every request of a publish: the repository is as it was or whole, and nothing happens twice."""

import re
import time
import types
from itertools import product

import pytest

from tasks.stage.errors import PublishError
from tests.hub_server import running_hub
from tests.tasks.release.hub_publishing import NAME, TOKEN, commits, content, publish_small, repository, small_release

PASSING = {
    "408": {"status": 408},
    "429": {"status": 429},
    "429 with Retry-After": {"status": 429, "headers": {"Retry-After": "7"}},
    "500": {"status": 500},
    "502 as a page": {"status": 502, "body": b"<html>bad gateway</html>", "headers": {"Content-Type": "text/html"}},
    "503": {"status": 503},
    "504": {"status": 504},
    "dropped before": {"drop": "before"},
    "dropped after": {"drop": "after"},
}
"""What a moment later may be gone: once, it must be survived."""
LASTING = {str(code): {"status": code} for code in (400, 401, 402, 403, 404, 409, 412, 413)} | {
    "429 for an hour": {"status": 429, "headers": {"Retry-After": "3600"}},
    "a page instead of JSON": {"status": 200, "body": b"<html>maintenance</html>"},
}
FAULTS = PASSING | LASTING
LONGEST_WAIT_S = 600.0


def recorded_calls(*, review):
    """Every request of a first, good publish, in order: method, pattern, and how many of the same came before."""
    with pytest.MonkeyPatch.context() as patch, running_hub() as hub:
        patch.setenv("HF_TOKEN", hub.add_user(TOKEN))
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        publish_small(review=review)
        requests = [(method, pattern_of(path)) for method, path, _ in hub.requests]
    return [(*request, requests[:index].count(request)) for index, request in enumerate(requests)]


def pattern_of(path):
    return "^" + re.sub(r"[0-9a-f]{12,64}", "[0-9a-f]+", path.replace(".", r"\.")) + "$"


SAMPLE = (("/commit/", "dropped after"), ("/commit/", "412"), ("/upload/", "500"), ("/tag/", "dropped after"))


def cases():
    """Every call x fault x how long it lasts; those outside the sample carry the marker."""
    for review in (False, True):
        for (method, pattern, before), fault, times in product(recorded_calls(review=review), FAULTS, (1, 10_000)):
            sampled = not review and any(part in pattern and fault == name for part, name in SAMPLE)
            name = f"{'review' if review else 'direct'}: {fault} {'once' if times == 1 else 'for ever'}, {method} "
            marks = () if sampled else pytest.mark.faults
            call = {"method": method, "pattern": pattern, "after": before}
            yield pytest.param(review, call, fault, times, marks=marks, id=f"{name}{pattern} ({before + 1})")


def require_as_it_was_or_whole(hub, review):
    """Whatever became of the publish: no commit is there twice, none is a part, no tag is on something else."""
    if ("model", NAME) not in hub.store.repositories:
        return
    target, whole = repository(hub), {name: file.source for name, file in small_release().files.items()}
    made = commits(hub)
    opened = [target.resolve(f"refs/pr/{number}") for number, pull in target.pulls.items() if pull["status"] == "open"]
    assert len(made) <= (0 if review else 1)
    assert len(opened) <= (1 if review else 0)
    assert all(content(hub, commit) == whole for commit in (*made, *opened))
    assert set(target.tags.values()) <= {commit.oid for commit in made}


def require_finished(hub, review):
    """Released, or open for review."""
    require_as_it_was_or_whole(hub, review)
    target = repository(hub)
    if review:
        assert [pull["status"] for pull in target.pulls.values()].count("open") == 1
        assert not target.tags
    else:
        assert [target.tags.get(small_release().tag)] == [commit.oid for commit in commits(hub)]


@pytest.fixture(autouse=True)
def nobody_else_waits(monkeypatch):
    def sleep(seconds):
        raise AssertionError(f"the client library waits {seconds} s on its own")

    monkeypatch.setattr("huggingface_hub.utils._http.time", types.SimpleNamespace(sleep=sleep, time=time.time))


@pytest.mark.parametrize(("review", "call", "fault", "times"), cases())
def test_a_fault_at_a_call_leaves_the_repository_as_it_was_or_whole(hub, caplog, review, call, fault, times):
    caplog.set_level("DEBUG")
    hub.fault(**call, times=times, **FAULTS[fault])
    waits, message = [], ""
    try:
        publish_small(review=review, waits=waits)
    except PublishError as error:
        message = str(error)
    if message:
        assert fault not in PASSING or times > 1, f"a fault that passes was not survived: {message}"
        assert NAME in message
        assert "Now: " in message
        assert TOKEN not in message
        require_as_it_was_or_whole(hub, review)
    else:
        require_finished(hub, review)
    assert sum(waits) <= LONGEST_WAIT_S
    hub.faults.clear()
    publish_small(review=review)
    require_finished(hub, review)
    assert TOKEN not in caplog.text
    assert "signature=" not in caplog.text
    if fault == "a page instead of JSON":  # claims that an upload arrived which the Hub never saw
        hub.failures[:] = [line for line in hub.failures if "uploaded" not in line]
