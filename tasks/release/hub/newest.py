"""The newest releases in a repository of the Hub, as its history and its tags tell; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.downstream.applying.fetched import COMMIT, TAG, WEIGHTS
from tasks.project.errors import InputError
from tasks.reading.hub_inputs import failures_named
from tasks.release.hub.commit import tag_of_title


@dataclass(frozen=True)
class Tagged:
    """A release of a repository."""

    tag: str
    commit: str


def newest_releases(repository: str, key: str, count: int) -> list[Tagged]:
    """The newest releases that differ in their weights, the newest first.

    A commit of main is a release where a tag `release-...` points at it, or where it says in its title that it holds
    what such a tag has: the same content published again, after another, keeps its tag.

    Args:
        repository: `user/name`.
        key: of params.yaml, which messages name.
        count: so many at most.

    Raises:
        InputError: no right to read it, or no answer.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    with failures_named(f"{key}={repository}", repository, "its tags", api.endpoint):
        try:
            tags = {one.name: str(one.target_commit) for one in api.list_repo_refs(repository).tags}
        except errors.GatedRepoError:
            raise
        except errors.RepositoryNotFoundError:
            if os.environ.get("HF_TOKEN"):
                return []
            raise InputError(
                f"{key}={repository}: {api.endpoint} shows no such repository without a token, and a private one is "
                "not told from none: export HF_TOKEN of an account that may read it"
            ) from None
        found: dict[Any, Tagged] = {}
        for one in _in_history(api, repository, {tag: commit for tag, commit in tags.items() if TAG.fullmatch(tag)}):
            if len(found) == count:
                break
            found.setdefault(_weights(api, repository, one), one)
    return list(found.values())


def _in_history(api: Any, repository: str, tags: dict[str, str]) -> Iterator[Tagged]:
    of_commit = {commit: tag for tag, commit in tags.items()}
    for commit in api.list_repo_commits(repository) if tags else ():
        tag = of_commit.get(commit.commit_id) or tag_of_title(commit.title)
        if tag in tags and COMMIT.fullmatch(tags[tag]):
            yield Tagged(tag, tags[tag])


def _weights(api: Any, repository: str, release: Tagged) -> str:
    """What tells the weights of a release from others; the commit, where it has none."""
    info = api.model_info(repository, revision=release.commit, files_metadata=True)
    files = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings or []}
    return str(files.get(WEIGHTS, release.commit))
