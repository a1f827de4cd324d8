"""A release as one commit on the Hub, what it is called there, and how a revision differs from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.project.errors import PublishError
from tasks.release.release import NAMES, STAGE_RUNS, Release

TITLE = "Publish "


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


def send(api: Any, repository: str, release: Release, head: Any, *, create_pr: bool = False) -> Any:
    """One commit of the whole release on `head`, or a pull request with it; the client's CommitInfo.

    Raises:
        PublishError: a file is no longer what the release says; nothing was sent.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    # Operations are single-use: fresh ones for every attempt.
    operations: list[Any] = [
        CommitOperationAdd(name, file.source if isinstance(file.source, bytes) else str(file.source))
        for name, file in sorted(release.files.items())
    ]
    sent = {one.path_in_repo: one.upload_info.sha256.hex() for one in operations}
    if sent != release.hashes():
        changed = ", ".join(name for name, sha256 in release.hashes().items() if sent[name] != sha256)
        raise PublishError(f"{changed} changed while it was being published: nothing was sent to {repository}")
    operations += [CommitOperationDelete(name, is_folder=False) for name in outdated(head, release)]
    return api.create_commit(
        repository, operations, commit_message=title(release), parent_commit=head.sha, create_pr=create_pr
    )


def title(release: Release) -> str:
    """Title of a commit or a pull request; the same content always has the same."""
    return f"{TITLE}{release.tag}"


def tag_of_title(text: str) -> str:
    """The tag that the title of such a commit names; of any other text its first word or nothing."""
    return text.removeprefix(TITLE).partition(" ")[0]


def outdated(info: Any, release: Release) -> list[str]:
    """Files of an earlier release that this one lacks."""
    return sorted({sibling.rfilename for sibling in info.siblings or []} & (NAMES - {*release.files, STAGE_RUNS}))


def differences(info: Any, release: Release) -> list[str]:
    """How a revision differs from the release, in words; empty when it holds it.

    Args:
        info: the client's ModelInfo with files_metadata: git's blob hash per file, SHA-256 for large ones.
    """
    found = {sibling.rfilename: sibling for sibling in info.siblings or []}
    problems = [f"{name} of an earlier release is still there" for name in outdated(info, release)]
    for name, file in sorted((name, release.files[name]) for name in release.content()):
        sibling = found.get(name)
        if sibling is None:
            problems.append(f"{name} is missing")
        elif sibling.lfs is not None and sibling.lfs.sha256 != file.sha256:
            problems.append(f"{name} has SHA-256 {sibling.lfs.sha256}, not {file.sha256}")
        elif sibling.lfs is None and sibling.blob_id != file.blob_id:
            problems.append(f"{name} has blob {sibling.blob_id}, not {file.blob_id}")
    return problems
