"""Hub token: read from the environment only, its permissions checked before any large file is sent."""

import os
from collections.abc import Mapping
from typing import Any

from tasks.stage.errors import PublishError

TOKEN = "HF_TOKEN"
WRITE, DISCUSS = "repo.write", "discussion.write"


def token_of_environment() -> str:
    """Return the token in HF_TOKEN.

    Raises:
        PublishError: it is not set, or is not a token.
    """
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise PublishError(
            f"publish.target is hub, but the environment variable {TOKEN} is empty. Export a token with write access "
            "(Hub settings, Access Tokens); it is read only from this variable. Nothing was published"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise PublishError(f"{TOKEN} contains characters no token has (a blank or line break?). Nothing was published")
    return token


def refusal(who: Mapping[str, Any], repository: str, *, review: bool) -> str | None:
    """Return why this token cannot publish to `repository`, or None if it can or if only the Hub can decide.

    Args:
        who: answer of the Hub to `whoami-v2`: `name`, `orgs` and `auth.accessToken`, whose `role` is read, write or
            fineGrained (then `fineGrained.scoped` lists its permissions by repository, user and organisation).
    """
    who, owner = _mapping(who), repository.split("/")[0]
    token = _mapping(_mapping(who.get("auth")).get("accessToken"))
    whose = f"HF_TOKEN (of {who.get('name')})"
    if token.get("role") == "read":
        return f"{whose} may only read; a token with write access to {repository} is required"
    scopes = _mapping(token.get("fineGrained"))
    scoped = scopes.get("scoped")
    if token.get("role") == "fineGrained" and isinstance(scoped, list):
        granted = {str(name) for name in scopes.get("global") or ()}
        for scope in scoped:
            if _mapping(_mapping(scope).get("entity")).get("name") in (owner, repository):
                granted |= {str(name) for name in scope.get("permissions") or ()}
        required = {WRITE, DISCUSS} if review else {WRITE}
        if not required & granted:
            needed = " or ".join(sorted(required))
            return (
                f"{whose} is fine-grained and needs {needed} for {owner} or {repository}; it has "
                f"{', '.join(sorted(granted)) or 'no permission'} there"
            )
    orgs = who.get("orgs")
    if isinstance(orgs, list) and not review and owner not in namespaces(who):
        names = ", ".join(namespaces(who))
        return f"{whose} cannot write in the namespace {owner}; the user and the organisations of the token are {names}"
    for org in orgs or ():
        if _mapping(org).get("name") == owner and org.get("roleInOrg") == "read":
            return f"{whose} may only read in the organisation {owner}; the role write or contributor is required there"
    return None


def namespaces(who: Mapping[str, Any]) -> list[str]:
    """Return the user and the organisations of a token, by the Hub's answer to `whoami-v2`."""
    return [str(owner.get("name")) for owner in (who, *map(_mapping, who.get("orgs") or ()))]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
