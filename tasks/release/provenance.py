"""Where a release comes from: code revision, plan, parameters, packages, data. No host, user, path or clock.

The same content gives the same provenance, byte for byte, so that publishing twice makes no second commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

from ipu_model.files import find_object
from ipu_model.files import read_json as read_json_file
from tasks.downstream.card import WITHHELD
from tasks.downstream.gate.subject import Subject, plan_of
from tasks.params.downstream import kind_params
from tasks.params.schema import Params, check
from tasks.params.sections import HUB_NAME, Place
from tasks.plan.code_state import NOT_RECORDED, changed_code, code_hashes, git_state
from tasks.plan.named_files import READ, find_parameters
from tasks.plan.plan_file import stages_of
from tasks.stage import artifacts
from tasks.stage.errors import PublishError

FORMAT_VERSION = 1
PACKAGES = (
    "datasets",
    "dvc",
    "great-expectations",
    "huggingface_hub",
    "numpy",
    "pandas",
    "prefect",
    "pyarrow",
    "safetensors",
    "scikit-learn",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
)
OF_ONE_RUN = (f"{artifacts.MEASUREMENTS}/", f"{artifacts.EXECUTABLES}/")
"""Folders of outs that no stage reads, and that are others each time they are made."""
StageRuns = Mapping[str, Mapping[str, str] | None]
"""Stage -> name and begin of the run that made it; None: `dvc repro` did, or it was not recorded."""
RUN_FACTS = ("name", "began")
ROW_COUNTS = ("rows", "sequences", "real_tokens", "row_length")
TRAINING_FIGURES = ("steps", "final_loss", "runtime", "precision", "versions")
"""What a training did, and with which versions of Python and packages; how fast, and in how much memory, is the host's.
"""
PREDICTION_FIGURES = ("runtime", "precision")
"""What decided the scores besides the weights."""
NOT_PUBLISHED = ("publish", "checkpoint", "tracking")
"""Sections that say where a release, its checkpoints and curves go, not what it is; `publish` of an entry, too."""
ON_HUB = ("dataset", "repository")
OF_HUB = ("dataset_config", "dataset_split", "dataset_revision", "revision")
"""What is read of a data set or model of the Hub; public words where that one has a public name."""


def provenance(
    parameters: Mapping[str, Any],
    root: Path,
    subject: Subject,
    checkout: Path | None = None,
) -> dict[str, Any]:
    """Everything the file `provenance.json` states.

    Args:
        parameters: the resolved content of params.yaml (plain values), of which `released_parameters` keeps what
            says nothing of the user; other entries of downstream have no part in this release.
        root: the checkout.
        subject: what is released.
        checkout: what relative names count from, if `root` holds copies of it; None: `root`.

    Raises:
        PublishError: a report that should be read is not JSON, or holds a NaN.
    """
    own = {**parameters, "downstream": {subject.name: parameters["downstream"][subject.name]}}
    published = released_parameters(own, root, checkout or root)
    stages = stages_behind(parameters, subject, root / "dvc.lock")
    return {
        "podium": FORMAT_VERSION,
        **code_of(root, subject),
        "code_md5": code_hashes(stages),
        "stages_sha256": hash_of(stages) if (root / "dvc.lock").is_file() else None,
        "parameters": published,
        "parameters_sha256": hash_of(published),
        "packages": package_versions(),
        "python": platform.python_version(),
        "data": {
            "verdicts": data_verdicts(root, subject),
            "rows": _figures(
                {name: folder / "manifest.json" for name, folder in subject.row_folders(root).items()}, ROW_COUNTS
            ),
        },
        "base_model": base_model(root / subject.base_model, published["base_model"]["path"])
        if subject.base_model
        else None,
        "training": _figures(
            {name: root / artifacts.METRICS / f"{name}.json" for name in subject.trainings}, TRAINING_FIGURES
        ),
        "prediction": prediction_figures(root, subject),
        "model": _small_json(root / subject.model / "podium.json"),
    }


def stages_behind(parameters: Mapping[str, Any], subject: Subject, lock: Path) -> dict[str, Any]:
    """Return what dvc.lock says of all stages behind a release: what they read, ran and wrote; {} without a dvc.lock.

    Of what they wrote, that is left out in which equal stages differ, and which no stage reads: what they measured, and
    programs for IPUs, which a compiler makes otherwise every time.
    Left out is the stage that scores the released model: what it found is stated by the gate, and it reads which
    releases there are, this one among them once it is published. Other stages may run again, and the release stays the
    same.
    """
    if not lock.is_file():
        return {}
    stated, left_out = stages_of(lock), subject.stages["predict_released"]
    behind = [name for name in plan_of(check(dict(parameters))).behind([subject.stages["gate"]]) if name != left_out]
    return {name: _without_measurements(stated.get(name)) for name in behind}


def _without_measurements(stage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    outs = [out for out in stage.get("outs", ()) if not out["path"].startswith(OF_ONE_RUN)]
    return {**stage, **({"outs": outs} if "outs" in stage else {})}


def stage_runs(stages: Iterable[str], root: Path) -> StageRuns:
    """Return the run that made each stage, here or on another host, as the stage recorded it.

    Args:
        stages: their names.
        root: the checkout.
    """
    found = {stage: (find_object(root / artifacts.stage_run_file(stage)) or {}).get("run") for stage in stages}
    return {stage: _run_of(run) for stage, run in found.items()}


def _run_of(run: Any) -> dict[str, str] | None:
    return {name: str(run[name]) for name in RUN_FACTS} if isinstance(run, dict) and {*RUN_FACTS} <= {*run} else None


def code_of(root: Path, subject: Subject) -> dict[str, Any]:
    """Return the revisions that the stages recorded as they ran: `git`, of the fine-tuning, or of the gate where the
    fine-tuning has no record, and `stages_git`, of every training and of the gate."""
    files = {name: artifacts.METRICS / f"{name}.json" for name in subject.trainings} | {"gate": subject.gate}
    found = {name: (_small_json(root / path) or {}).get("code") for name, path in files.items()}
    return {"git": found[subject.trainings[-1]] or found["gate"] or dict(NOT_RECORDED), "stages_git": found}


def changes_since(origin: Mapping[str, Any], root: Path) -> str | None:
    """Return how the code of a checkout differs from what a release was made with, in words; None: it does not.

    Args:
        origin: the provenance.
        root: the checkout.
    """
    revisions = {None: "a revision that was not recorded"}
    ran, now = origin["git"], git_state(root)
    changed = changed_code(origin["code_md5"], root)
    if not changed and ran["revision"] in (None, now["revision"]):
        return None
    here, there = (revisions.get(one["revision"], f"revision {one['revision']}") for one in (now, ran))
    what = f"what its stages read of it changed: {', '.join(changed)}" if changed else "its stages read the same of it"
    return f"the code here is {here} now, the model was made with {there}, which the release names; {what}"


def hash_of(values: Any) -> str:
    """SHA-256 of the one text that a value has: sorted keys, no spaces, NaN refused."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def base_model(file: Path, given: str) -> dict[str, Any] | None:
    """What training started from, as the stage base_model recorded it; a folder by its hash.

    Args:
        file: the record.
        given: what stands for base_model.path.
    """
    record = _small_json(file)
    if record is None:
        return None
    kept = {name: value for name, value in record.items() if name not in ("path", "left_out")}
    if "path" in record:
        kept["folder"] = given
    if "left_out" in record:  # names that somebody gave to weights
        kept["left_out"] = len(record["left_out"])
    return kept


