"""Provenance of a release: code revision, plan, parameters, packages and data, without host, user, path or time.

The same content gives the same provenance, byte for byte, so that publishing twice creates no second commit.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

from ipu_model.core.files import find_object
from ipu_model.core.files import read_json as read_json_file
from tasks.downstream.card import WITHHELD
from tasks.downstream.gate.subject import ReleaseSubject, expand_plan
from tasks.params.downstream import kind_params
from tasks.params.schema import Params, validate_params
from tasks.params.sections import HUB_NAME, PHASE, WORD, RuntimeSpec
from tasks.plan.code_state import NOT_RECORDED, changed_code, code_hashes, git_state, project_of
from tasks.plan.named_files import READ, find_parameters
from tasks.plan.plan_file import read_locked_stages
from tasks.records.interpretation import public_record, read_reading
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
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
)
OF_ONE_RUN = (f"{artifacts.MEASUREMENTS}/", f"{artifacts.EXECUTABLES}/")
"""Folders of outs that no stage reads, and that differ each time they are written."""
StageRuns = Mapping[str, Mapping[str, str] | None]
"""Stage -> name and start of the run that produced its outs; None: `dvc repro` did, or it was not recorded."""
RUN_FACTS = ("name", "began")
ROW_COUNTS = ("rows", "sequences", "real_tokens", "row_length")
TRAINING_FIGURES = ("steps", "final_loss", "runtime", "precision", "versions")
"""Results of a training, and its versions of Python and packages; speed and memory depend on the host."""
PREDICTION_FIGURES = ("runtime", "precision")
"""Values that determine the scores in addition to the weights."""
NOT_PUBLISHED = ("publish", "checkpoint", "tracking")
"""Sections that set where a release, its checkpoints and curves go; also `publish` of an entry."""
ON_HUB = ("dataset", "repository")
OF_HUB = ("dataset_config", "dataset_split", "dataset_revision", "revision")
"""Parameters of a dataset or model on the Hub; public if its name is public."""


def provenance(
    parameters: Mapping[str, Any],
    root: Path,
    subject: ReleaseSubject,
    checkout: Path | None = None,
) -> dict[str, Any]:
    """Return the content of `provenance.json`.

    Args:
        parameters: resolved content of params.yaml (plain values). `released_parameters` removes private values;
            other entries of downstream are not part of this release.
        checkout: base of relative paths, if `root` contains copies; None: `root`.

    Raises:
        PublishError: a report is not JSON, or contains a NaN.
    """
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    subject_parameters = {**parameters, "downstream": {subject.name: parameters["downstream"][subject.name]}}
    published = released_parameters(subject_parameters, root, checkout or root)
    stages = stages_behind(parameters, subject, root / "dvc.lock")
    rows, base, teacher = subject.row_folders(root), subject.base_model, subject.teacher
    trained = {name: artifacts.METRICS / f"{name}.json" for name in subject.trainings}
    return {
        "podium": FORMAT_VERSION,
        **code_of(root, subject),
        "code_md5": code_hashes(stages),
        "stages_sha256": hash_of(stages) if (root / "dvc.lock").is_file() else None,
        "parameters": published,
        "parameters_sha256": hash_of(published),
        "packages": versions,
        "python": platform.python_version(),
        "data": {
            "reading": {
                split: public_record(record)
                for split, record in read_reading(root / artifacts.EXAMPLES / subject.name)["inputs"].items()
            },
            "verdicts": data_verdicts(root, subject),
            "rows": _figures({name: folder / "manifest.json" for name, folder in rows.items()}, ROW_COUNTS),
        },
        "base_model": base and base_model(root / base, published["base_model"]["path"]),
        **({"teacher": _small_json(root / teacher / artifacts.TEACHER_RECORD)} if teacher else {}),
        "training": _training_figures({name: root / path for name, path in trained.items()}),
        "prediction": prediction_figures(root, subject),
        "model": _small_json(root / subject.model / "podium.json"),
    }


def stages_behind(parameters: Mapping[str, Any], subject: ReleaseSubject, lock: Path) -> dict[str, Any]:
    """Return the entries in dvc.lock of all upstream stages of a release; {} without a dvc.lock.

    Outs in which equal stages differ and which no stage reads are left out: measurements, and IPU programs, which
    differ with every compilation. The stage that scores the released model is left out: the gate states its result, and
    it reads the list of releases, which will include this one once it is published. Other stages may run again without
    changing the release.
    """
    if not lock.is_file():
        return {}
    locked, left_out = read_locked_stages(lock), subject.entry.stage("predict_released")
    behind = [
        name
        for name in expand_plan(validate_params(dict(parameters))).with_upstream([subject.entry.stage("gate")])
        if name != left_out
    ]
    recorded = {name: locked.get(name) for name in behind}
    for name, stage in recorded.items():
        if stage is not None and "outs" in stage:
            outs = [out for out in stage["outs"] if not out["path"].startswith(OF_ONE_RUN)]
            recorded[name] = {**stage, "outs": outs}
    return recorded


def stage_runs(stages: Iterable[str], root: Path) -> StageRuns:
    """Return the run that produced the outs of each stage, here or on another host, as the stage recorded it."""
    runs = {stage: (find_object(root / artifacts.stage_run_file(stage)) or {}).get("run") for stage in stages}
    return {
        stage: {name: str(run[name]) for name in RUN_FACTS}
        if isinstance(run, dict) and {*RUN_FACTS} <= {*run}
        else None
        for stage, run in runs.items()
    }


def code_of(root: Path, subject: ReleaseSubject) -> dict[str, Any]:
    """Return the revisions that stages recorded: `git` of the fine-tuning (of the gate if it has no record), and
    `stages_git` of every training and of the gate."""
    files = {name: artifacts.METRICS / f"{name}.json" for name in subject.trainings} | {"gate": subject.gate}
    states = {name: (_small_json(root / path) or {}).get("code") for name, path in files.items()}
    return {"git": states[subject.trainings[-1]] or states["gate"] or dict(NOT_RECORDED), "stages_git": states}


def describe_changes(origin: Mapping[str, Any], root: Path) -> str | None:
    """Return how the code of a project, or of a run's checkout, differs from that of a release; None if it does not."""
    project = project_of(root)
    ran, now = origin["git"]["revision"], git_state(project)["revision"]
    changed = changed_code(origin["code_md5"], project)
    if not changed and ran in (None, now):
        return None
    current, original = (f"revision {revision}" if revision else "an unrecorded revision" for revision in (now, ran))
    read = f"changed files that its stages read: {', '.join(changed)}"
    what = read if changed else "no file that its stages read changed"
    return f"the code here is {current}, but the model was built with {original}, which the release states; {what}"


