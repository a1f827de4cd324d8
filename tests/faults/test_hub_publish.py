"""Every fault at every request of a publish: the repository is as it was or whole, and nothing happens twice."""

import re
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.stage.errors import PublishError
from tests.faults import table
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
"""What a publish waits in all, at most."""


@dataclass(frozen=True)
class Call:
    """One request of a publish."""

    method: str
    pattern: str
    before: int
    """Requests of the same kind before this one."""

    def __str__(self):
        return f"{self.method} {self.pattern}{f' ({self.before + 1})' if self.before else ''}"


def recorded_calls(*, review):
    """Every request of a first, good publish, in order."""
    folder = tempfile.TemporaryDirectory()
    with folder, pytest.MonkeyPatch.context() as patch, running_hub(Path(folder.name)) as hub:
        patch.setenv("HF_TOKEN", hub.add_user(TOKEN))
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        publish_small(review=review)
        requests = [(method, pattern_of(path)) for method, path, _ in hub.requests]
    return [Call(*request, before=requests[:index].count(request)) for index, request in enumerate(requests)]


def pattern_of(path):
    return "^" + re.sub(r"[0-9a-f]{12,64}", "[0-9a-f]+", path.replace(".", r"\.")) + "$"


CALLS = {review: recorded_calls(review=review) for review in (False, True)}
SAMPLE = (("/commit/", "dropped after"), ("/commit/", "412"), ("/upload/", "500"), ("/tag/", "dropped after"))


def cases():
    """Every call x fault x how long it lasts; those outside the sample carry the marker."""
    found = []
    for review, calls in CALLS.items():
        for call in calls:
            for fault in FAULTS:
                for times in (1, 10_000):
                    sampled = not review and any(part in call.pattern and fault == name for part, name in SAMPLE)
                    name = f"{'review' if review else 'direct'}: {fault} {'once' if times == 1 else 'for ever'}, {call}"
                    marks = () if sampled else pytest.mark.faults
                    found.append(pytest.param(review, call, fault, times, marks=marks, id=name))
    return found


def broken(hub, review):
    """What the repository holds that it must not, whatever became of the publish; None: as it was, or whole."""
    if ("model", NAME) not in hub.store.repositories:
        return None
    target, whole = repository(hub), {name: file.source for name, file in small_release().files.items()}
    if len(commits(hub)) > (0 if review else 1):
        return f"{len(commits(hub))} commits on main"
    opened = [target.resolve(f"refs/pr/{number}") for number, pull in target.pulls.items() if pull["status"] == "open"]
    if len(opened) > (1 if review else 0):
        return f"{len(opened)} open pull requests"
    if any(content(hub, commit) != whole for commit in (*commits(hub), *opened)):
        return "a commit that is not the whole release"
    if set(target.tags.values()) - {commit.oid for commit in commits(hub)}:
        return "a tag on something else"
    return None


def finished(hub, review):
    """Released, or open for review."""
    target = repository(hub)
    if review:
        return [pull["status"] for pull in target.pulls.values()].count("open") == 1 and not target.tags
    return [target.tags.get(small_release().tag)] == [commit.oid for commit in commits(hub)]


def attempt(review):
    """Publish; the error's message, and the seconds that were waited for."""
    waits = []
    try:
        publish_small(review=review, waits=waits)
    except PublishError as error:
        return str(error), sum(waits)
    return None, sum(waits)


def judge(hub, review, fault, times):
    """Publish while things go wrong, then again when they do not."""
    said, waited_s = attempt(review)
    if wrong := broken(hub, review):
        raise table.HalfPublished(wrong)
    if said is None and not finished(hub, review):
        raise table.Lost("it ended well and nothing is released")
    if said is not None and fault in PASSING and times == 1:
        raise table.Lost(f"a fault that passes was not survived: {said}")
    if said is not None and TOKEN in said:
        raise table.Leak("the message holds the token")
    if said is not None and not (NAME in said and "Now: " in said):
        raise table.Lost(f"the message lacks the target or its state: {said}")
    if waited_s > LONGEST_WAIT_S:
        raise table.Lost(f"it waited for {waited_s:.0f} s")
    hub.faults.clear()
    again, _ = attempt(review)
    if again is not None or broken(hub, review) or not finished(hub, review):
        raise table.Lost(f"publishing again did not make it whole: {again or broken(hub, review)}")


@pytest.fixture(autouse=True)
def nobody_else_waits(monkeypatch):
    def sleep(seconds):
        raise AssertionError(f"the client library waits {seconds} s on its own")

    monkeypatch.setattr("huggingface_hub.utils._http.time", types.SimpleNamespace(sleep=sleep, time=time.time))


@pytest.mark.parametrize(("review", "call", "fault", "times"), cases())
def test_a_fault_at_a_call_leaves_the_repository_as_it_was_or_whole(hub, caplog, review, call, fault, times):
    caplog.set_level("DEBUG")
    hub.fault(call.method, call.pattern, after=call.before, times=times, **FAULTS[fault])
    with table.case(
        f"hub: {fault} {'once' if times == 1 else 'for ever'}", f"{'review' if review else 'direct'} {call}"
    ):
        judge(hub, review, fault, times)
        if TOKEN in caplog.text or "signature=" in caplog.text:
            raise table.Leak("the log holds the token or a right to upload")
    if fault == "a page instead of JSON":  # claims that an upload arrived which the Hub never saw
        hub.failures[:] = [line for line in hub.failures if "uploaded" not in line]
