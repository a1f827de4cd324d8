"""Names such as `champion` that point to a release of a target, with their history.

A promotion first creates the record NAME-0007, which points to its release and stays; then it replaces NAME, which
takes two requests on the Hub. The record with the highest number decides, so a crash between the two loses nothing, and
the next call mends NAME. Of two promotions at the same time, one creates the record, and the other is refused.
"""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from ipu_model.files import exclusive_lock, link_or_copy, new_folder
from ipu_model.strict import nearest
from tasks.downstream.inference.fetched_releases import TAG
from tasks.release.release import PROVENANCE, folder_hashes, tag_of
from tasks.stage.errors import ParamsError, PublishError

CHAMPION = "champion"
"""Name of the release that gates compare with; without it, they compare with the newest one."""
NAME = re.compile(r"(?!main$)(?!release-)[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*")
RECORD = re.compile(rf"({NAME.pattern})-(\d{{4,}})")


@dataclass(frozen=True)
class Promotion:
    """Record of a name that was given to a release."""

    number: int
    release: str
    """Tag of the release."""
    published: str | None = field(default=None, compare=False)
    """Day on which the release was published; None: unknown."""


class NamedReleases(ABC):
    """Releases of a target and the names that point to them."""

    title: str
    """Target as users write it."""
    days: Mapping[str, str]
    """Tag -> day on which the release was published, as `releases` last read it."""

    @abstractmethod
    def releases(self) -> dict[str, str]:
        """Return tag -> what names point to, newest release first."""

    @abstractmethod
    def names(self) -> dict[str, str]:
        """Return name or record -> what it points to."""

    @abstractmethod
    def create(self, record: str, release: str) -> bool:
        """Create a record; return False if it exists."""

    @abstractmethod
    def replace(self, name: str, release: str) -> None:
        """Make a name point to a release."""

    def address(self, name: str) -> str:
        """Return the word with which commands find the release of a name."""
        return f"{self.title}@{name}"

    def history(self, name: str) -> list[Promotion]:
        """Return the promotions to a name, oldest first."""
        tags = {to: tag for tag, to in self.releases().items()}
        found = sorted(find_records(self.names(), name).items())
        return [Promotion(number, tags.get(to, to), self.days.get(tags.get(to, to))) for number, to in found]

    def promote(self, release: str | None, name: str = CHAMPION) -> tuple[str, str | None]:
        """Give a name to a release; return it, and the one that had the name before, if any.

        Args:
            release: its tag; None: the newest.

        Raises:
            ParamsError: the name is not allowed, or there is no such release.
            PublishError: there is no release, or another promotion came between.
        """
        if not NAME.fullmatch(name):
            raise ParamsError(f"--as {name}: lower-case letters, digits and hyphens are required, such as {CHAMPION}")
        releases, names = self.releases(), self.names()
        if not releases:
            raise PublishError(f"{self.title} has no release yet: podium publish RUN publishes one")
        release = release or next(iter(releases))
        if release not in releases:
            raise ParamsError(f"{self.title} has no release {release}{nearest(release, list(releases))}")
        records, to = find_records(names, name), releases[release]
        if name in names and not records:
            raise PublishError(f"{self.title} has a tag {name} that podium promote did not make: choose another name")
        last = max(records, default=0)
        if records.get(last) != to and not self.create(f"{name}-{last + 1:04d}", release):
            raise PublishError(
                f"{name} of {self.title} was given to another release meanwhile: check it with --history"
            )
        if names.get(name) != to:
            self.replace(name, release)
            if find_named(self.names(), name) != to:  # a newer promotion replaced the name before this one did
                raise PublishError(f"{name} of {self.title} was given to another release meanwhile: repeat the command")
        before = {to: tag for tag, to in releases.items()}.get(records.get(last, ""))
        return release, before

    def rollback(self, name: str = CHAMPION) -> tuple[str, str | None]:
        """Give a name back to the release that had it before; return that one and the one that lost it.

        Raises:
            PublishError: no other release had it before.
        """
        stack: list[str] = []
        for promotion in self.history(name):
            if stack[-2:-1] == [promotion.release]:
                stack.pop()  # the promotion was a rollback
            elif stack[-1:] != [promotion.release]:
                stack.append(promotion.release)
        if len(stack) < 2:
            raise PublishError(f"no release had the name {name} of {self.title} before: podium promote gives it to one")
        return self.promote(stack[-2], name)


def find_records(names: Mapping[str, str], name: str) -> dict[int, str]:
    """Return number -> what the record of a promotion to `name` points to."""
    found = {match: to for key, to in names.items() if (match := RECORD.fullmatch(key)) and match[1] == name}
    return {int(match[match.lastindex or 0]): to for match, to in found.items()}


def find_named(names: Mapping[str, str], name: str = CHAMPION) -> str | None:
    """Return what a name points to; None if no release has it."""
    records = find_records(names, name)
    return records[max(records)] if records else None


class FolderReleases(NamedReleases):
    """Releases of a folder target: `published/NAME` has the newest, `published/NAME.releases` those with names."""

    def __init__(self, folder: Path, title: str = "") -> None:
        self.folder, self.title = folder, title or str(folder)
        self.kept = folder.with_name(f"{folder.name}.releases")

    def releases(self) -> dict[str, str]:
        """Return tag -> name of the folder in `kept`."""
        folders = {path.name: path for path in self.kept.glob("release-*") if TAG.fullmatch(path.name)}
        newest = tag_of(folder_hashes(self.folder)) if (self.folder / PROVENANCE).is_file() else ""
        if newest:
            folders[newest] = self.folder
        seconds = {tag: (path / PROVENANCE).stat().st_mtime for tag, path in folders.items()}
        self.days = {tag: date.fromtimestamp(one).isoformat() for tag, one in seconds.items()}
        return {tag: tag for tag in sorted(seconds, key=lambda tag: (tag == newest, seconds[tag]), reverse=True)}

    def names(self) -> dict[str, str]:
        """Return name of a link -> name of the folder it points to."""
        return {path.name: os.readlink(path) for path in self.kept.glob("*") if path.is_symlink()}

    def address(self, name: str) -> str:
        """Return the path of a named release."""
        return os.path.join(f"{self.title}.releases", name)

    def create(self, record: str, release: str) -> bool:
        """Keep the release, and create a link to it."""
        with exclusive_lock(self.folder.with_name(f".{self.folder.name}.lock")):
            kept = self.kept / release
            source = kept if kept.is_dir() else self.folder
            if tag_of(folder_hashes(source)) != release:
                raise PublishError(f"{source} was changed: remove it, and publish that model again")
            if source != kept:
                with new_folder(kept) as fresh:
                    shutil.copytree(source, fresh, copy_function=link_or_copy, dirs_exist_ok=True)
            try:
                (self.kept / record).symlink_to(release)
            except FileExistsError:
                return False
        return True

    def replace(self, name: str, release: str) -> None:
        """Replace a link in one step."""
        fresh = self.kept / f".{name}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(release)
        fresh.replace(self.kept / name)

    def named_release(self, name: str = CHAMPION) -> Path | None:
        """Return the folder of the release that has a name."""
        release = find_named(self.names(), name)
        return None if release is None else self.kept / release
