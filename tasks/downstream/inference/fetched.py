"""Releases that the flow fetched for an entry, the newest first: released/<entry>/releases.json and a folder of each.

Two, where there are two of other weights: a model that was published already is compared with the release before it,
as it was when it was published, and never with itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ipu_model.files import read_json, sha256_of, write_json
from tasks.downstream.inference.model import CONFIG, IPU_CONFIG, PROVENANCE, WEIGHTS
from tasks.stage.errors import InputError

RECORD = "releases.json"
STATED_SCORES = "evaluation/scores.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
TAKEN = (CONFIG, WEIGHTS, PROVENANCE, IPU_CONFIG, "podium.json", STATED_SCORES, *TOKENIZER)
"""What is fetched of a release: all that answering takes, what it scored, and where it comes from."""
KEPT = 2
TAG = re.compile(r"release-[0-9a-f]{12}")
COMMIT = re.compile(r"[0-9a-f]{40}")
CHOSEN = re.compile(f"{TAG.pattern}@{COMMIT.pattern}")
"""A release as one host names it to others."""
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FetchedRelease:
    """One release, and where it is from."""

    tag: str
    """Names its folder, too."""
    repository: str | None
    """Of the Hub; None: a local folder."""
    commit: str | None
    files: Mapping[str, str]
    """Name in the release -> SHA-256."""

    @property
    def weights(self) -> str:
        """SHA-256 of the weights, which tell one model from another."""
        return self.files[WEIGHTS]

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.tag} of {self.repository}" if self.repository else self.tag


def write_fetched(folder: Path, releases: Sequence[FetchedRelease]) -> None:
    """Write the record into a folder that holds these releases."""
    write_json(folder / RECORD, {"releases": [asdict(one) for one in releases]})


def read_fetched(folder: Path) -> list[FetchedRelease]:
    """The releases in a folder, the newest first; none where nothing was released.

    Raises:
        InputError: there is no such folder, or its record is damaged.
    """
    path = folder / RECORD
    try:
        return [_release(one) for one in read_json(path)["releases"]]
    except FileNotFoundError:
        raise InputError(f"{path} is not there: `podium run` fetches what was released") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not say what was fetched ({error}): remove {folder}, `podium run` fetches it again"
        ) from None


def _release(values: Mapping[str, object]) -> FetchedRelease:
    found = FetchedRelease(**values)  # type: ignore[arg-type]
    good = (
        TAG.fullmatch(found.tag)
        and (found.commit is None or COMMIT.fullmatch(found.commit))
        and {CONFIG, WEIGHTS} <= set(found.files) <= set(TAKEN)
        and all(SHA256.fullmatch(one) for one in found.files.values())
    )
    if not good:
        raise ValueError(f"{found.tag!r:.40} is no release")
    return found


def require_intact(release: FetchedRelease, folder: Path) -> None:
    """The files of a release must be those that were fetched.

    Args:
        folder: of all releases of its entry.

    Raises:
        InputError: one is missing, or holds other bytes.
    """
    for name, sha256 in release.files.items():
        path = folder / release.tag / name
        if not path.is_file() or sha256_of(path) != sha256:
            raise InputError(
                f"{path} is not what was fetched (SHA-256 {sha256}): remove {folder}, `podium run` fetches it again"
            )
