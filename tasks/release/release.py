"""Files of a release, their hashes, what its card states, and the local target: a folder in Hub layout."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ipu_model.core.files import clear_partial, exclusive_lock, find_object, link_or_copy, new_folder, sha256_of
from tasks.downstream.gate.subject import ReleaseSubject
from tasks.downstream.inference.fetched_releases import TAG
from tasks.params.schema import Params
from tasks.release.provenance import read_json
from tasks.release.signing import ATTESTATION, SIGNATURE, Signer, format_attestation
from tasks.stage import artifacts
from tasks.stage.errors import PublishError

log = logging.getLogger(__name__)

TITLE = "Publish "
PROVENANCE = "provenance.json"
STAGE_RUNS = "stage_runs.json"
"""Run that produced the outs of each stage of the release; not part of the tag, as equal runs give equal stages."""
CARD = "README.md"
WEIGHTS = "model.safetensors"
SETTINGS, PREFERRED = "podium.json", "preferred_file"
"""Settings that inference needs in addition to the model, if any; their key with the name of the file to serve."""
MODEL_FILES = ("config.json", WEIGHTS)
OPTIONAL_MODEL_FILES = ("ipu_config.json", *artifacts.MODULE_FILES)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
OPTIONAL_TOKENIZER_FILES = ("special_tokens_map.json", "vocab.txt")
LARGE = (WEIGHTS, *artifacts.EXPORT_FILES.values())
METRICS, SCORES = "evaluation/metrics.json", "evaluation/scores.json"
PREDICTIONS, PAGE, MISTAKES = (f"evaluation/{name}" for name in ("predictions.json", "report.html", "mistakes.csv"))
"""Examples: files that quote the data, published if publish.examples is true."""
OF_SIGNING = (ATTESTATION, SIGNATURE)
"""Files of a signed release only; not part of the tag, as signatures of the same content differ."""
NAMES = frozenset(
    {*OF_SIGNING, CARD, PROVENANCE, STAGE_RUNS, SETTINGS, METRICS, SCORES, PREDICTIONS, PAGE, MISTAKES}
    | {*artifacts.EXPORT_FILES.values()}
    | {*MODEL_FILES, *OPTIONAL_MODEL_FILES, *TOKENIZER_FILES, *OPTIONAL_TOKENIZER_FILES}
)
"""All possible file names of a release; in a target, only files with these names are replaced or removed."""


REQUIRED = {"license": ("licence", "apache-2.0"), "language": ("language", "en")}
"""Fields that a card on the Hub must have: label and example."""


@dataclass(frozen=True)
class ReleaseFile:
    """One file: its bytes (small) or the path of a private copy (large), and the hashes that git uses."""

    source: bytes | Path
    sha256: str
    """Hash of the bytes, which identifies a large file (git LFS)."""
    blob_id: str
    """SHA-1 of git's blob, which identifies a small file."""


@dataclass(frozen=True)
class Release:
    """Path in the target -> file."""

    files: Mapping[str, ReleaseFile]
    signer: Signer | None = None
    """Signs the release; None: it is not signed."""
    statement: Mapping[str, Any] = field(default_factory=dict)
    """Predicate of the attestation of a signed release."""

    @property
    def tag(self) -> str:
        """Name of the release; the same content always has the same tag."""
        return tag_of(self.hashes())

    @property
    def title(self) -> str:
        """Title of its commit and pull request; the same content always has the same title."""
        return f"{TITLE}{self.tag}"

    def hashes(self) -> dict[str, str]:
        """Return path -> SHA-256, sorted."""
        return {name: self.files[name].sha256 for name in sorted(self.files)}

    def content(self) -> dict[str, str]:
        """Return path -> SHA-256 of the files that determine the tag, sorted."""
        return content_of(self.hashes())

    def signed(self) -> Release:
        """Return this release with attestation and signature, if it is to be signed.

        Raises:
            PublishError: the key or identity cannot be used; nothing was published.
        """
        if self.signer is None or SIGNATURE in self.files:
            return self
        text = format_attestation(self.hashes(), self.statement)
        attested = replace(self, files={**self.files, ATTESTATION: release_file(text.encode())})
        with attested.temporary_folder() as folder:
            signature = self.signer.sign(folder)
        return replace(attested, files={**attested.files, SIGNATURE: release_file(signature)})

    def write(self, folder: Path) -> None:
        """Write all files below a folder."""
        for name, file in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file.source, bytes):
                path.write_bytes(file.source)
            else:
                link_or_copy(file.source, path)

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Write all files below a temporary folder with the name of the tag, next to the large files."""
        places = [file.source.parent for file in self.files.values() if isinstance(file.source, Path)]
        with tempfile.TemporaryDirectory(dir=places[0] if places else None) as scratch:
            folder = Path(scratch) / self.tag
            self.write(folder)
            yield folder


def content_of(hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a release that determine its tag: path -> SHA-256.

    The card states time and energy, which differ between equal trainings; provenance.json has the hash of the rest.
    """
    return {name: sha256 for name, sha256 in hashes.items() if name not in (STAGE_RUNS, CARD, *OF_SIGNING)}


