"""A release on the Hub as one transaction: one commit on the head we saw, verified, then a tag.

    whoami -> head, or create_repo and its head -> ONE create_commit(parent_commit=head) -> verify hashes -> create_tag

Only the tag means "released". In review mode a pull request takes the place of commit and tag: nothing is released
until somebody merges it and publish, run again, finds it on main, verifies and tags it.

Until the commit lands the repository is as it was; after it, a state without a tag is never taken for a release, and
publishing again finds the commit and adds the tag. Whatever happened to a call is learnt from the repository itself,
never guessed. So a failure that passes is answered by beginning again: what was done is found, and not done twice.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from tasks.release.hub.calls import FAILURES, Caller, CallFailed, Patience, hub_client
from tasks.release.hub.newest import require_compared
from tasks.release.hub.token import refusal, token_of_environment
from tasks.release.release import NAMES, STAGE_RUNS, ComparedRelease, Release
from tasks.stage.errors import PublishError

log = logging.getLogger(__name__)

OPEN = ("open", "draft")
"""States of a pull request that nobody decided on."""


@dataclass(frozen=True)
class HubRelease:
    """What the Hub holds now."""

    commit: str
    tag: str | None
    """None: nothing is released, a pull request waits for review."""
    url: str
    unchanged: bool
    """The content was there already: no commit was made."""
    pull_request: int | None = None


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
    caller = _connect(repository, patience)
    transaction = _Transaction(caller, release, compared, private=private, review=review)
    while True:
        try:
            return transaction.run()
        except CallFailed as failed:
            if not caller.wait_after(failed):
                raise


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
    token, patience = token_of_environment(), patience or Patience()
    return Caller(hub_client(os.environ.get("HF_ENDPOINT", ""), token, patience), repository, patience, token)


def _check_rights(caller: Caller, review: bool) -> dict[str, Any]:
    """The Hub's own words about the token, which may write there as far as they tell."""
    state = "nothing was published"
    caller.request("checking the name", lambda: validate_repo_id(caller.repository), state)
    who: dict[str, Any] = caller.request("checking the token", caller.api.whoami, state)
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
    private: bool
    review: bool
    commit: str | None = None
    """Holds the release on main, once that is known."""
    sent: bool = False
    """Whether a commit or a pull request was sent, which may have landed."""

    def run(self) -> HubRelease:
        """Go on to the end; after a failure again, from what the repository holds then."""
        name = self.caller.repository
        if self.commit is None:
            _check_rights(self.caller, self.review)
            head = self._head()
            if self.private and not head.private:
                raise PublishError(
                    f"{name} is public while publish.private is true: set publish.private=false, or make the "
                    "repository private on the Hub. Nothing was changed in it"
                )
            self._require_compared(head)
            if self.review and _differences(head, self.release):
                return self._propose(head)
            self.commit = self._commit(head)
        landed = f"main was moved to {self.commit}, which has no release tag, so nothing new counts as released"
        self._verify(self.commit, "verifying the commit", landed)
        self._tag(self.commit, landed)
        log.info("%s: %s is released as %s", name, self.commit, self.release.tag)
        url = f"{self.caller.endpoint}/{name}/tree/{self.release.tag}"
        return HubRelease(self.commit, self.release.tag, url, unchanged=not self.sent)

    def _require_compared(self, head: Any) -> None:
        """Refuse a head whose newest release is not the one that the gate compared with; a commit names this head as
        its parent, so that what was looked at is what it replaces."""
        if (compared := self.compared) is not None:
            self.caller.request(
                "looking for what was released last",
                lambda: require_compared(self.caller.api, self.caller.repository, head.sha, self.release, compared),
                f"main is at {head.sha}; nothing was published",
            )

    def _head(self) -> Any:
        """The head of main; the repository is created when it is not there (or not visible to us)."""
        api, name, state = self.caller.api, self.caller.repository, "nothing was published"

        def find_repository() -> Any:
            try:
                return api.model_info(name, files_metadata=True)
            except RepositoryNotFoundError:
                return None

        head = self.caller.request("looking for the repository", find_repository, state)
        if head is None:
            create = "creating the repository"
            self.caller.request(create, lambda: api.create_repo(name, private=self.private, exist_ok=True), state)
            head = self.caller.info("reading the head", None, state)
        return head

    def _commit(self, head: Any) -> str:
        """The commit of main that holds the release: its head, or one on it.

        A failed or unanswered POST may still have landed, and somebody else may have been faster: both are seen
        by reading the head again, so the same content never makes a second commit.
        """
        if not _differences(head, self.release):
            return str(head.sha)
        self.sent = True
        try:
            return str(send(self.caller.api, self.caller.repository, self.release, head).oid)
        except FAILURES as error:
            unknown = f"main was at {head.sha} before the attempt; the head could not be read since"
            head = self.caller.info("reading the head again", None, unknown)
            if not _differences(head, self.release):
                return str(head.sha)
            state = f"main is at {head.sha}, no commit of this publish is in it"
            raise self.caller.failed("the commit", error, state) from None

    def _verify(self, revision: str, step: str, state: str) -> None:
        found = _differences(self.caller.info(step, revision, state), self.release)
        if found:
            raise PublishError(
                f"{self.caller.repository} at {revision} does not hold what was sent ({'; '.join(found[:5])}). "
                f"Now: {state}. Publish again when no stage is running; if it stays, look at the repository's files"
            )

    def _tag(self, commit: str, state: str) -> None:
        self.caller.request(
            "tagging the release",
            lambda: self.caller.api.create_tag(
                self.caller.repository, tag=self.release.tag, revision=commit, exist_ok=True
            ),
            state,
        )
        # An existing tag is not moved: it must stand for this very content.
        self._verify(self.release.tag, "verifying the tag", state)

    def _propose(self, head: Any) -> HubRelease:
        """Have exactly one open pull request that makes main hold the release.

            open pull requests with this very content -> none: ONE commit that opens one -> look again, verify hashes

        The same content never has two: what is open is found by title and content, an answer that was lost is looked
        for, and of several that were opened at the same moment the lowest number stays.

        Args:
            head: main as it is now (ModelInfo); the request is based on it.
        """
        caller, state = self.caller, f"main is at {head.sha}, nothing was changed in it"
        numbers, ours = self._open_requests(state), 0
        if not numbers:
            self.sent = True
            try:
                opened = send(caller.api, caller.repository, self.release, head, create_pr=True)
            except FAILURES as error:
                if not (numbers := self._open_requests(state)):
                    raise caller.failed("opening the pull request", error, state) from None
            else:
                ours = int(opened.pr_num)
                log.info("%s: pull request %s was opened", caller.repository, ours)
                numbers = self._open_requests(f"{state}; pull request {ours} is open")
                if ours not in numbers:
                    raise PublishError(
                        f"pull request {ours} of {caller.repository} does not hold what was sent, or was closed "
                        f"meanwhile: look at {opened.pr_url}. Now: {state}"
                    )
        first = numbers[0]
        if ours > first:  # somebody's was opened just before
            comment = f"Pull request {first} proposes the same content."
            caller.request(
                f"closing pull request {ours}",
                lambda: caller.api.change_discussion_status(caller.repository, ours, "closed", comment=comment),
                f"{state}; pull requests {first} and {ours} propose the same content",
            )
        commit = str(self._content(first, state).sha)
        url = f"{caller.endpoint}/{caller.repository}/discussions/{first}"
        return HubRelease(commit, None, url, ours > first or not self.sent, first)

    def _open_requests(self, state: str) -> list[int]:
        """Numbers of open pull requests with our title whose content is the release, lowest first."""

        def list_open() -> list[int]:
            listed = self.caller.api.get_repo_discussions(self.caller.repository, discussion_type="pull_request")
            return [int(one.num) for one in listed if one.status in OPEN and one.title == self.release.title]

        numbers = self.caller.request("looking for open pull requests", list_open, state)
        return sorted(number for number in numbers if not _differences(self._content(number, state), self.release))

    def _content(self, number: int, state: str) -> Any:
        return self.caller.info(f"reading pull request {number}", f"refs/pr/{number}", state)


