"""A release on the Hub as one transaction: one commit on the head we saw, verified, then a tag.

    whoami -> head, or create_repo and its head -> ONE create_commit(parent_commit=head) -> verify hashes -> create_tag

Only the tag means "released". In review mode a pull request takes the place of commit and tag (`propose`):
nothing is released until somebody merges it and publish, run again, finds it on main, verifies and tags it.

Until the commit lands the repository is as it was; after it, a state without a tag is never taken for a release, and
publishing again finds the commit and adds the tag. Whatever happened to a call is learnt from the repository itself,
never guessed.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from tasks.project.errors import PublishError
from tasks.release.compared import ComparedRelease
from tasks.release.hub.calls import FAILURES, Caller, Patience, Waits, hub_client, may_have_landed
from tasks.release.hub.commit import HubRelease, differences, send, title
from tasks.release.hub.newest import require_compared
from tasks.release.hub.token import refusal, token_of_environment
from tasks.release.release import Release

log = logging.getLogger(__name__)

OPEN = ("open", "draft")
"""States of a pull request that nobody decided on."""


def release_on_hub(
    release: Release,
    repository: str,
    *,
    private: bool,
    review: bool = False,
    patience: Patience | None = None,
    compared: ComparedRelease | None = None,
) -> HubRelease:
    """Make the head of `repository` hold this release and tag it, or propose that in a pull request.

    Files of other names in the repository stay; files of an earlier release that this one lacks are removed in the
    same commit. The token comes from HF_TOKEN, the Hub's address from HF_ENDPOINT.

    Args:
        release: the files.
        repository: `user/name`; created when it is not there.
        private: create it private, and refuse to publish to a public one.
        review: open a pull request instead of committing to main.
        patience: how often and how long to wait.
        compared: what the gate compared with, where it asks for what was published; no other release is replaced.

    Raises:
        PublishError: with what the repository looks like now and what to do.
    """
    return _Transaction(_connect(repository, patience), release, compared).run(private, review)


def check_access(repositories: Sequence[str], *, review: bool, patience: Patience | None = None) -> str:
    """Ask the Hub whether HF_TOKEN may publish to these repositories; nothing is made or changed there.

    Returns:
        Whose token it is, for people.

    Raises:
        PublishError: no token, no such name, no answer, or no right to write.
    """
    callers = [_connect(repository, patience) for repository in repositories]
    users = [_check_rights(caller, review).get("name") for caller in callers]
    return f"{users[0]} may publish to {', '.join(repositories)} at {callers[0].endpoint}"


def _connect(repository: str, patience: Patience | None) -> Caller:
    token = token_of_environment()
    waits = Waits(patience or Patience(), token)
    return Caller(hub_client(os.environ.get("HF_ENDPOINT", ""), token, waits), repository, waits)


def _check_rights(caller: Caller, review: bool) -> dict[str, Any]:
    """The Hub's own words about the token, which may write there as far as they tell."""
    state = "nothing was published"
    caller.asked("checking the name", lambda: validate_repo_id(caller.repository), state)
    who: dict[str, Any] = caller.asked("checking the token", caller.api.whoami, state)
    if reason := refusal(who, caller.repository, review=review):
        raise PublishError(
            f"{reason}: make such a token (the Hub's settings, Access Tokens) and export it as HF_TOKEN, or set "
            "publish.repository to where this one may write. Nothing was published"
        )
    return who


