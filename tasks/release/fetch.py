"""Fetch an entry's last release, for its gate to compare with: `downstream.*.gate.released: published`.

    python -m tasks.release.fetch NAME [--releases [TAG@COMMIT ...]]      # into released/NAME
    python -m tasks.release.fetch NAME --list                            # TAG@COMMIT of the Hub, fetches nothing

`podium run` calls it before the stages, which depend on the folder `released`; `dvc repro` alone never fetches.
"""

import argparse
import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ipu_model.core.files import link_or_copy, new_folder, sha256_of, write_json
from tasks.downstream.inference.fetched_releases import (
    CHOSEN,
    CONFIG,
    KEPT,
    PROVENANCE,
    RECORD,
    TAKEN,
    WEIGHTS,
    FetchedRelease,
    read_fetched,
)
from tasks.downstream.inference.model import InferenceModel, read_model
from tasks.downstream.inference.predict_released import choose_release, require_comparable
from tasks.params.entries import ENTRY_SECTIONS, Entry, find_entry
from tasks.params.schema import Params, load_sections
from tasks.params.sections import HUB_NAME
from tasks.plan.main import run_main
from tasks.release.hub.newest import Tagged, newest_releases, release_tags
from tasks.release.names import FolderReleases
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

Sources = Mapping[str, Callable[[str], Path]]
"""Tag -> function from a file name to the path of the file."""


@dataclass(frozen=True)
class FetchResult:
    """Content of the folder after fetching."""

    releases: list[FetchedRelease]
    changed: bool


def fetch(
    params: Params,
    entry: Entry,
    root: Path = Path(),
    these: Sequence[Tagged] | None = None,
    *,
    trained: bool = False,
) -> FetchResult:
    """Make released/<entry> contain the newest releases of the entry's publish target, completely or not at all.

    Args:
        these: releases on the Hub, newest first; None: ask the target. Another host does not see a folder: with
            `these`, nothing is fetched from one, and publishing compares.
        trained: the model of this checkout is up to date; what was fetched stays if it is still compared with the same
            release, as after its own publication.

    Raises:
        InputError: the target contains no release, or cannot be read.
    """
    folder, model = root / artifacts.FETCHED / entry.name, root / artifacts.model_folder(entry.name)
    if params.publish.target == "local" and these is not None:
        if changed := folder.exists():
            shutil.rmtree(folder)
        folder.parent.mkdir(exist_ok=True)
        return FetchResult([], changed)
    before: list[FetchedRelease] | None = None
    with contextlib.suppress(InputError):
        before = read_fetched(folder) if folder.exists() else None
        if before and not all((folder / fetched.tag / name).is_file() for fetched in before for name in fetched.files):
            before = None
    if params.publish.target == "local":
        releases, sources = list_folder_releases(entry, root)
    else:
        wanted = newest_on_hub(entry) if these is None else these
        if before is not None and [(fetched.tag, fetched.commit) for fetched in before] == [
            (tagged.tag, tagged.commit) for tagged in wanted
        ]:
            return FetchResult(before, False)
        releases, sources = _of_hub(entry, wanted)
    if before is not None and (
        releases == before or (trained and choose_release(before, model)[0] == choose_release(releases, model)[0])
    ):
        return FetchResult(before, False)
    with new_folder(folder) as fresh:
        for release in releases:
            for name, sha256 in release.files.items():
                path, source = fresh / release.tag / name, sources[release.tag](name)
                link_or_copy(source.resolve(), path)  # the Hub's cache links to its own blobs
                if sha256_of(path) != sha256:
                    raise InputError(
                        f"{source} changed while it was fetched: run again when nothing is being published"
                    )
        write_json(fresh / RECORD, {"releases": [asdict(fetched) for fetched in releases]})
    return FetchResult(releases, True)


def read_replaced(params: Params, entry: Entry) -> InferenceModel | None:
    """Return the model that publishing replaces, without its weights; None before the first release.

    Raises:
        InputError: it cannot be read.
    """
    if params.publish.target == "local":
        target = Path(entry.params.publish.folder)
        folder = FolderReleases(target).named_release() or target
        return read_model(folder) if (folder / PROVENANCE).is_file() else None
    from tasks.records.hub_inputs import download_files

    for newest in newest_on_hub(entry):
        _, _, files = download_files(
            str(entry.params.publish.repository),
            newest.commit,
            {CONFIG, PROVENANCE, "podium.json"}.intersection,
            entry.key("publish"),
            is_target=True,
        )
        return read_model(files[CONFIG].parent)
    return None


def newest_on_hub(entry: Entry) -> list[Tagged]:
    """Return the newest releases in the entry's repository.

    Raises:
        InputError: it cannot be read.
    """
    return newest_releases(str(entry.params.publish.repository), entry.key("publish", "repository"), KEPT)


