"""The newest releases in a repository of the Hub, as its history and its tags tell; nothing is downloaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.downstream.inference.fetched_releases import COMMIT, TAG, WEIGHTS
from tasks.records.hub_inputs import translate_hub_errors
from tasks.release.release import TITLE, ComparedRelease, Release, released_meanwhile
from tasks.stage.errors import InputError, PublishError


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
    with translate_hub_errors(f"{key}={repository}", repository, "its tags", api.endpoint):
        try:
            tags = _tags(api, repository)
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
        for commit in api.list_repo_commits(repository) if tags else ():
            if len(found) == count:
                break
            if (tag := _tag_of(commit, tags)) in tags:
                found.setdefault(_weights(api, repository, tags[tag]), Tagged(tag, tags[tag]))
    return list(found.values())


def require_compared(api: Any, repository: str, head: str, release: Release, compared: ComparedRelease) -> None:
    """Require that the newest release below a commit of main is the one that the gate compared with.

    Args:
        api: the Hub client.
        repository: `user/name`.
        head: of main.
        release: what is to be published; where its own weights were released last, no other model is replaced.
        compared: what the gate compared with.

    Raises:
        PublishError: another one is, or main holds what another publish has not tagged yet.
    """
    tags, file = _tags(api, repository), release.files[WEIGHTS]
    for commit in api.list_repo_commits(repository, revision=head):
        tag = _tag_of(commit, tags)
        if not TAG.fullmatch(tag):
            continue
        weights = _weights(api, repository, commit.commit_id)
        known = (file.sha256, file.blob_id, compared.weights)
        if tag in tags:
            if weights not in known and tags[tag] != compared.commit:
                raise released_meanwhile(f"{tag} of {repository}", compared)
            return
        if weights not in known and weights == _weights(api, repository, head):
            raise PublishError(
                f"main holds {tag} of {repository} (commit {commit.commit_id}), which has no tag yet: another publish "
                "is in progress, was ended before its end, or its pull request was merged. Publish that run again, "
                "which tags it, then run this one again with the same words. Nothing was published"
            )


def _tags(api: Any, repository: str) -> dict[str, str]:
    """Return the tags of releases, and the commits they point at."""
    found = {one.name: str(one.target_commit) for one in api.list_repo_refs(repository).tags}
    return {tag: commit for tag, commit in found.items() if TAG.fullmatch(tag) and COMMIT.fullmatch(commit)}


def _tag_of(commit: Any, tags: Mapping[str, str]) -> str:
    """Return the tag that points at a commit or that its title names; of any other commit no tag."""
    titled = commit.title.removeprefix(TITLE).partition(" ")[0]
    return next((tag for tag, at in tags.items() if at == commit.commit_id), titled)


def _weights(api: Any, repository: str, commit: str) -> str:
    """What tells the weights of a commit from others; the commit, where it has none."""
    info = api.model_info(repository, revision=commit, files_metadata=True)
    files = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings or []}
    return str(files.get(WEIGHTS, commit))