def package_versions() -> dict[str, str]:
    """Installed version of each of `PACKAGES`; the ones that are not installed are left out."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def data_verdicts(root: Path, subject: Subject) -> dict[str, Any]:
    """Per validated data set: was it valid, its rows, how many checks, and the names of those that failed."""
    verdicts = {}
    for name in subject.verdicts:
        if (report := _small_json(root / artifacts.validation_report(name))) is None:
            continue
        checks = report.get("checks", [])
        verdicts[name] = {
            "valid": report.get("valid"),
            "rows": report.get("rows"),
            "checks": len(checks),
            "failed": [check.get("name") for check in checks if not check.get("ok")],
        }
    return verdicts


def _figures(files: Mapping[str, Path], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """These values of every file that is there, as far as it has them."""
    found = {name: _small_json(path) for name, path in files.items()}
    return {name: {key: one[key] for key in names if key in one} for name, one in found.items() if one is not None}


def prediction_figures(root: Path, subject: Subject) -> dict[str, Any] | None:
    """Return PREDICTION_FIGURES of the stage predict, by split where there are several; None: it wrote none."""
    figures = _small_json(root / subject.prediction)
    if figures is None:
        return None
    splits = {name: one for name, one in figures.items() if isinstance(one, dict)} or {"": figures}
    stated = {name: {key: one[key] for key in PREDICTION_FIGURES if key in one} for name, one in splits.items()}
    return stated.get("", stated)


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """A JSON object without NaN or Infinity.

    Raises:
        PublishError: not there, not JSON, or not an object; names `made_by`, the command that writes it.
    """
    try:
        values = read_json_file(path, parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise PublishError(f"{path} is not there: run `{made_by}` first; nothing was published") from None
    except ValueError as error:  # also not UTF-8
        raise PublishError(
            f"{path} cannot be used ({error}): remove it and run `{made_by}` again; nothing was published"
        ) from None
    if not isinstance(values, dict):
        raise PublishError(f"{path} must hold a JSON object, found {type(values).__name__}: run `{made_by}` again")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number: JSON has none, and no metric may be {name}")


def _small_json(path: Path) -> dict[str, Any] | None:
    return read_json(path, "dvc repro") if path.is_file() else None


def released_parameters(parameters: Mapping[str, Any], root: Path, checkout: Path | None = None) -> dict[str, Any]:
    """What a release says of its parameters.

    Args:
        parameters: the resolved content of params.yaml (plain values).
        root: holds dvc.lock, which has the hashes of what was read.
        checkout: what relative names count from; None: `root`.
    """
    facts = _Facts(read_hashes(root), find_parameters(parameters, READ), checkout or root)
    return facts.section(Params, parameters, (), on_hub=False)


def hub_name(section: Mapping[str, Any], name: str, root: Path) -> str | None:
    """The name of a data set or model of the Hub, where a section of params.yaml reads one; a local folder has none."""
    value = section.get(name)
    if not value or not HUB_NAME.fullmatch(value) or ".." in value or os.path.lexists(root / value):
        return None
    return str(value)


@dataclass(frozen=True)
class _Facts:
    """What decides whether a text leaves the house."""

    hashes: Mapping[str, str]
    """Path -> what dvc.lock has of it."""
    given: Container[str]
    """Dotted names of parameters that name inputs."""
    root: Path

    def section(self, kind: Any, values: Mapping[str, Any], place: tuple[str, ...], *, on_hub: bool) -> dict[str, Any]:
        """The values of a section, of which `kind` may be a model; `on_hub`: a section around it is read of the Hub."""
        fields = {field.alias or name: field.annotation for name, field in getattr(kind, "model_fields", {}).items()}
        hidden = NOT_PUBLISHED if fields and len(place) in (0, 2) else ()
        on_hub = on_hub or values.get("source") == "hub"
        return {
            str(name): self._value(fields.get(name), value, (*place, str(name)), values, on_hub)
            for name, value in values.items()
            if name not in hidden
        }

    def _value(self, kind: Any, value: Any, place: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> Any:
        if isinstance(value, str):
            return value if value in _words(kind) else self._text(value, place, holder, on_hub)
        if isinstance(value, list | tuple):
            return [self._value(kind, one, place, holder, on_hub) for one in value]
        if not isinstance(value, Mapping):
            return value
        if place[:-1] != ("downstream",):
            return self.section(kind, value, place, on_hub=on_hub)
        # The kind of an entry is a word that the program fixes, by its folders.
        stated = self.section(kind_params(value["kind"]), value, place, on_hub=on_hub)
        return {**stated, "kind": value["kind"]}

    def _text(self, value: str, place: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> str:
        if place[-2:] == ("parity", "against") and _is_place(value):
            return value
        if ".".join(place) in self.given:
            return self.hashes.get(_plain(value), WITHHELD)
        if on_hub and place[-1] in ON_HUB:
            return hub_name(holder, place[-1], self.root) or WITHHELD
        if on_hub and place[-1] in OF_HUB and any(hub_name(holder, name, self.root) for name in ON_HUB):
            return value
        return WITHHELD


def _words(kind: Any) -> set[str]:
    """The words that a parameter of this type chooses from."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for part in get_args(kind) for word in _words(part)}


def _is_place(text: str) -> bool:
    try:
        Place.of(text)
    except ValueError:
        return False
    return True


def read_hashes(root: Path) -> dict[str, str]:
    """Path of a dependency -> `md5:` and its hash, of everything that dvc.lock names."""
    dependencies = [one for stage in stages_of(root / "dvc.lock").values() for one in stage.get("deps", [])]
    return {_plain(one["path"]): f"md5:{one['md5']}" for one in dependencies if "md5" in one}


def _plain(path: str) -> str:
    return PurePosixPath(path).as_posix()
