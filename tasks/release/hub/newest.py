"""Newest releases in a repository of the Hub, read from its history and tags without a download."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.downstream.inference.fetched_releases import COMMIT, TAG, WEIGHTS
from tasks.records.hub_inputs import translate_hub_errors
from tasks.release.names import CHAMPION, find_named
from tasks.release.release import TITLE, ComparedRelease, Release, released_meanwhile
from tasks.stage.errors import InputError, PublishError


@dataclass(frozen=True)
class Tagged:
    """Release of a repository: its tag and commit."""

    tag: str
    commit: str


def newest_releases(repository: str, key: str, count: int) -> list[Tagged]:
    """Return the newest releases that differ in their weights, newest first.

    A commit of main is a release if a tag `release-...` points at it or if its title names such a tag. When the same
    content is published again after other content, it keeps its tag. If a release has the name `champion`
    (tasks/release/names.py), it comes first.

    Raises:
        InputError: the repository may not be read, or the Hub does not answer.
    """
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    with translate_hub_errors(f"{key}={repository}", repository, "its tags"):
        try:
            refs = read_tags(api, repository)
        except errors.GatedRepoError:
            raise
        except errors.RepositoryNotFoundError:
            if os.environ.get("HF_TOKEN"):
                return []
            raise InputError(
                f"{key}={repository}: {api.endpoint} shows no such repository without a token; it may be private. "
                "Export HF_TOKEN of an account that may read it"
            ) from None
        tags, by_weights = _release_tags(refs), dict[str, Tagged]()
        ordered = order_releases(api.list_repo_commits(repository), tags) if tags else []
        champion = [tag for tag in ordered if tags[tag] == find_named(refs)]
        for tag in [*champion, *ordered]:
            if len(by_weights) == count:
                break
            by_weights.setdefault(_weights(api, repository, tags[tag]), Tagged(tag, tags[tag]))
    return list(by_weights.values())


def release_tags(repository: str, commit: str) -> frozenset[str]:
    """Return the release tags that point at a commit; for errors see `newest_releases`."""
    from huggingface_hub import HfApi

    from tasks.records.hub_inputs import choose_token

    with translate_hub_errors(repository, repository, "its tags"):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=choose_token(repository))
        return frozenset(tag for tag, at in _release_tags(read_tags(api, repository)).items() if at == commit)


def order_releases(commits: Iterable[Any], tags: Mapping[str, str]) -> list[str]:
    """Return the tags of the releases among commits of main, newest first."""
    return list(dict.fromkeys(tag for commit in commits if (tag := _tag_of(commit, tags)) in tags))


def require_compared(api: Any, repository: str, head: str, release: Release, compared: ComparedRelease) -> None:
    """Require that the champion, or else the newest release up to a commit of main, is what the gate compared with.

    If the own weights of the release to publish were released last, it replaces no other model.

    Raises:
        PublishError: it is another one, or main contains a release that another publish has not tagged yet.
    """
    refs, file = read_tags(api, repository), release.files[WEIGHTS]
    tags, champion, known = _release_tags(refs), find_named(refs), (file.sha256, file.blob_id, compared.weights)
    if champion is not None:
        if _weights(api, repository, champion) not in known and champion != compared.commit:
            raise released_meanwhile(f"{CHAMPION} of {repository}", compared)
        return
    for commit in api.list_repo_commits(repository, revision=head):
        tag = _tag_of(commit, tags)
        if not TAG.fullmatch(tag):
            continue
        weights = _weights(api, repository, commit.commit_id)
        if tag in tags:
            if weights not in known and tags[tag] != compared.commit:
                raise released_meanwhile(f"{tag} of {repository}", compared)
            return
        if weights not in known and weights == _weights(api, repository, head):
            raise PublishError(
                f"main contains {tag} of {repository} (commit {commit.commit_id}), which has no tag yet: another "
                "publish is in progress, was interrupted, or its pull request was merged. Publish that run again to "
                "add the tag, then repeat this run with the same command. Nothing was published"
            )


def read_tags(api: Any, repository: str) -> dict[str, str]:
    """Return the tags and the commits that they point at."""
    return {tag.name: str(tag.target_commit) for tag in api.list_repo_refs(repository).tags}


def _release_tags(refs: Mapping[str, str]) -> dict[str, str]:
    return {tag: commit for tag, commit in refs.items() if TAG.fullmatch(tag) and COMMIT.fullmatch(commit)}


def _tag_of(commit: Any, tags: Mapping[str, str]) -> str:
    """Return the tag that points at a commit or that its title names; otherwise a word that is not a tag."""
    titled = commit.title.removeprefix(TITLE).partition(" ")[0]
    return next((tag for tag, at in tags.items() if at == commit.commit_id), titled)


def _weights(api: Any, repository: str, commit: str) -> str:
    """Return the hash that identifies the weights of a commit, or the commit itself if it has no weights."""
    info = api.model_info(repository, revision=commit, files_metadata=True)
    files = {file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings or []}
    return str(files.get(WEIGHTS, commit))
