"""The files of a release, their hashes, and the local target: a folder in Hub layout, replaced as a whole."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipu_model.files import clear_partial, exclusive_lock, link_or_copy, new_folder, sha256_of
from tasks.downstream.gate.subject import Subject
from tasks.release.provenance import read_json
from tasks.stage import artifacts
from tasks.stage.errors import PublishError

log = logging.getLogger(__name__)

TITLE = "Publish "
PROVENANCE = "provenance.json"
STAGE_RUNS = "stage_runs.json"
"""The run that made each stage behind the release. Its tag does not stand for it: equal runs make equal stages."""
CARD = "README.md"
WEIGHTS = "model.safetensors"
SETTINGS = "podium.json"
"""What answering needs beside the model, where it needs something."""
MODEL_FILES = ("config.json", WEIGHTS)
OPTIONAL_MODEL_FILES = ("ipu_config.json",)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
OPTIONAL_TOKENIZER_FILES = ("special_tokens_map.json",)
METRICS, SCORES = "evaluation/metrics.json", "evaluation/scores.json"
PREDICTIONS, PAGE = "evaluation/predictions.json", "evaluation/report.html"
"""Examples: what quotes the data, published where publish.examples says so."""
NAMES = frozenset(
    {CARD, PROVENANCE, STAGE_RUNS, SETTINGS, METRICS, SCORES, PREDICTIONS, PAGE}
    | {*MODEL_FILES, *OPTIONAL_MODEL_FILES, *TOKENIZER_FILES, *OPTIONAL_TOKENIZER_FILES}
)
"""Every name a release may hold; in a target, a file of such a name is ours to replace or to remove, no other is."""


@dataclass(frozen=True)
class ReleaseFile:
    """One file: its bytes (small) or where a copy of our own lies (large), and both hashes that git knows it by."""

    source: bytes | Path
    size: int
    sha256: str
    """Hash of the bytes; names a large file (git LFS)."""
    blob_id: str
    """SHA-1 of git's blob of the bytes; names a small file."""


@dataclass(frozen=True)
class Release:
    """Path in the target -> file."""

    files: Mapping[str, ReleaseFile]

    @property
    def tag(self) -> str:
        """Name of the release: the same content always has the same tag."""
        return tag_of(self.hashes())

    @property
    def title(self) -> str:
        """Title of its commit and its pull request: the same content always has the same."""
        return f"{TITLE}{self.tag}"

    def hashes(self) -> dict[str, str]:
        """Path -> SHA-256, sorted."""
        return {name: self.files[name].sha256 for name in sorted(self.files)}

    def content(self) -> dict[str, str]:
        """Path -> SHA-256 of what its tag stands for, sorted."""
        return content_of(self.hashes())


