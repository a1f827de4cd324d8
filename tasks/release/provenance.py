"""Where a release comes from: code revision, plan, parameters, packages, data. No host, user, path or clock.

The same content gives the same provenance, byte for byte, so that publishing twice makes no second commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.files import find_object
from ipu_model.files import read_json as read_json_file
from tasks.downstream.gate.subject import Subject, plan_of
from tasks.params.schema import check
from tasks.plan.code_state import NOT_RECORDED, changed_code, code_hashes, git_state
from tasks.plan.plan_file import stages_of
from tasks.release.released_parameters import released_parameters
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


def provenance(
    parameters: Mapping[str, Any],
    root: Path,
    subject: Subject,
    checkout: Path | None = None,
) -> dict[str, Any]:
    """Everything the file `provenance.json` states.

    Args:
        parameters: the resolved content of params.yaml (plain values), of which released_parameters.py keeps what
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