@dataclass
class _Transaction:
    caller: Caller
    release: Release
    compared: ComparedRelease | None

    def run(self, private: bool, review: bool) -> HubRelease:
        name = self.caller.repository
        _check_rights(self.caller, review)
        head = self._head(private)
        if private and not head.private:
            raise PublishError(
                f"{name} is public while publish.private is true: set publish.private=false, or make the repository "
                "private on the Hub. Nothing was changed in it"
            )
        if review and differences(head, self.release):
            self._require_compared(head)
            return propose(self.caller, self.release, head)
        commit, unchanged = self._commit(head)
        landed = f"main was moved to {commit}, which has no release tag, so nothing new counts as released"
        self._verify(commit, "verifying the commit", landed)
        self._tag(commit, landed)
        log.info("%s: %s is released as %s", name, commit, self.release.tag)
        url = f"{self.caller.endpoint}/{name}/tree/{self.release.tag}"
        return HubRelease(commit, self.release.tag, url, unchanged)

    def _require_compared(self, head: Any) -> None:
        """Refuse a head whose newest release is not the one that the gate compared with; a commit names this head as
        its parent, so that what was looked at is what it replaces."""
        if (compared := self.compared) is not None:
            self.caller.asked(
                "looking for what was released last",
                lambda: require_compared(self.caller.api, self.caller.repository, head, self.release, compared),
                f"main is at {head.sha}; nothing was published",
            )

    def _head(self, private: bool) -> Any:
        """The head of main; the repository is created when it is not there (or not visible to us)."""
        api, name, state = self.caller.api, self.caller.repository, "nothing was published"

        def look() -> Any:
            try:
                return api.model_info(name, files_metadata=True)
            except RepositoryNotFoundError:
                return None

        head = self.caller.asked("looking for the repository", look, state)
        if head is None:
            create = "creating the repository"
            self.caller.asked(create, lambda: api.create_repo(name, private=private, exist_ok=True), state)
            head = self.caller.info("reading the head", None, state)
        return head

    def _commit(self, head: Any) -> tuple[str, bool]:
        """Commit on the head; (commit, whether it was there before).

        A failed or unanswered POST may still have landed, and somebody else may have been faster: both are seen
        by reading the head again, so the same content never makes a second commit.
        """
        for attempt in itertools.count():
            self._require_compared(head)
            if not differences(head, self.release):
                return str(head.sha), attempt == 0
            try:
                return send(self.caller.api, self.caller.repository, self.release, head).oid, False
            except FAILURES as error:
                lost = error
            again = may_have_landed(lost) and self.caller.waits.before_next("the commit", lost, attempt)
            unknown = f"main was at {head.sha} before the attempt; the head could not be read since"
            if may_have_landed(lost):
                head = self.caller.info("reading the head again", None, unknown)
            if not again and differences(head, self.release):
                raise self.caller.failed(
                    "the commit", lost, f"main is at {head.sha}, no commit of this publish is in it"
                )
        raise AssertionError("unreachable")

    def _verify(self, revision: str, step: str, state: str) -> None:
        found = differences(self.caller.info(step, revision, state), self.release)
        if found:
            raise PublishError(
                f"{self.caller.repository} at {revision} does not hold what was sent ({'; '.join(found[:5])}). "
                f"Now: {state}. Publish again when no stage is running; if it stays, look at the repository's files"
            )

    def _tag(self, commit: str, state: str) -> None:
        self.caller.asked(
            "tagging the release",
            lambda: self.caller.api.create_tag(
                self.caller.repository, tag=self.release.tag, revision=commit, exist_ok=True
            ),
            state,
        )
        # An existing tag is not moved: it must stand for this very content.
        self._verify(self.release.tag, "verifying the tag", state)


def propose(caller: Caller, release: Release, head: Any) -> HubRelease:
    """Have exactly one open pull request that makes main hold the release.

        open pull requests with this very content -> none: ONE commit that opens one -> look again, verify every hash

    The same content never has two: what is open is found by title and content, an answer that was lost is looked for,
    and of several that were opened at the same moment the lowest number stays.

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
            return _keep_the_first(caller, found, unchanged=lost is None, state=state)
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
        return _keep_the_first(caller, found, unchanged=False, state=state, ours=opened.pr_num)
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


def _keep_the_first(caller: Caller, found: list[Any], *, unchanged: bool, state: str, ours: int = 0) -> HubRelease:
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
