"""Releases that the flow fetched for an entry, newest first: released/<entry>/releases.json and one folder per release.

Up to two releases with different weights are kept: a model that is already published is compared with the release
before it, never with itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipu_model.core.files import read_json, sha256_of
from tasks.downstream.inference.model import CONFIG, IPU_CONFIG, PROVENANCE, WEIGHTS
from tasks.stage.errors import InputError

RECORD = "releases.json"
STATED_SCORES = "evaluation/scores.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
TAKEN = (CONFIG, WEIGHTS, PROVENANCE, IPU_CONFIG, "podium.json", STATED_SCORES, *TOKENIZER)
"""Files fetched from a release: everything needed for inference, its scores and its provenance."""
KEPT = 2
TAG = re.compile(r"release-[0-9a-f]{12}")
COMMIT = re.compile(r"[0-9a-f]{40}")
CHOSEN = re.compile(f"{TAG.pattern}@{COMMIT.pattern}")
"""Release identifier that hosts exchange: tag@commit."""
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FetchedRelease:
    """One fetched release and its source."""

    tag: str
    """Tag of the release and name of its folder."""
    repository: str | None
    """Hub repository; None for a local folder."""
    commit: str | None
    files: Mapping[str, str]
    """File name -> SHA-256."""

    @property
    def weights(self) -> str:
        """SHA-256 of the weights; identifies the model."""
        return self.files[WEIGHTS]

    @property
    def title(self) -> str:
        """Name for users."""
        return f"{self.tag} of {self.repository}" if self.repository else self.tag


def read_fetched(folder: Path) -> list[FetchedRelease]:
    """Return the releases in a folder, newest first; empty before the first release, and if none was fetched.

    Raises:
        InputError: the record of the folder is damaged.
    """
    path = folder / RECORD
    if not folder.exists():  # plain `dvc repro` fetches nothing
        return []
    try:
        return [_release(values) for values in read_json(path)["releases"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}). Remove {folder}; `podium run` fetches it again") from None


def _release(values: Mapping[str, object]) -> FetchedRelease:
    release = FetchedRelease(**values)  # type: ignore[arg-type]
    good = (
        TAG.fullmatch(release.tag)
        and (release.commit is None or COMMIT.fullmatch(release.commit))
        and {CONFIG, WEIGHTS} <= set(release.files) <= set(TAKEN)
        and all(SHA256.fullmatch(digest) for digest in release.files.values())
    )
    if not good:
        raise ValueError(f"{release.tag!r:.40} is not a release")
    return release


def verify_release(release: FetchedRelease, folder: Path) -> None:
    """Check that the files of a release are unchanged since they were fetched.

    Args:
        folder: folder of all releases of the entry.

    Raises:
        InputError: a file is missing or was changed.
    """
    for name, sha256 in release.files.items():
        path = folder / release.tag / name
        if not path.is_file() or sha256_of(path) != sha256:
            raise InputError(
                f"{path} changed since it was fetched (SHA-256 {sha256}). Remove {folder}; "
                "`podium run` fetches it again"
            )
