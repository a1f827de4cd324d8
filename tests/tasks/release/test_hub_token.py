"""What a token may do is read from the Hub's own answer, before anything is sent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tasks.release.hub.token import refusal
from tasks.release.hub.transaction import check_access
from tasks.stage.errors import PublishError
from tests.hub_server import HubServer
from tests.tasks.release.hub_publishing import NAME, publish_small


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
def test_a_token_that_cannot_is_refused_with_what_it_may_and_what_is_required(
    who: dict[str, Any], review: bool, said: str
) -> None:
    reason = refusal(who, NAME, review=review)
    assert reason is not None
    assert re.search(said, reason), reason


@pytest.mark.parametrize(
    ("repository", "said"),
    [
        ("demo", "publish.repository=demo has no namespace"),
        ("usre/demo", "cannot write in the namespace usre"),
    ],
)
def test_a_namespace_that_is_not_the_users_is_refused_before_the_first_stage(
    hub: HubServer, repository: str, said: str
) -> None:
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
