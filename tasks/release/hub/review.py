"""Review mode: the release as a pull request. Nothing is tagged, nothing is released; people decide.

    open pull requests with this very content -> none: ONE commit that opens one -> look again, verify every hash

The same content never has two open pull requests: what is open is found by title and content, an answer that was
lost is looked for, and of several that were opened at the same moment the lowest number stays.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

from tasks.project.errors import PublishError
from tasks.release.hub.calls import FAILURES, Caller, may_have_landed
from tasks.release.hub.commit import HubRelease, differences, send, title
from tasks.release.release import Release

log = logging.getLogger(__name__)

OPEN = ("open", "draft")


def propose(caller: Caller, release: Release, head: Any) -> HubRelease:
    """Have exactly one open pull request that makes main hold the release.

    Args:
        caller: names the repository in messages.
        release: the files.
        head: main as it is now (ModelInfo); the request is based on it.

    Raises:
        PublishError: with what the repository looks like now and what to do.
    """
    state = f"main is at {head.sha}, nothing was changed in it"
    lost: Exception | None = None
    for attempt in itertools.count():
        found = _open_requests(caller, release, state)
        if found:
            return _keep_the_first(caller, release, found, unchanged=lost is None, state=state)
        if lost is not None and not caller.waits.before_next("the pull request", lost, attempt - 1):
            raise caller.failed("opening the pull request", lost, state)
        try:
            opened = send(caller.api, caller.repository, release, head, create_pr=True)
        except FAILURES as error:
            lost = error
            if not may_have_landed(error):
                raise caller.failed("opening the pull request", error, state) from None
            continue
        log.info("%s: pull request %s was opened", caller.repository, opened.pr_num)
        found = _open_requests(caller, release, f"{state}; pull request {opened.pr_num} is open")
        if opened.pr_num not in {request.num for request in found}:
            raise PublishError(
                f"pull request {opened.pr_num} of {caller.repository} does not hold what was sent, or was closed "
                f"meanwhile: look at {opened.pr_url}. Now: {state}"
            )
        return _keep_the_first(caller, release, found, unchanged=False, state=state, ours=opened.pr_num)
    raise AssertionError("unreachable")


def _open_requests(caller: Caller, release: Release, state: str) -> list[Any]:
    """Open pull requests with our title whose content is the release, lowest number first."""

    def look() -> list[Any]:
        listed = caller.api.get_repo_discussions(caller.repository, discussion_type="pull_request")
        return [one for one in listed if one.status in OPEN and one.title == title(release)]

    candidates = caller.asked("looking for open pull requests", look, state)
    return sorted(
        (one for one in candidates if not differences(_content(caller, one.num, state), release)),
        key=lambda one: int(one.num),
    )


def _content(caller: Caller, number: int, state: str) -> Any:
    return caller.info(f"reading pull request {number}", f"refs/pr/{number}", state)


def _keep_the_first(
    caller: Caller, release: Release, found: list[Any], *, unchanged: bool, state: str, ours: int = 0
) -> HubRelease:
    """The lowest of the open requests with this content; ours is closed if somebody's was opened just before."""
    first = int(found[0].num)
    if ours > first:
        caller.asked(
            f"closing pull request {ours}",
            lambda: caller.api.change_discussion_status(
                caller.repository, ours, "closed", comment=f"Pull request {first} proposes the same content."
            ),
            f"{state}; pull requests {first} and {ours} propose the same content",
        )
    commit = str(_content(caller, first, state).sha)
    url = f"{caller.endpoint}/{caller.repository}/discussions/{first}"
    return HubRelease(commit, None, url, unchanged or ours > first, first)