def hash_of(values: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON: sorted keys, no spaces, NaN rejected."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def base_model(file: Path, folder: str) -> dict[str, Any] | None:
    """Return the base model as the stage base_model recorded it; a folder is identified by its hash.

    A path is replaced by `folder`, the published value of base_model.path.
    """
    record = _small_json(file)
    if record is None:
        return None
    values = {name: value for name, value in record.items() if name not in ("path", "left_out")}
    if "path" in record:
        values["folder"] = folder
    if "left_out" in record:  # names of weights, which users choose
        values["left_out"] = len(record["left_out"])
    return values


def data_verdicts(root: Path, subject: ReleaseSubject) -> dict[str, Any]:
    """Return, per validated data set, its validity, rows, number of checks, and names of failed checks."""
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
        if report.get("record") == "row" and report.get("notes"):  # of numbers alone; those on text may quote it
            verdicts[name]["notes"] = report["notes"]
    return verdicts


def _figures(files: Mapping[str, Path], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return these values of every existing file."""
    figures = {name: _small_json(path) for name, path in files.items()}
    return {
        name: {key: values[key] for key in names if key in values}
        for name, values in figures.items()
        if values is not None
    }


def _training_figures(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return TRAINING_FIGURES of every training, and of one that continued a model, its held-out loss next to it."""
    figures = _figures(files, (*TRAINING_FIGURES, "held_out"))
    for training in figures.values():
        held_out = training.pop("held_out", {})
        if "before" in held_out:
            training["held_out"] = {name: held_out[name] for name in ("rows", "mlm_loss", "perplexity", "before")}
    return figures


def prediction_figures(root: Path, subject: ReleaseSubject) -> dict[str, Any] | None:
    """Return PREDICTION_FIGURES of the stage predict, by split if there are several; None if it wrote none."""
    figures = _small_json(root / artifacts.metrics_file(subject.name, "predict"))
    if figures is None:
        return None
    splits = {name: values for name, values in figures.items() if isinstance(values, dict)} or {"": figures}
    by_split = {
        name: {key: values[key] for key in PREDICTION_FIGURES if key in values} for name, values in splits.items()
    }
    return by_split.get("", by_split)


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """Read a JSON object without NaN or Infinity.

    Raises:
        PublishError: it is missing, not JSON, or not an object; the message names `made_by`, the command that writes
            it.
    """

    def refuse_constant(name: str) -> float:
        raise ValueError(f"{name} is not valid in JSON, and not allowed as a metric")

    try:
        values = read_json_file(path, parse_constant=refuse_constant)
    except FileNotFoundError:
        raise PublishError(f"{path} is missing: run `{made_by}` first; nothing was published") from None
    except ValueError as error:  # also not UTF-8
        raise PublishError(
            f"{path} cannot be used ({error}): remove it and run `{made_by}` again; nothing was published"
        ) from None
    if not isinstance(values, dict):
        raise PublishError(f"{path} must contain a JSON object, found {type(values).__name__}: run `{made_by}` again")
    return values


def _small_json(path: Path) -> dict[str, Any] | None:
    return read_json(path, "dvc repro") if path.is_file() else None


def released_parameters(parameters: Mapping[str, Any], root: Path, checkout: Path | None = None) -> dict[str, Any]:
    """Return the published parameters: numbers, values of an enumeration, and names on the Hub.

    Other text is private: paths, and names of files, columns and servers. A path is replaced by the hash of its content
    in dvc.lock, which is in `root`; other text by a placeholder. New parameters are private by default. Relative paths
    begin at `checkout`, by default `root`.
    """
    dependencies = [file for stage in read_locked_stages(root / "dvc.lock").values() for file in stage.get("deps", [])]
    hashes = {PurePosixPath(file["path"]): f"md5:{file['md5']}" for file in dependencies if "md5" in file}
    inputs, base = find_parameters(parameters, READ), checkout or root

    def state_text(value: str, path: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> str:
        name, is_family = path[-1], path == ("model", "family") and re.fullmatch(WORD, value) is not None
        names_phase = (*path[:1], *path[2:]) == ("downstream", "start") or path == ("pretrain", "phases")
        if is_family or (names_phase and re.fullmatch(PHASE, value)):  # names of phases are those of sections
            return value
        if path[-2:] == ("parity", "against"):
            with contextlib.suppress(ValueError):
                RuntimeSpec.parse(value)
                return value
        if ".".join(path) in inputs:
            return hashes.get(PurePosixPath(value), WITHHELD)
        if on_hub and name in ON_HUB:
            return hub_name(holder, name, base) or WITHHELD
        is_of_public = on_hub and name in OF_HUB and any(hub_name(holder, key, base) for key in ON_HUB)
        return value if is_of_public else WITHHELD

    def state(kind: Any, value: Any, path: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> Any:
        """Return the published form of a value of type `kind`; `on_hub`: an outer section reads from the Hub."""
        if isinstance(value, str):
            return value if value in _enum_values(kind) else state_text(value, path, holder, on_hub)
        if isinstance(value, list | tuple):
            return [state(kind, item, path, holder, on_hub) for item in value]
        if not isinstance(value, Mapping):
            return value
        is_entry = path[:-1] == ("downstream",)
        section = kind_params(value["kind"]) if is_entry else kind
        fields = {field.alias or name: field.annotation for name, field in getattr(section, "model_fields", {}).items()}
        added = getattr(section, "added", None)
        hidden = NOT_PUBLISHED if fields and len(path) in (0, 2) else ()
        published = {
            str(name): state(
                fields.get(name, added), item, (*path, str(name)), value, on_hub or value.get("source") == "hub"
            )
            for name, item in value.items()
            if name not in hidden
        }
        # The kind of an entry is public: the program defines the kinds.
        return {**published, "kind": value["kind"]} if is_entry else published

    return state(Params, parameters, (), {}, False)


def hub_name(section: Mapping[str, Any], name: str, root: Path) -> str | None:
    """Return the name of a Hub dataset or model in a section of params.yaml; None for a local folder."""
    value = section.get(name)
    if not value or not HUB_NAME.fullmatch(value) or ".." in value or os.path.lexists(root / value):
        return None
    return str(value)


def _enum_values(kind: Any) -> set[str]:
    """Return the values of an enumeration type."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for part in get_args(kind) for word in _enum_values(part)}
