"""Names such as `champion` that point to a release of a target, with their history.

A promotion first creates the record NAME-0007, which points to its release and stays; then it replaces NAME, which
takes two requests on the Hub. The record with the highest number decides, so a crash between the two loses nothing, and
the next call mends NAME. Of two promotions at the same time, one creates the record, and the other is refused.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ipu_model.core.files import exclusive_lock
from ipu_model.core.strict import nearest
from tasks.models.model_card import read_score
from tasks.release.release import CARD, PROVENANCE, folder_hashes, keep_release, list_kept, tag_of
from tasks.release.signing import SIGNATURE
from tasks.stage.errors import ParamsError, PublishError

CHAMPION = "champion"
"""Name of the release that gates compare with; without it, they compare with the newest one."""
NAME = re.compile(r"(?!main$)(?!release-)[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*")
RECORD = re.compile(rf"({NAME.pattern})-(\d{{4,}})")


@dataclass(frozen=True)
class ListedRelease:
    """One release of a target."""

    tag: str
    published: str | None
    """Day on which it was published; None: unknown."""
    score: str
    """Leading score of its card; empty if it has none."""
    signed: bool
    names: list[str]


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
    def read_card(self, release: str) -> tuple[str, bool]:
        """Return the card of a release, empty if it has none, and whether the release has a signature."""

    @abstractmethod
    def hash_files(self, release: str) -> dict[str, str]:
        """Return path -> SHA-256 of the files of a release."""

    @abstractmethod
    def create(self, record: str, release: str) -> bool:
        """Create a record; return False if it exists."""

    @abstractmethod
    def replace(self, name: str, release: str) -> None:
        """Make a name point to a release."""

    def address(self, name: str) -> str:
        """Return the word with which commands find the release of a name."""
        return f"{self.title}@{name}"

    def describe(self) -> list[ListedRelease]:
        """Return all releases, newest first."""
        listed, names = [], self.names()
        current = {name: find_named(names, name) for name in names if NAME.fullmatch(name)}
        for tag, to in self.releases().items():
            card, signed = self.read_card(tag)
            pointing = [name for name, at in sorted(current.items()) if at == to]
            listed.append(ListedRelease(tag, self.days.get(tag), read_score(card), signed, pointing))
        return listed

    def history(self, name: str) -> list[str]:
        """Return the tags of the releases that were promoted to a name, oldest first."""
        tags = {to: tag for tag, to in self.releases().items()}
        return [tags.get(to, to) for _, to in sorted(find_records(self.names(), name).items())]

    def promote(self, release: str | None, name: str = CHAMPION) -> tuple[str, str | None]:
        """Give a name to a release, by its tag or the newest; return it, and the one that had the name before, if any.

        Raises:
            ParamsError: the name is not allowed, or there is no such release.
            PublishError: there is no release, its files are not those that were published, or another promotion came
                between.
        """
        if not NAME.fullmatch(name):
            raise ParamsError(f"--as {name}: lower-case letters, digits and hyphens are required, such as {CHAMPION}")
        releases, names = self.releases(), self.names()
        if not releases:
            raise PublishError(f"{self.title} has no release yet: podium publish RUN publishes one")
        release = release or next(iter(releases))
        if release not in releases:
            raise ParamsError(f"{self.title} has no release {release}{nearest(release, list(releases))}")
        if tag_of(self.hash_files(release)) != release:
            raise PublishError(
                f"{release} of {self.title} was changed after it was published: publish that model again"
            )
        records, to = find_records(names, name), releases[release]
        if name in names and not records:
            raise PublishError(
                f"{self.title} has a tag {name} that podium releases promote did not make: choose another name"
            )
        last = max(records, default=0)
        if records.get(last) != to and not self.create(f"{name}-{last + 1:04d}", release):
            raise PublishError(f"{name} of {self.title} was given to another release meanwhile: repeat the command")
        tags = {to: tag for tag, to in releases.items()}
        while names.get(name) != to:
            self.replace(name, tags[to])
            names = self.names()
            to = find_named(names, name) or to  # of a newer promotion, whose name this one may have replaced
            tags |= {to: tag for tag, to in self.releases().items()} if to not in tags else {}
        if to != releases[release]:
            raise PublishError(f"{name} of {self.title} was given to {tags[to]} meanwhile: repeat the command")
        return release, tags.get(records.get(last, ""))

    def rollback(self, name: str = CHAMPION) -> tuple[str, str | None]:
        """Give a name back to the release that had it before; return that one and the one that lost it.

        If no other release had the name, it goes to the one published before the release that has it. Without a
        promotion, that is the newest.

        Raises:
            PublishError: there is no such release.
        """
        published, history = list(self.releases()), self.history(name)
        if not history and name != CHAMPION:
            known = sorted({match[1] for key in self.names() if (match := RECORD.fullmatch(key))} | {CHAMPION})
            raise ParamsError(f"no release of {self.title} had the name {name}{nearest(name, known)}")
        now = history[-1] if history else next(iter(published), "")
        older = published[published.index(now) + 1 :] if now in published else []
        before = [tag for tag in reversed(history) if tag != now] + older
        if not before:
            raise PublishError(
                f"{self.title} has no release before {now or 'its first'}: there is nothing to go back to"
            )
        release, _ = self.promote(before[0], name)
        return release, now


def find_records(names: Mapping[str, str], name: str) -> dict[int, str]:
    """Return number -> what the record of a promotion to `name` points to."""
    records = {match: to for key, to in names.items() if (match := RECORD.fullmatch(key)) and match[1] == name}
    return {int(match[match.lastindex or 0]): to for match, to in records.items()}


def find_named(names: Mapping[str, str], name: str = CHAMPION) -> str | None:
    """Return what a name points to; None if no release has it."""
    records = find_records(names, name)
    return records[max(records)] if records else None


class FolderReleases(NamedReleases):
    """Releases of a folder target: `published/NAME` has the newest, `published/NAME.releases` all, and the names."""

    def __init__(self, folder: Path, title: str = "") -> None:
        self.folder, self.title = folder, title or str(folder)
        self.kept = folder.with_name(f"{folder.name}.releases")

    def releases(self) -> dict[str, str]:
        """Return tag -> name of the folder in `kept`.

        Raises:
            PublishError: `folder` is none of them, so that it was changed since it was published.
        """
        folders = list_kept(self.folder)
        newest = tag_of(folder_hashes(self.folder)) if (self.folder / PROVENANCE).is_file() else ""
        if newest and newest not in folders:
            if folders:
                raise PublishError(
                    f"{self.folder} was changed since it was published: move it away, and copy the newest release in "
                    f"{self.kept} there"
                )
            folders[newest] = self.folder  # of a version that kept none
        seconds = {tag: (path / PROVENANCE).stat().st_mtime for tag, path in folders.items()}
        self.days = {tag: date.fromtimestamp(time).isoformat() for tag, time in seconds.items()}
        return {tag: tag for tag in sorted(seconds, key=lambda tag: (tag == newest, seconds[tag]), reverse=True)}

    def names(self) -> dict[str, str]:
        """Return name of a link -> name of the folder it points to."""
        return {path.name: os.readlink(path) for path in self.kept.glob("*") if path.is_symlink()}

    def address(self, name: str) -> str:
        """Return the path of a named release."""
        return os.path.join(f"{self.title}.releases", name)

    def read_card(self, release: str) -> tuple[str, bool]:
        folder = self._find(release)
        card = folder / CARD
        return card.read_text(encoding="utf-8") if card.is_file() else "", (folder / SIGNATURE).is_file()

    def hash_files(self, release: str) -> dict[str, str]:
        return folder_hashes(self._find(release))

    def _find(self, release: str) -> Path:
        return self.kept / release if (self.kept / release).is_dir() else self.folder

    def create(self, record: str, release: str) -> bool:
        """Keep the release, and create a link to it."""
        with exclusive_lock(self.folder.with_name(f".{self.folder.name}.lock")):
            if not (self.kept / release).is_dir():
                keep_release(self.folder, release)
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

    def find_other_champion(self) -> str | None:
        """Return the champion if the folder has another release, whose provenance differs."""
        champion = self.named_release()
        files = [] if champion is None else [folder / PROVENANCE for folder in (self.folder, champion)]
        is_other = all(file.is_file() for file in files) and len({file.read_bytes() for file in files}) == 2
        return champion.name if champion is not None and is_other else None

    def compared(self) -> Iterator[tuple[str, Path]]:
        """Yield tag and folder of each release: the champion, if any, then the newest first."""
        champion = find_named(self.names())
        for tag in sorted(self.releases(), key=lambda tag: tag != champion):
            yield tag, self._find(tag)