def list_folder_releases(entry: Entry, root: Path) -> tuple[list[FetchedRelease], Sources]:
    """Return the champion or newest release of the entry's folder, and the last one before it with other weights.

    Raises:
        InputError: the folder contains something else.
        PublishError: it was changed since it was published.
    """
    target = root / entry.params.publish.folder
    fetched, sources = list[FetchedRelease](), dict[str, Callable[[str], Path]]()
    if target.is_dir() and any(target.iterdir()) and not (target / PROVENANCE).is_file():
        raise InputError(
            f"{entry.key('publish', 'folder')}={entry.params.publish.folder} contains no release to compare with (a "
            f"release has {PROVENANCE}, {CONFIG} and {WEIGHTS}): empty it, or set another folder"
        )
    for tag, folder in FolderReleases(target).compared():
        hashes = {name: sha256_of(folder / name) for name in TAKEN if (folder / name).is_file()}
        if missing := {PROVENANCE, CONFIG, WEIGHTS} - set(hashes):
            raise InputError(f"{folder} lacks {', '.join(sorted(missing))}: remove it, and publish that model again")
        release = FetchedRelease(tag, None, None, hashes)
        if release.weights not in [earlier.weights for earlier in fetched]:
            fetched.append(release)
            sources[tag] = folder.joinpath
        if len(fetched) == KEPT:
            break
    return fetched, sources


def _of_hub(entry: Entry, wanted: Sequence[Tagged]) -> tuple[list[FetchedRelease], Sources]:
    """Return releases of the entry's repository, in the Hub's own cache."""
    from tasks.records.hub_inputs import download_files

    repository, section = str(entry.params.publish.repository), entry.key("publish")
    releases: list[FetchedRelease] = []
    sources: dict[str, Callable[[str], Path]] = {}
    for tagged in wanted:
        _, _, files = download_files(
            repository, tagged.commit, lambda names: sorted({*TAKEN} & {*names}), section, is_target=True
        )
        if missing := sorted({CONFIG, WEIGHTS} - set(files)):
            raise InputError(f"{section}.repository={repository}: its release {tagged.tag} lacks {', '.join(missing)}")
        hashes = {name: sha256_of(path.resolve()) for name, path in files.items()}
        releases.append(FetchedRelease(tagged.tag, repository, tagged.commit, hashes))
        sources[tagged.tag] = files.__getitem__
    return releases, sources


def download_release(named: str, folder: Path) -> frozenset[str]:
    """Download all files of a Hub repository, user/name or user/name@revision, into a new folder.

    Return the release tags of that commit.

    Raises:
        InputError: it cannot be read, or has a file that would be outside the folder.
    """
    from tasks.records.hub_inputs import download_files

    repository, _, revision = named.partition("@")
    if not HUB_NAME.fullmatch(repository):
        raise InputError(f"{named} not found: name a release folder, a run, or a Hub repository (user/name)")
    commit, _, files = download_files(repository, revision or None, lambda names: names, "")
    for name, path in files.items():
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            raise InputError(f"{named} has a file named {name!r}, which is outside the repository")
        link_or_copy(path.resolve(), folder / name)
    return release_tags(repository, commit)


def parse_tagged(text: str) -> Tagged:
    """Parse TAG@COMMIT, as `--list` prints it.

    Raises:
        ParamsError: the format is wrong.
    """
    if not CHOSEN.fullmatch(text):
        raise ParamsError(f"{text!r:.80} is not a release: TAG@COMMIT is required, release-<12 digits>@<40 digits>")
    return Tagged(*text.split("@"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch the model that was released last, for the gate.")
    parser.add_argument("name", help="entry, or its stage")
    parser.add_argument("--releases", nargs="*", metavar="TAG@COMMIT", help="releases on the Hub, newest first")
    parser.add_argument("--list", action="store_true", help="print the newest releases, fetch nothing")
    parser.add_argument("--trained", action="store_true", help="the model of this checkout is up to date")
    words, params = parser.parse_args(), load_sections(*ENTRY_SECTIONS, "publish")
    entry = find_entry(params, words.name)
    if words.list:
        for tagged in newest_on_hub(entry) if params.publish.target == "hub" else ():
            print(f"{tagged.tag}@{tagged.commit}")
        return
    these = None if words.releases is None else list(map(parse_tagged, words.releases))
    fetched = fetch(params, entry, these=these, trained=words.trained)
    for newest in fetched.releases[:1]:
        require_comparable(entry, read_model(artifacts.FETCHED / entry.name / newest.tag))
    titles = ", before it ".join(release.title for release in fetched.releases)
    done = f"{titles} ({'fetched' if fetched.changed else 'already here'})"
    print(f"{entry.name}: {done if titles else 'its publish target has no release yet'}", flush=True)


if __name__ == "__main__":
    run_main(main)
