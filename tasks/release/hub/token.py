"""The Hub token, from the environment alone, and what it may do by the Hub's own words: asked first, so that no large
file is sent in vain.
"""

import os
from collections.abc import Mapping
from typing import Any

from tasks.stage.errors import PublishError

TOKEN = "HF_TOKEN"
WRITE, DISCUSS = "repo.write", "discussion.write"


def token_of_environment() -> str:
    """HF_TOKEN.

    Raises:
        PublishError: it is not set, or is no token.
    """
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise PublishError(
            f"publish.target is hub but the environment variable {TOKEN} is empty: export a token with write access "
            "(the Hub's settings, Access Tokens); it is read from nowhere else. Nothing was published"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise PublishError(f"{TOKEN} holds characters no token has (a blank or a line break?). Nothing was published")
    return token


def refusal(who: Mapping[str, Any], repository: str, *, review: bool) -> str | None:
    """Why this token cannot publish to `repository`, in words for people; None: it can, or the Hub must say.

    Args:
        who: the Hub's answer to `whoami-v2`: `name`, `orgs` and `auth.accessToken`, whose `role` is read, write or
            fineGrained (then `fineGrained.scoped` lists what it may do where).
        repository: `user/name`.
        review: a pull request is to be opened, nothing written to main.
    """
    who, owner = _mapping(who), repository.split("/")[0]
    token = _mapping(_mapping(who.get("auth")).get("accessToken"))
    whose = f"HF_TOKEN (of {who.get('name')})"
    if token.get("role") == "read":
        return f"{whose} may only read; required is a token with write access to {repository}"
    if token.get("role") == "fineGrained":
        scopes = _mapping(token.get("fineGrained"))
        wanted = {WRITE, DISCUSS} if review else {WRITE}
        granted = _granted(scopes, owner, repository)
        if granted is not None and not wanted & granted:
            needed = " or ".join(sorted(wanted))
            return (
                f"{whose} is fine-grained and may {', '.join(sorted(granted)) or 'do nothing'} at {repository}; "
                f"required is {needed} on {owner} or on {repository}"
            )
    for org in who.get("orgs") or ():
        if _mapping(org).get("name") == owner and org.get("roleInOrg") == "read":
            return f"{whose} may only read in the organisation {owner}; required is the role write or contributor there"
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _granted(scopes: Mapping[str, Any], owner: str, repository: str) -> set[str] | None:
    """Permissions that reach the repository; None when the answer is not laid out as known."""
    scoped = scopes.get("scoped")
    if not isinstance(scoped, list):
        return None
    found = {str(name) for name in scopes.get("global") or ()}
    for scope in scoped:
        if _mapping(_mapping(scope).get("entity")).get("name") in (owner, repository):
            found |= {str(name) for name in scope.get("permissions") or ()}
    return found