def send(api: Any, repository: str, release: Release, head: Any, *, create_pr: bool = False) -> Any:
    """One commit of the whole release on `head`, or a pull request with it; the client's CommitInfo.

    Raises:
        PublishError: a file is no longer what the release says; nothing was sent.
    """
    # Operations are single-use: fresh ones for every attempt.
    operations: list[Any] = [
        CommitOperationAdd(name, file.source if isinstance(file.source, bytes) else str(file.source))
        for name, file in sorted(release.files.items())
    ]
    sent = {one.path_in_repo: one.upload_info.sha256.hex() for one in operations}
    if sent != release.hashes():
        changed = ", ".join(name for name, sha256 in release.hashes().items() if sent[name] != sha256)
        raise PublishError(f"{changed} changed while it was being published: nothing was sent to {repository}")
    operations += [CommitOperationDelete(name, is_folder=False) for name in _outdated(head, release)]
    return api.create_commit(
        repository, operations, commit_message=release.title, parent_commit=head.sha, create_pr=create_pr
    )


def _outdated(info: Any, release: Release) -> list[str]:
    """Files of an earlier release that this one lacks."""
    return sorted({sibling.rfilename for sibling in info.siblings or []} & (NAMES - {*release.files, STAGE_RUNS}))


def _differences(info: Any, release: Release) -> list[str]:
    """How a revision differs from the release, in words; empty when it holds it.

    Args:
        info: the client's ModelInfo with files_metadata: git's blob hash per file, SHA-256 for large ones.
    """
    found = {sibling.rfilename: sibling for sibling in info.siblings or []}
    problems = [f"{name} of an earlier release is still there" for name in _outdated(info, release)]
    for name, file in sorted((name, release.files[name]) for name in release.content()):
        sibling = found.get(name)
        if sibling is None:
            problems.append(f"{name} is missing")
        elif sibling.lfs is not None and sibling.lfs.sha256 != file.sha256:
            problems.append(f"{name} has SHA-256 {sibling.lfs.sha256}, not {file.sha256}")
        elif sibling.lfs is None and sibling.blob_id != file.blob_id:
            problems.append(f"{name} has blob {sibling.blob_id}, not {file.blob_id}")
    return problems
