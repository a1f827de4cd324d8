"""Release on the Hub as one transaction: one commit on the head that was read, its verification, then a tag.

    whoami -> head, or create_repo and its head -> ONE create_commit(parent_commit=head) -> verify hashes -> create_tag

Only the tag marks a release. In review mode a pull request replaces commit and tag: nothing is released until the
pull request is merged and publish, run again, finds its content on main, verifies it and tags it.

Until the commit lands, the repository is unchanged. A commit without a tag never counts as a release; publishing again
finds it and adds the tag. The outcome of a call is read from the repository, never guessed. After a transient failure
the transaction therefore restarts: it finds the completed steps and does not repeat them.
"""

import functools
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from tasks.release.hub.calls import FAILURES, Caller, CallFailed, Patience, hub_client
from tasks.release.hub.newest import require_compared
from tasks.release.hub.token import refusal, token_of_environment
from tasks.release.release import CARD, NAMES, OF_SIGNING, STAGE_RUNS, ComparedRelease, Release, unsigned
from tasks.release.signing import SIGNATURE
from tasks.stage.errors import PublishError

log = logging.getLogger(__name__)

OPEN = ("open", "draft")
"""States of a pull request that is not merged or closed."""


@dataclass(frozen=True)
class HubRelease:
    """Release or pull request on the Hub after a publish."""

    commit: str
    tag: str | None
    """None if nothing is released and a pull request waits for review."""
    url: str
    unchanged: bool
    """True if the content was there already and no commit was made."""
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
    """Make the head of `repository` contain this release and tag it, or propose that in a pull request.

    Files with other names stay in the repository. Files of an earlier release that this one lacks are removed in the
    same commit. The token is read from HF_TOKEN, the address of the Hub from HF_ENDPOINT.

    Args:
        repository: `user/name`; created if it does not exist.
        private: create it private, and refuse to publish to a public one.
        review: open a pull request instead of committing to main.
        compared: release that the gate compared with, if it compares with releases; no other one is replaced.

    Raises:
        PublishError: publishing failed; the message gives the current state of the repository and the fix.
    """
    caller = connect(repository, patience)
    transaction = _Transaction(caller, release, compared, private=private, review=review)
    while True:
        try:
            return transaction.run()
        except CallFailed as failed:
            if not caller.wait_after(failed):
                raise


def check_access(repositories: Sequence[str], *, review: bool, patience: Patience | None = None) -> str:
    """Check with the Hub that HF_TOKEN may publish to these repositories; nothing is created or changed there.

    Return a sentence that names the owner of the token, for display.

    Raises:
        PublishError: no token, an invalid name, no answer, or no write access.
    """
    callers = [connect(repository, patience) for repository in repositories]
    users = [_check_rights(caller, review).get("name") for caller in callers]
    return f"{users[0]} may publish to {', '.join(repositories)} at {callers[0].endpoint}"


def connect(repository: str, patience: Patience | None = None) -> Caller:
    """Return a client for a repository with the token in HF_TOKEN; raise PublishError if there is none."""
    token, patience = token_of_environment(), patience or Patience()
    return Caller(hub_client(os.environ.get("HF_ENDPOINT", ""), token, patience), repository, patience, token)


