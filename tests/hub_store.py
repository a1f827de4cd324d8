"""What the test Hub remembers: repositories, commits, trees and, content addressed in a folder, their files."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".bin")
LFS_THRESHOLD = 10 * 2**20
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class HubError(Exception):
    """An answer that is not success: status, the Hub's error code header, and a message."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Blob:
    """One file of a commit."""

    sha256: str
    size: int
    lfs: bool
    oid: str
    """Git's blob hash: of the bytes, or of the pointer that stands for a large file."""


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    tree: dict[str, Blob]


@dataclass
class Repository:
    kind: str
    """model or dataset."""
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, dict[str, str]] = field(default_factory=dict)
    """Number -> title, status and author of a pull request; its content is the branch refs/pr/NUMBER."""
    preuploaded: dict[str, str] = field(default_factory=dict)
    """path -> uploadMode of the last pre-upload: a commit must follow it."""

    def resolve(self, revision: str) -> Commit:
        """A commit by branch, tag, full ref or hash.

        Raises:
            HubError: 404 RevisionNotFound.
        """
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        oid = self.branches.get(name) or self.tags.get(name) or name
        if oid not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]

    def history(self, branch: str = "main") -> list[Commit]:
        """Commits of a branch or a pull request, or up to a commit, oldest first."""
        found, oid = [], self.branches.get(branch, branch if branch in self.commits else None)
        while oid is not None:
            found.append(self.commits[oid])
            oid = self.commits[oid].parent
        return found[::-1]


class HubStore:
    """Repositories by (kind, name); bytes by SHA-256 in `folder`. Use under `lock`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.repositories: dict[tuple[str, str], Repository] = {}

    def create(self, kind: str, name: str, *, private: bool = False) -> Repository:
        if (kind, name) in self.repositories:
            raise HubError(409, "You already created this model repo")
        repository = Repository(kind, name, private)
        self.repositories[kind, name] = repository
        self.commit(repository, "main", {".gitattributes": self.small(GITATTRIBUTES)}, (), None, "initial commit")
        return repository

    def find(self, kind: str, name: str) -> Repository:
        found = self.repositories.get((kind, name))
        if found is None:
            raise HubError(404, "Repository not found", "RepoNotFound")
        return found

    @staticmethod
    def check_parent(repository: Repository, branch: str, parent: str | None) -> str | None:
        """The head of `branch`, which `parent` must name where it is given (else 412)."""
        head = repository.branches.get(branch)
        if parent is not None and (head is None or not head.startswith(parent)):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        return head

    def commit(
        self,
        repository: Repository,
        branch: str,
        added: dict[str, Blob],
        deleted: tuple[str, ...],
        parent: str | None,
        title: str,
    ) -> Commit:
        """One commit on `branch`; `parent`, where given, must be its head (else 412)."""
        head = self.check_parent(repository, branch, parent)
        tree = dict(repository.commits[head].tree) if head else {}
        for path in deleted:
            if path not in tree:
                raise HubError(404, f'A file with this name doesn\'t exist: "{path}"', "EntryNotFound")
            del tree[path]
        tree |= added
        lines = [head or "", title, str(len(repository.commits))]
        lines += [f"{path} {blob.sha256}" for path, blob in sorted(tree.items())]
        commit = Commit(hashlib.sha1("\n".join(lines).encode()).hexdigest(), head, title, tree)
        repository.commits[commit.oid] = commit
        repository.branches[branch] = commit.oid
        return commit

    def add_files(self, repository: Repository, files: dict[str, bytes], title: str = "add files") -> Commit:
        """A commit by someone who does not use our client."""
        with self.lock:
            return self.commit(repository, "main", {p: self.blob(p, d) for p, d in files.items()}, (), None, title)

    def blob(self, path: str, data: bytes) -> Blob:
        return self.large(self.keep(data), len(data)) if is_large(path, len(data)) else self.small(data)

    def small(self, data: bytes) -> Blob:
        return Blob(self.keep(data), len(data), False, git_blob(data))

    def large(self, sha256: str, size: int) -> Blob:
        return Blob(sha256, size, True, git_blob(pointer(sha256, size)))

    def keep(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / digest).write_bytes(data)
        return digest

    def has(self, sha256: str, size: int) -> bool:
        path = self.folder / sha256
        return path.is_file() and path.stat().st_size == size

    def read(self, sha256: str) -> bytes:
        return (self.folder / sha256).read_bytes()


def is_large(path: str, size: int) -> bool:
    """What the Hub stores by git LFS."""
    return size > 0 and (path.endswith(LFS_SUFFIXES) or size > LFS_THRESHOLD)


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """The text git stores in place of a large file (git-lfs specification, version 1)."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
