"""A release on the Hub as one transaction: one commit on the head we saw, verified, then a tag.

    head, or create_repo and its head -> ONE create_commit(parent_commit=head) -> verify every hash -> create_tag

Only the tag means "released". Until the commit lands the repository is as it was; after it, a state without a tag is
never taken for a release, and publishing again finds the commit and adds the tag. Whatever happened to a call is
learnt from the repository itself, never guessed.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.errors import PublishError
from tasks.release import NAMES, Release

if TYPE_CHECKING:
    from tasks.hub_calls import Caller, Patience

log = logging.getLogger(__name__)

TOKEN = "HF_TOKEN"
XET_SWITCH = "HF_HUB_DISABLE_XET"


@dataclass(frozen=True)
class HubRelease:
    """What the Hub holds now."""

    commit: str
    tag: str
    url: str
    unchanged: bool
    """The head already held this content: no commit was made."""


def release_on_hub(release: Release, repository: str, *, private: bool, patience: Patience | None = None) -> HubRelease:
    """Make the head of `repository` hold this release and tag it.

    Files of other names in the repository stay; files of an earlier release that this one lacks are removed in the
    same commit. The token comes from HF_TOKEN, the Hub's address from HF_ENDPOINT.

    Raises:
        PublishError: with what the repository looks like now and what to do.
    """
    from tasks.hub_calls import Caller, Patience, shown

    token = _token()
    api = _client(token, patience or Patience())
    caller = Caller(shown(api.endpoint), repository, token, patience or Patience())
    return _Transaction(api, caller, release).run(private)


def _token() -> str:
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        raise PublishError(
            f"publish.target is hub but the environment variable {TOKEN} is empty: export a token with write access "
            "(the Hub's settings, Access Tokens); it is read from nowhere else. Nothing was published"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise PublishError(f"{TOKEN} holds characters no token has (a blank or a line break?). Nothing was published")
    return token


def _client(token: str, patience: Patience) -> Any:
    """A Hub client for HF_ENDPOINT, with time-outs (its own default waits for ever) and without progress bars."""
    import httpx2
    from huggingface_hub import HfApi, constants, set_client_factory
    from huggingface_hub.utils import disable_progress_bars, get_session

    if XET_SWITCH not in os.environ:
        # Large files go by git LFS: one path for the Hub, its mirrors and our tests, hashed before it is sent.
        # HF_HUB_DISABLE_XET=0 chooses Xet storage.
        constants.HF_HUB_DISABLE_XET = True
    constants.HF_HUB_DISABLE_TELEMETRY = True
    disable_progress_bars()
    # Both log URLs, and the query of an upload URL is a right to write.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("huggingface_hub.utils._http").addFilter(without_queries)
    hooks = get_session().event_hooks
    timeout = httpx2.Timeout(patience.read_timeout_s, connect=patience.connect_timeout_s)
    set_client_factory(lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=timeout))
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None, token=token)


def without_queries(record: logging.LogRecord) -> bool:
    """A logging filter: cuts the query off every URL of the message."""
    record.msg, record.args = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1?...", record.getMessage()), ()
    return True


@dataclass
class _Transaction:
    api: Any
    caller: Caller
    release: Release

    def run(self, private: bool) -> HubRelease:
        name = self.caller.repository
        head = self._head(private)
        if private and not head.private:
            raise PublishError(
                f"{name} is public while publish.private is true: set publish.private=false, or make the repository "
                "private on the Hub. Nothing was changed in it"
            )
        commit, unchanged = self._commit(head)
        landed = f"main was moved to {commit}, which has no release tag, so nothing new counts as released"
        self._verify(commit, "verifying the commit", landed)
        self._tag(commit, landed)
        log.info("%s: %s is released as %s", name, commit, self.release.tag)
        url = f"{self.caller.endpoint}/{name}/tree/{self.release.tag}"
        return HubRelease(commit, self.release.tag, url, unchanged)

    def _head(self, private: bool) -> Any:
        """The head of main; the repository is created when it is not there (or not visible to us)."""
        from huggingface_hub.errors import RepositoryNotFoundError

        name, state = self.caller.repository, "nothing was published"

        def look() -> Any:
            try:
                return self.api.model_info(name, files_metadata=True)
            except RepositoryNotFoundError:
                return None

        def create() -> None:
            self.api.create_repo(name, private=private, exist_ok=True)

        head = self.caller.retried("looking for the repository", look, state)
        if head is None:
            self.caller.retried("creating the repository", create, state)
            head = self._info("reading the head", None, state)
        return head

    def _info(self, step: str, revision: str | None, state: str) -> Any:
        return self.caller.retried(
            step,
            lambda: self.api.model_info(self.caller.repository, revision=revision, files_metadata=True),
            state,
        )

    def _commit(self, head: Any) -> tuple[str, bool]:
        """Commit on the head; (commit, whether it was there before).

        A failed or unanswered POST may still have landed, and somebody else may have been faster: both are seen
        by reading the head again, so the same content never makes a second commit.
        """
        from tasks.hub_calls import FAILURES, MOVED, passes, status

        for attempt in range(self.caller.patience.attempts):
            if not differences(head, self.release):
                return str(head.sha), attempt == 0
            try:
                return self._post(head), False
            except FAILURES as error:
                lost = error
                unknown = f"main was at {head.sha} before the attempt; the head could not be read since"
            known = f"main is at {head.sha}, no commit of this publish is in it"
            if not (passes(lost) or status(lost) in MOVED):
                raise self.caller.failed("the commit", lost, known)
            if attempt + 1 < self.caller.patience.attempts:
                self.caller.wait("the commit", lost, attempt, unknown)
            head = self._info("reading the head again", None, unknown)
        if not differences(head, self.release):
            return str(head.sha), False
        raise self.caller.failed("the commit", lost, f"main is at {head.sha}, no commit of this publish is in it")

    def _post(self, head: Any) -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        # Operations are single-use: fresh ones for every attempt.
        operations: list[Any] = [
            CommitOperationAdd(name, file.source if isinstance(file.source, bytes) else str(file.source))
            for name, file in sorted(self.release.files.items())
        ]
        operations += [CommitOperationDelete(name, is_folder=False) for name in outdated(head, self.release)]
        done = self.api.create_commit(
            self.caller.repository,
            operations,
            commit_message=f"Publish {self.release.tag}",
            parent_commit=head.sha,
        )
        return str(done.oid)

    def _verify(self, revision: str, step: str, state: str) -> None:
        found = differences(self._info(step, revision, state), self.release)
        if found:
            raise PublishError(
                f"{self.caller.repository} at {revision} does not hold what was sent ({'; '.join(found[:5])}). "
                f"Now: {state}. Publish again when no stage is running; if it stays, look at the repository's files"
            )

    def _tag(self, commit: str, state: str) -> None:
        self.caller.retried(
            "tagging the release",
            lambda: self.api.create_tag(self.caller.repository, tag=self.release.tag, revision=commit, exist_ok=True),
            state,
        )
        # An existing tag is not moved: it must stand for this very content.
        self._verify(self.release.tag, "verifying the tag", state)


def outdated(info: Any, release: Release) -> list[str]:
    """Files of an earlier release that this one lacks."""
    return sorted({sibling.rfilename for sibling in info.siblings or []} & (NAMES - set(release.files)))


def differences(info: Any, release: Release) -> list[str]:
    """How a revision differs from the release, in words; empty when it holds it.

    Args:
        info: the client's ModelInfo with files_metadata: git's blob hash per file, SHA-256 for large ones.
    """
    found = {sibling.rfilename: sibling for sibling in info.siblings or []}
    problems = [f"{name} of an earlier release is still there" for name in outdated(info, release)]
    for name, file in sorted(release.files.items()):
        sibling = found.get(name)
        if sibling is None:
            problems.append(f"{name} is missing")
        elif sibling.lfs is not None and sibling.lfs.sha256 != file.sha256:
            problems.append(f"{name} has SHA-256 {sibling.lfs.sha256}, not {file.sha256}")
        elif sibling.lfs is None and sibling.blob_id != file.blob_id:
            problems.append(f"{name} has blob {sibling.blob_id}, not {file.blob_id}")
    return problems