def _check_rights(caller: Caller, review: bool) -> dict[str, Any]:
    """Return the Hub's answer about the token; raise PublishError if it shows that the token may not write."""
    state = "nothing was published"
    caller.request("checking the name", lambda: validate_repo_id(caller.repository), state)
    who: dict[str, Any] = caller.request("checking the token", caller.api.whoami, state)
    if "/" not in caller.repository:
        name = f"{who.get('name')}/{caller.repository}"
        raise PublishError(
            f"publish.repository={caller.repository} has no namespace. Set it to {name}. Nothing was published"
        )
    if reason := refusal(who, caller.repository, review=review):
        raise PublishError(
            f"{reason}. Create such a token (Hub settings, Access Tokens) and export it as HF_TOKEN, or set "
            "publish.repository to a repository that this token may write to. Nothing was published"
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
    """Commit of main that contains the release, once known."""
    sent: bool = False
    """True if a commit or a pull request was sent; it may have landed."""
    signed: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Blobs of files that the tag does not cover -> whether a signature of this signer covers them."""

    def run(self) -> HubRelease:
        """Run the transaction to its end; after a failure, continue from the current state of the repository."""
        name = self.caller.repository
        if self.commit is None:
            _check_rights(self.caller, self.review)
            head = self._head()
            if self.private and not head.private:
                raise PublishError(
                    f"{name} is public, but publish.private is true. Set publish.private=false, or make the "
                    "repository private on the Hub. Nothing was changed in it"
                )
            is_signed = any(file.rfilename == SIGNATURE for file in head.siblings or [])
            if is_signed and self.release.signer is None and self._differences(head):
                raise PublishError(unsigned(name))
            if (compared := self.compared) is not None:
                # A commit names this head as its parent, so it replaces exactly what was checked.
                self.caller.request(
                    "reading the newest release",
                    lambda: require_compared(self.caller.api, name, head.sha, self.release, compared),
                    f"main is at {head.sha}; nothing was published",
                )
            if self.review and self._differences(head):
                return self._propose(head)
            self.commit = self._commit(head)
        landed = f"main was moved to {self.commit}, which has no release tag, so nothing new is released"
        self._verify(self.commit, "verifying the commit", landed)
        tag = {"tag": self.release.tag, "revision": self.commit, "exist_ok": True}
        self.caller.request("tagging the release", lambda: self.caller.api.create_tag(name, **tag), landed)
        # An existing tag must point at the same content; it is moved only from a commit without this signature.
        if self.release.signer and not self._is_signed(self.caller.info("reading the tag", self.release.tag, landed)):
            moving = f"main was moved to {self.commit}; {self.release.tag} is on an earlier commit, or was removed"
            delete = functools.partial(self.caller.api.delete_tag, name, tag=self.release.tag)
            self.caller.request("moving the tag", delete, moving)
            self.caller.request("tagging the release", lambda: self.caller.api.create_tag(name, **tag), moving)
        self._verify(self.release.tag, "verifying the tag", landed)
        log.info("%s: %s is released as %s", name, self.commit, self.release.tag)
        url = f"{self.caller.endpoint}/{name}/tree/{self.release.tag}"
        return HubRelease(self.commit, self.release.tag, url, unchanged=not self.sent)

    def _head(self) -> Any:
        """Return the head of main; create the repository if it does not exist or is not visible to the token."""
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
        """Return the commit of main that contains the release: its head, or a new commit on it.

        A failed or unanswered POST may still have landed, and another publisher may have been faster. Reading the
        head again shows both, so the same content never gets a second commit.
        """
        if not self._differences(head):
            return str(head.sha)
        self.release = self.release.signed()
        self.sent = True
        try:
            return str(send(self.caller.api, self.caller.repository, self.release, head).oid)
        except FAILURES as error:
            unknown = f"main was at {head.sha} before the attempt; the head could not be read afterwards"
            head = self.caller.info("reading the head again", None, unknown)
            if not self._differences(head):
                return str(head.sha)
            state = f"main is at {head.sha}, without a commit of this publish"
            raise self.caller.failed("the commit", error, state) from None

    def _verify(self, revision: str, step: str, state: str) -> None:
        differences = self._differences(self.caller.info(step, revision, state))
        if differences:
            raise PublishError(
                f"{self.caller.repository} at {revision} differs from the release ({'; '.join(differences[:5])}). "
                f"Now: {state}. Publish again when no stage is running; if this repeats, check the repository's files"
            )

    def _propose(self, head: Any) -> HubRelease:
        """Ensure that exactly one open pull request makes main contain the release.

            open pull requests with the same content -> none: ONE commit that opens one -> list again, verify hashes

        The same content never has two: open pull requests are found by title and content, even if the Hub's answer
        was lost. If several were opened at the same time, the one with the lowest number stays open.
        """
        caller, state = self.caller, f"main is at {head.sha}, nothing was changed in it"
        numbers, ours = self._open_requests(state), 0
        if not numbers:
            self.release = self.release.signed()
            self.sent = True
            try:
                opened = send(caller.api, caller.repository, self.release, head, create_pr=True)
            except FAILURES as error:
                if not (numbers := self._open_requests(state)):
                    raise caller.failed("opening the pull request", error, state) from None
            else:
                ours = int(opened.pr_num)
                log.info("%s: opened pull request %s", caller.repository, ours)
                numbers = self._open_requests(f"{state}; pull request {ours} is open")
                if ours not in numbers:
                    raise PublishError(
                        f"pull request {ours} of {caller.repository} differs from the release or was closed "
                        f"meanwhile. Check {opened.pr_url}. Now: {state}"
                    )
        first = numbers[0]
        if ours > first:  # another publisher's was opened just before
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
        """Return the numbers of open pull requests with the title and content of the release, lowest first."""

        def list_open() -> list[int]:
            listed = self.caller.api.get_repo_discussions(self.caller.repository, discussion_type="pull_request")
            return [int(pull.num) for pull in listed if pull.status in OPEN and pull.title == self.release.title]

        numbers = self.caller.request("looking for open pull requests", list_open, state)
        return sorted(number for number in numbers if not self._differences(self._content(number, state)))

    def _differences(self, info: Any) -> list[str]:
        """Return the differences between a revision and the release, its signature included; empty if there are
        none."""
        differences = _differences(info, self.release)
        if not differences and self.release.signer and not self._is_signed(info):
            return ["it has no signature of this signer that covers its files"]
        return differences

    def _is_signed(self, info: Any) -> bool:
        """Return True if this signer's signature covers a revision with the content of the release."""
        apart = (CARD, STAGE_RUNS, *OF_SIGNING)
        blobs = {file.rfilename: str(file.blob_id) for file in info.siblings or [] if file.rfilename in apart}
        if {*apart} - {*blobs}:
            return False
        key = tuple(blobs[name] for name in apart)
        if key not in self.signed:
            api, name, signer = self.caller.api, self.caller.repository, self.release.signer
            content = {path: self.release.files[path] for path in self.release.content()}
            with tempfile.TemporaryDirectory() as scratch, Release(content).temporary_folder() as folder:
                for path in apart:
                    get = functools.partial(api.hf_hub_download, name, path, revision=info.sha, local_dir=scratch)
                    self.caller.request("reading the signature", get, "nothing was changed")
                    Path(scratch, path).rename(folder / path)
                self.signed[key] = signer is not None and signer.accepts(folder)
        return self.signed[key]

    def _content(self, number: int, state: str) -> Any:
        return self.caller.info(f"reading pull request {number}", f"refs/pr/{number}", state)


def send(api: Any, repository: str, release: Release, head: Any, *, create_pr: bool = False) -> Any:
    """Send the whole release as one commit on `head`, or as a pull request; return the client's CommitInfo.

    Raises:
        PublishError: a file no longer has its hash in the release; nothing was sent.
    """
    # Operations are single-use: create new ones for every attempt.
    operations: list[Any] = [
        CommitOperationAdd(name, file.source if isinstance(file.source, bytes) else str(file.source))
        for name, file in sorted(release.files.items())
    ]
    hashes = {operation.path_in_repo: operation.upload_info.sha256.hex() for operation in operations}
    if hashes != release.hashes():
        changed = ", ".join(name for name, sha256 in release.hashes().items() if hashes[name] != sha256)
        raise PublishError(f"{changed} changed during publishing: nothing was sent to {repository}. Publish again")
    operations += [CommitOperationDelete(name, is_folder=False) for name in _outdated(head, release)]
    return api.create_commit(
        repository, operations, commit_message=release.title, parent_commit=head.sha, create_pr=create_pr
    )


def _outdated(info: Any, release: Release) -> list[str]:
    """Return the files of an earlier release that this one lacks."""
    return sorted({sibling.rfilename for sibling in info.siblings or []} & (NAMES - {*release.files, STAGE_RUNS}))


def _differences(info: Any, release: Release) -> list[str]:
    """Return the differences between a revision and the release as text; empty if there are none.

    The client's ModelInfo, with files_metadata, has the Git blob hash of each file, and the SHA-256 of large ones.
    """
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    outdated = [name for name in _outdated(info, release) if name not in OF_SIGNING]  # publishing unsigned keeps them
    problems = [f"{name} of an earlier release is still there" for name in outdated]
    for name, file in sorted((name, release.files[name]) for name in release.content()):
        sibling = siblings.get(name)
        if sibling is None:
            problems.append(f"{name} is missing")
        elif sibling.lfs is not None and sibling.lfs.sha256 != file.sha256:
            problems.append(f"{name} has SHA-256 {sibling.lfs.sha256}, not {file.sha256}")
        elif sibling.lfs is None and sibling.blob_id != file.blob_id:
            problems.append(f"{name} has blob {sibling.blob_id}, not {file.blob_id}")
    return problems
