"""Fetch the model that an entry released last, for its gate to compare with: `downstream.*.gate.released: published`.

    python -m tasks.release.fetch NAME [--releases [TAG@COMMIT ...]]      # into released/NAME
    python -m tasks.release.fetch NAME --list                            # TAG@COMMIT of the Hub, fetch nothing

`podium run` calls it before the stages, which depend on what lies there; `dvc repro` alone never fetches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipu_model.files import link_or_copy, new_folder, sha256_of
from tasks.downstream.inference.fetched import (
    COMMIT,
    CONFIG,
    KEPT,
    PROVENANCE,
    TAG,
    TAKEN,
    WEIGHTS,
    FetchedRelease,
    read_fetched,
    write_fetched,
)
from tasks.params.downstream import PUBLISHED
from tasks.params.entries import ENTRY_SECTIONS, Entry, entry_of
from tasks.params.schema import Params, load_sections
from tasks.plan.main import run_main
from tasks.release.hub.newest import Tagged, newest_releases
from tasks.release.release import folder_hashes, tag_of
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

Sources = Mapping[str, Callable[[str], Path]]
"""Tag -> where the file of a name lies."""


@dataclass(frozen=True)
class Fetched:
    """What lies in the folder now."""

    releases: list[FetchedRelease]
    changed: bool


def fetch(params: Params, entry: Entry, root: Path = Path(), these: Sequence[Tagged] | None = None) -> Fetched:
    """Make released/<entry> hold the newest releases of where the entry publishes to, whole or not at all.

    Args:
        params: of the checkout.
        entry: its gate asks for what was published.
        root: the checkout.
        these: releases of the Hub, the newest first; None: the Hub is asked which they are.

    Raises:
        InputError: what is there is no release, or cannot be read.
    """
    folder = root / artifacts.fetched_folder(entry.name)
    before = _before(folder)
    if params.publish.target == "local":
        releases, sources = _of_folder(entry, root, folder, before or [])
    else:
        wanted = newest_on_hub(entry) if these is None else these
        if before is not None and [(one.tag, one.commit) for one in before] == [
            (one.tag, one.commit) for one in wanted
        ]:
            return Fetched(before, False)
        releases, sources = _of_hub(entry, wanted)
    if releases == before:
        return Fetched(before, False)
    with new_folder(folder) as fresh:
        for release in releases:
            _take(release, sources[release.tag], fresh / release.tag)
        write_fetched(fresh, releases)
    return Fetched(releases, True)


def newest_on_hub(entry: Entry) -> list[Tagged]:
    """The releases in the repository that the entry publishes to.

    Raises:
        InputError: it cannot be read.
    """
    return newest_releases(str(entry.params.publish.repository), entry.key("publish", "repository"), KEPT)


def _before(folder: Path) -> list[FetchedRelease] | None:
    """What was fetched before; None where not all of it is there."""
    try:
        found = read_fetched(folder)
    except InputError:
        return None
    there = all((folder / one.tag / name).is_file() for one in found for name in one.files)
    return found if there else None


def _of_folder(
    entry: Entry, root: Path, kept: Path, before: Sequence[FetchedRelease]
) -> tuple[list[FetchedRelease], Sources]:
    """The release in the folder that the entry publishes to, and the last one of other weights that lay there."""
    folder = root / entry.params.publish.folder
    hashes = folder_hashes(folder) if folder.is_dir() else {}
    if not hashes:
        return [], {}
    if not {PROVENANCE, CONFIG, WEIGHTS} <= set(hashes):
        raise InputError(
            f"{entry.key('publish', 'folder')}={entry.params.publish.folder} holds no release to compare with (a "
            f"release has {PROVENANCE}, {CONFIG} and {WEIGHTS}): empty it, or name another folder"
        )
    tag = tag_of(hashes)
    newest = FetchedRelease(tag, None, None, {name: hashes[name] for name in TAKEN if name in hashes})
    others = [one for one in before if one.weights != newest.weights][: KEPT - 1]
    sources = {one.tag: (kept / one.tag).joinpath for one in others} | {tag: folder.joinpath}
    return [newest, *others], sources


def _of_hub(entry: Entry, wanted: Sequence[Tagged]) -> tuple[list[FetchedRelease], Sources]:
    """Releases of the repository that the entry publishes to, in the Hub's own cache."""
    from tasks.records.hub_inputs import download_files

    repository, section = str(entry.params.publish.repository), entry.key("publish")
    releases: list[FetchedRelease] = []
    sources: dict[str, Callable[[str], Path]] = {}
    for one in wanted:
        _, _, files = download_files(
            repository, one.commit, lambda names: sorted({*TAKEN} & {*names}), section, is_target=True
        )
        if missing := sorted({CONFIG, WEIGHTS} - set(files)):
            raise InputError(f"{section}.repository={repository}: its release {one.tag} lacks {', '.join(missing)}")
        hashes = {name: sha256_of(path.resolve()) for name, path in files.items()}
        releases.append(FetchedRelease(one.tag, repository, one.commit, hashes))
        sources[one.tag] = files.__getitem__
    return releases, sources


def _take(release: FetchedRelease, source: Callable[[str], Path], target: Path) -> None:
    for name, sha256 in release.files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source(name).resolve(), path)  # the Hub's cache has links to its own blobs
        if sha256_of(path) != sha256:
            raise InputError(f"{source(name)} changed while it was fetched: run again once nothing is being published")


def tagged(text: str) -> Tagged:
    """TAG@COMMIT, as `--list` prints it.

    Raises:
        ParamsError: it is something else.
    """
    tag, _, commit = text.partition("@")
    if not TAG.fullmatch(tag) or not COMMIT.fullmatch(commit):
        raise ParamsError(f"{text!r:.80} is no release: TAG@COMMIT is required, release-<12 digits>@<40 digits>")
    return Tagged(tag, commit)


def _require_hub(params: Params, entry: Entry) -> None:
    if params.publish.target != "hub":
        raise ParamsError(
            f"{entry.key('gate', 'released')}={PUBLISHED} and publish.target={params.publish.target}: of a folder each "
            "worker has its own. Publish to a Hub, or state a folder of `inputs`, which workers have alike"
        )


def _told(entry: Entry, found: Fetched) -> str:
    if not found.releases:
        return f"{entry.name}: nothing was released yet where it publishes to"
    done = "fetched" if found.changed else "already here"
    return f"{entry.name}: {', before it '.join(one.title for one in found.releases)} ({done})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch the model that was released last, for the gate.")
    parser.add_argument("name", help="the entry, or what its stage is called")
    parser.add_argument("--releases", nargs="*", metavar="TAG@COMMIT", help="these, the newest first, of the Hub")
    parser.add_argument("--list", action="store_true", help="say which they are, fetch nothing")
    words, params = parser.parse_args(), load_sections(*ENTRY_SECTIONS, "publish")
    entry = entry_of(params, words.name)
    if words.list:
        _require_hub(params, entry)
        for one in newest_on_hub(entry):
            print(f"{one.tag}@{one.commit}")
        return
    these = None if words.releases is None else [tagged(text) for text in words.releases]
    print(_told(entry, fetch(params, entry, these=these)), flush=True)


if __name__ == "__main__":
    run_main(main)