def content_of(hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a release that its tag stands for, of all that it holds: path -> SHA-256."""
    return {name: sha256 for name, sha256 in hashes.items() if name != STAGE_RUNS}


def tag_of(hashes: Mapping[str, str]) -> str:
    """Name of the release that has these files: path -> SHA-256."""
    content = content_of(hashes)
    lines = (f"{content[name]}  {name}\n" for name in sorted(content))
    return f"release-{hashlib.sha256(''.join(lines).encode()).hexdigest()[:12]}"


def release_file(source: bytes | Path) -> ReleaseFile:
    """Hash a file in one pass, memory flat in its size."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    content, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    if isinstance(source, bytes):
        content.update(source)
        blob.update(source)
    else:
        with source.open("rb") as stream:
            while block := stream.read(1 << 20):
                content.update(block)
                blob.update(block)
    return ReleaseFile(source=source, size=size, sha256=content.hexdigest(), blob_id=blob.hexdigest())


def gather(copies: Path, generated: Mapping[str, str], subject: Subject, *, examples: bool = False) -> Release:
    """The release made of copies of a checkout's outputs and the generated texts (path in the release -> text).

    Args:
        copies: of the checkout's files.
        generated: texts that are made for the release.
        subject: what is released.
        examples: the predictions and the page of the evaluation, too.

    Raises:
        PublishError: an output is missing (names the stage that makes it).
    """
    model, tokenizer = copies / subject.model, copies / artifacts.TOKENIZER
    finetune, evaluate = (f"dvc repro {subject.stages[name]}" for name in ("finetune", "evaluate"))
    wanted = {name: (model / name, finetune) for name in MODEL_FILES}
    wanted |= {name: (tokenizer / name, "dvc repro tokenizer") for name in TOKENIZER_FILES}
    if examples:
        wanted[PREDICTIONS] = (copies / subject.predictions, evaluate)
        wanted[PAGE] = (copies / subject.page, evaluate)
    for folder, names in ((model, OPTIONAL_MODEL_FILES), (tokenizer, OPTIONAL_TOKENIZER_FILES)):
        wanted |= {name: (folder / name, "") for name in names if (folder / name).is_file()}
    for path, command in wanted.values():
        if not path.is_file():
            raise PublishError(f"{path} is not there: run `{command}` first; nothing was published")
    files = {name: release_file(path if name == WEIGHTS else path.read_bytes()) for name, (path, _) in wanted.items()}
    files |= {name: release_file(text.encode("utf-8")) for name, text in generated.items()}
    unknown = set(files) - NAMES
    if unknown:
        raise PublishError(f"{sorted(unknown)} are no names of a release; valid: {sorted(NAMES)}")
    return Release(files)


@dataclass(frozen=True)
class ComparedRelease:
    """What a gate compared its model with; all None where nothing else was released then."""

    tag: str | None
    commit: str | None
    """Of the Hub; None: a local folder."""
    weights: str | None
    """SHA-256, which tells one model from another."""


def read_compared(folder: Path) -> ComparedRelease:
    """Return what the stage predict_released wrote into a folder.

    Raises:
        PublishError: its record is damaged.
    """
    path = folder / artifacts.RELEASED_RECORD
    values = read_json(path, "podium run") if path.is_file() else {}
    release = values.get("release") or {}
    return ComparedRelease(release.get("tag"), release.get("commit"), values.get("weights"))


def released_meanwhile(found: str, compared: ComparedRelease) -> PublishError:
    """Return the refusal to replace another release than the gate compared with.

    Args:
        found: the newest release of the target.
        compared: what the gate compared with.
    """
    return PublishError(
        f"{found} was released meanwhile; the gate compared this model with {compared.tag or 'none, as none was out'}. "
        "Run it again (`podium run` or `podium finetune` with the same words): the gate then compares with what is out "
        "now. Nothing was published"
    )


def write_folder(release: Release, folder: Path, compared: ComparedRelease | None = None) -> bool:
    """Make `folder` hold exactly this release; False when it already did (then nothing is written).

    The old release stays until the new one is complete beside it. Of several processes each waits for the one before.

    Args:
        release: the files.
        folder: the target.
        compared: what the gate compared with, where it asks for what was published; no other release is replaced.

    Raises:
        PublishError: the folder holds something publish did not write, or another release than the gate compared
            with; nothing is touched then.
    """
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
        if clear_partial(folder):
            log.info("%s: cleared away what a killed publish left", folder)
        refuse_foreign(folder)
        there = folder_hashes(folder) if folder.is_dir() else {}
        if content_of(there) == release.content():
            return False
        weights = there.get(WEIGHTS)
        if compared is not None and weights not in (None, release.files[WEIGHTS].sha256, compared.weights):
            raise released_meanwhile(f"{tag_of(there)} in {folder}", compared)
        with new_folder(folder) as fresh:
            for name, file in release.files.items():
                _write(file, fresh / name)
            if folder_hashes(fresh) != release.hashes():
                raise PublishError(
                    f"a file changed while it was being published to {folder}: wait until no stage runs, then publish "
                    f"again; {folder} is as it was"
                )
        return True


def _write(file: ReleaseFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(file.source, Path):
        link_or_copy(file.source, path)
    with path.open("ab") as target:
        if isinstance(file.source, bytes):
            target.write(file.source)
        target.flush()
        os.fsync(target.fileno())


def folder_hashes(folder: Path) -> dict[str, str]:
    """Path -> SHA-256 of every file below a folder."""
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}


def refuse_foreign(folder: Path) -> None:
    """A folder that publish did not make, or that a user put files into, is not ours to replace.

    Raises:
        PublishError: it is such a folder.
    """
    knob = "move it away, or set publish.folder to another one; nothing was touched"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise PublishError(f"{folder} is no folder: {knob}")
    if not folder.is_dir():
        return
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if not found:
        return
    mark = folder / PROVENANCE
    if not mark.is_file() or "podium" not in read_json(mark, "python -m tasks.release.publish"):
        raise PublishError(f"{folder} exists and was not made by publish (it has no {PROVENANCE} of ours): {knob}")
    foreign = sorted(found - NAMES)
    if foreign:
        raise PublishError(f"{folder} holds files publish did not write ({', '.join(foreign[:5])}): {knob}")