def tag_of(hashes: Mapping[str, str]) -> str:
    """Return the tag of a release with these files: path -> SHA-256."""
    content = content_of(hashes)
    lines = (f"{content[name]}  {name}\n" for name in sorted(content))
    return f"release-{hashlib.sha256(''.join(lines).encode()).hexdigest()[:12]}"


def release_file(source: bytes | Path) -> ReleaseFile:
    """Hash a file in one pass, with constant memory."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        content, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := stream.read(1 << 20):
            content.update(block)
            blob.update(block)
    return ReleaseFile(source, content.hexdigest(), blob.hexdigest())


def build_release(
    copies: Path,
    generated: Mapping[str, str],
    subject: ReleaseSubject,
    exports: Collection[str] = (),
    *,
    examples: bool = False,
) -> Release:
    """Return the release built from copies of a checkout's outs and generated texts (path in the release -> text).

    Args:
        exports: paths of the exported files to publish.

    Raises:
        PublishError: an out is missing; the message names its stage.
    """
    model, tokenizer = copies / subject.model, copies / artifacts.TOKENIZER
    finetune, evaluate = (f"dvc repro {subject.entry.stage(name)}" for name in ("finetune", "evaluate"))
    sources = {name: (model / name, finetune) for name in MODEL_FILES}
    sources |= {name: (tokenizer / name, "dvc repro tokenizer") for name in TOKENIZER_FILES}
    if examples:
        sources[PREDICTIONS] = (copies / subject.predictions, evaluate)
        sources[PAGE] = (copies / artifacts.evaluation_page(subject.name), evaluate)
        sources[MISTAKES] = (copies / artifacts.mistakes_file(subject.name), evaluate)
    sources |= {
        name: (copies / subject.exports[name], f"dvc repro {subject.entry.stage('export')}") for name in exports
    }
    for folder, names in ((model, OPTIONAL_MODEL_FILES), (tokenizer, OPTIONAL_TOKENIZER_FILES)):
        sources |= {name: (folder / name, "") for name in names if (folder / name).is_file()}
    for path, command in sources.values():
        if not path.is_file():
            raise PublishError(f"{path} is missing: run `{command}` first; nothing was published")
    files = {name: release_file(path if name in LARGE else path.read_bytes()) for name, (path, _) in sources.items()}
    return Release(files | {name: release_file(text.encode("utf-8")) for name, text in generated.items()})


@dataclass(frozen=True)
class ComparedRelease:
    """Release that a gate compared its model with; all None if there was no other release."""

    tag: str | None
    commit: str | None
    """Commit on the Hub; None: a local folder."""
    weights: str | None
    """SHA-256 of the weights, which identifies the model."""


def read_compared(folder: Path) -> ComparedRelease:
    """Return what the stage predict_released wrote into a folder.

    Raises:
        PublishError: the record is damaged.
    """
    path = folder / artifacts.RELEASED_RECORD
    values = read_json(path, "podium run") if path.is_file() else {}
    release = values.get("release") or {}
    return ComparedRelease(release.get("tag"), release.get("commit"), values.get("weights"))


def was_fetched(folder: Path) -> bool:
    """Return False if what the stage predict_released wrote says that no releases were fetched for it."""
    return bool((find_object(folder / artifacts.RELEASED_RECORD) or {}).get("fetched", True))


def released_meanwhile(newest: str, compared: ComparedRelease) -> PublishError:
    """Return the error for a target whose newest release is not the one that the gate compared with."""
    return PublishError(
        f"{newest} was released meanwhile; the gate compared this model with {compared.tag or 'no release'}. Run the "
        "same `podium run` or `podium finetune` again, so that the gate compares with the new release. Nothing was "
        "published"
    )


def write_folder(
    release: Release, folder: Path, compared: ComparedRelease | None = None, champion: Path | None = None
) -> bool:
    """Make `folder` contain exactly this release; return False if it already did and nothing was written.

    The old release stays until the new one is complete next to it. Parallel processes wait for each other.

    Args:
        compared: release that the gate compared with, if any; no other release is replaced.
        champion: folder of the release that gates compare with now; None: the one in `folder`.

    Raises:
        PublishError: the folder contains files that publish did not write, or another release than the gate compared
            with, or is signed and this release is not; nothing is changed then.
    """
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")):
        if clear_partial(folder):
            log.info("%s: removed the remains of a killed publish", folder)
        refuse_foreign(folder)
        hashes = folder_hashes(folder) if folder.is_dir() else {}
        if content_of(hashes) == release.content() and (release.signer is None or release.signer.accepts(folder)):
            return False
        require_signed(folder, release.signer is not None)
        weights = hashes.get(WEIGHTS) if champion is None else sha256_of(champion / WEIGHTS)
        if compared is not None and weights not in (None, release.files[WEIGHTS].sha256, compared.weights):
            raise released_meanwhile(f"{champion.name if champion else tag_of(hashes)} in {folder}", compared)
        release = release.signed()
        if hashes and not list_kept(folder):  # of a version that kept none
            keep_release(folder, tag_of(hashes))
        with new_folder(folder) as fresh:
            release.write(fresh)
            if folder_hashes(fresh) != release.hashes():
                raise PublishError(
                    f"a file changed while it was being published to {folder}: wait until no stage runs, then publish "
                    f"again; {folder} is as it was"
                )
        keep_release(folder, release.tag)
        return True


def list_kept(folder: Path) -> dict[str, Path]:
    """Return tag -> folder of all releases that were published to `folder` and are kept in NAME.releases."""
    folders = folder.with_name(f"{folder.name}.releases").glob("release-*")
    return {path.name: path for path in folders if TAG.fullmatch(path.name)}


def keep_release(folder: Path, tag: str) -> None:
    """Keep the release in `folder` in NAME.releases as well: as links to the same files, which need no more space."""
    with new_folder(folder.with_name(f"{folder.name}.releases") / tag) as fresh:
        shutil.copytree(folder, fresh, copy_function=link_or_copy, dirs_exist_ok=True)


def require_signed(folder: Path, signs: bool) -> None:
    """Refuse an unsigned release in place of a signed one.

    Raises:
        PublishError: `folder` has a signed release, and the new one has no signature.
    """
    if (folder / SIGNATURE).is_file() and not signs:
        raise PublishError(unsigned(str(folder)))


def unsigned(target: str) -> str:
    """Return why an unsigned release may not replace that of a target."""
    return (
        f"{target} has a signed release, and this one would have no signature: add --set publish.signing=key (or "
        "sigstore), or publish to another target; nothing was changed"
    )


def folder_hashes(folder: Path) -> dict[str, str]:
    """Return path -> SHA-256 of every file below a folder."""
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace a folder that publish did not create, or that contains files of a user.

    Raises:
        PublishError: it is such a folder.
    """
    knob = "move it away, or set publish.folder to another one; nothing was changed"
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise PublishError(f"{folder} is not a folder: {knob}")
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if not present:
        return
    mark = folder / PROVENANCE
    if not mark.is_file() or "podium" not in read_json(mark, "python -m tasks.release.publish"):
        raise PublishError(f"{folder} exists and was not created by publish (it has no {PROVENANCE}): {knob}")
    foreign = sorted(present - NAMES)
    if foreign:
        raise PublishError(f"{folder} contains files that publish did not write ({', '.join(foreign[:5])}): {knob}")


