"""Names of releases on the Hub: tags, which the Hub can create and delete, but not move (tasks/release/names.py)."""

import contextlib
from pathlib import Path
from typing import Any

from huggingface_hub.errors import RevisionNotFoundError

from ipu_model.core.files import sha256_of
from tasks.downstream.inference.fetched_releases import TAG
from tasks.release.hub.calls import Caller, CallFailed, status
from tasks.release.hub.newest import order_releases, read_tags
from tasks.release.hub.transaction import connect
from tasks.release.names import NAME, RECORD, NamedReleases
from tasks.release.release import CARD, NAMES
from tasks.release.signing import SIGNATURE
from tasks.stage.errors import PublishError

EXISTS = 409
"""Status code for a tag that exists already."""


class HubReleases(NamedReleases):
    """Releases of a repository on the Hub."""

    def __init__(self, repository: str) -> None:
        """Connect with the token in HF_TOKEN.

        Raises:
            PublishError: there is no token.
        """
        self.title = repository
        self._caller: Caller = connect(repository, None)
        self._tags: dict[str, str] | None = None

    def releases(self) -> dict[str, str]:
        """Return tag -> commit."""
        tags = {tag: commit for tag, commit in self._read_tags().items() if TAG.fullmatch(tag)}
        commits = self._call("reading the history", lambda api: api.list_repo_commits(self.title)) if tags else ()
        days = {commit.commit_id: commit.created_at.date().isoformat() for commit in commits}
        self.days = {tag: days[commit] for tag, commit in tags.items() if commit in days}
        return {tag: tags[tag] for tag in order_releases(commits, tags)}

    def names(self) -> dict[str, str]:
        """Return name or record -> commit."""
        return {tag: at for tag, at in self._read_tags().items() if NAME.fullmatch(tag) or RECORD.fullmatch(tag)}

    def read_card(self, release: str) -> tuple[str, bool]:
        names = {file.rfilename for file in self._list_files(release)}
        card = self._download(release, CARD).read_text(encoding="utf-8") if CARD in names else ""
        return card, SIGNATURE in names

    def hash_files(self, release: str) -> dict[str, str]:
        """Return path -> SHA-256 of the files of a release; the Hub states those of large files."""
        files = [file for file in self._list_files(release) if file.rfilename in NAMES]
        return {
            file.rfilename: file.lfs.sha256 if file.lfs else sha256_of(self._download(release, file.rfilename))
            for file in files
        }

    def _list_files(self, release: str) -> list[Any]:
        revision, step = self._read_tags()[release], f"reading {release}"
        info = self._call(step, lambda api: api.model_info(self.title, revision=revision, files_metadata=True))
        return list(info.siblings or [])

    def _download(self, release: str, name: str) -> Path:
        revision, step = self._read_tags()[release], f"reading {name}"
        return Path(self._call(step, lambda api: api.hf_hub_download(self.title, name, revision=revision)))

    def create(self, record: str, release: str) -> bool:
        """Create a tag for a record; return False if it exists."""
        commit, text = self._read_tags()[release], f"{record} points to {release}"
        try:
            self._call(
                f"creating the tag {record}",
                lambda api: api.create_tag(self.title, tag=record, tag_message=text, revision=commit),
            )
        except CallFailed as failed:
            if status(failed.error) == EXISTS:
                return False
            raise
        self._tags = None
        return True

    def replace(self, name: str, release: str) -> None:
        """Delete the tag of a name and create it again; between the two, the name's record tells where it points."""
        if name in self._read_tags():
            self._call(f"deleting the tag {name}", lambda api: _delete(api, self.title, name))
        if not self.create(name, release):
            self._tags = None
            if self.names().get(name) != self.releases()[release]:
                raise PublishError(f"{name} of {self.title} was given to another release meanwhile: repeat the command")

    def _read_tags(self) -> dict[str, str]:
        if self._tags is None:
            self._tags = dict(self._call("reading the tags", lambda api: read_tags(api, self.title)))
        return self._tags

    def _call(self, step: str, call: Any) -> Any:
        state = "the name may be missing; the same command mends it"
        while True:
            try:
                return self._caller.request(step, lambda: call(self._caller.api), state)
            except CallFailed as failed:
                if status(failed.error) == EXISTS or not self._caller.wait_after(failed):
                    raise


def _delete(api: Any, repository: str, tag: str) -> None:
    with contextlib.suppress(RevisionNotFoundError):  # another call deleted it
        api.delete_tag(repository, tag=tag)