@dataclass(frozen=True)
class Origin:
    """Origin of a model on its card; None: unknown."""

    license: str | None = None
    language: str | list[str] | None = None
    base_model: str | None = None


def resolve_origin(params: Params, base: Mapping[str, Any] | None) -> Origin:
    """Return the values in the parameters, otherwise those of `read_origin` for the base model, if there is one."""
    settings, base = params.publish, base or {}
    return Origin(
        settings.license or base.get("license"),
        settings.language or base.get("language"),
        settings.base_model or base.get("name"),
    )


def require_origin(params: Params, origin: Origin) -> None:
    """Require a licence and a language for releases on the Hub.

    Raises:
        PublishError: one is unknown; the message names the parameters to set.
    """
    unknown = [name for name in REQUIRED if not getattr(origin, name)]
    if params.publish.target != "hub" or not unknown:
        return
    titles = " and ".join(f"the {REQUIRED[name][0]}" for name in unknown)
    settings = " ".join(f"--set publish.{name}={REQUIRED[name][1]}" for name in unknown)
    where = "" if params.base_model.source == "none" else ", and the base model's README.md does not state it"
    raise PublishError(
        f"{titles} of the model {'is' if len(unknown) == 1 else 'are'} not set{where}. A release on the Hub needs "
        f"both: set the correct values, such as {settings}. Nothing was published"
    )
