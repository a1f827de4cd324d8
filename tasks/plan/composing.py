"""plan.yaml: the items of the stages in dvc.yaml, and where each starts from, derived from params.yaml.

DVC has no conditions. Which phases, entries and input files a plan has is computed here from validated parameters, and
dvc.yaml reads it. `podium run` writes plan.yaml before every run, and `podium plan --write` on demand; a stage refuses
a plan.yaml that does not match params.yaml.

If a stage does not use something that other stages of its group read, a path that it depends on anyway takes its place,
because DVC requires the list of dependencies to be as dvc.yaml writes it.

Outs of stages that are no longer in the plan are removed: DVC leaves them, and a stage that reads their folder would
still see them. Their contents stay in DVC's cache for a plan that has these stages again.
"""

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ipu_model.core.files import write_text
from tasks.params.entries import BASE, Entry, entries, find_upstream, learns_text, needs_corpus, start_model
from tasks.params.schema import PHASES, Params
from tasks.params.sections import PRETRAINING_HEADS, RuntimeSpec
from tasks.params.strict_yaml import yaml_text
from tasks.plan.dvc_records import LOCK, compute_md5
from tasks.plan.kinds import load_spec
from tasks.plan.plan_file import read_dvc_file, read_locked_stages, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

ROOT_KEY = "plan"
"""Top-level key; DVC merges the file with params.yaml, which must not have the same key."""
WRITE = "podium plan --write"
CODE = "tasks/jobs"
"""Placeholder for inputs that a training does not use."""
FOLDERS = (
    "data",
    "evaluation",
    "executables",
    "exports",
    "measurements",
    "metrics",
    "models",
    "plots",
    "predictions",
    "reports",
)
"""Folders that stages write to; nothing else is removed, whatever dvc.lock says."""
LOCK_SCHEMA = "2.0"
"""Schema version of the dvc.lock that DVC 3 writes."""
HEADER = f"""# Items of the stages in dvc.yaml, written by `podium run` and `{WRITE}`: edit params.yaml, not this file.
"""


def compose(params: Params) -> dict[str, Any]:
    """Return the content of plan.yaml."""
    phases = params.pretrain.phases
    corpus, base, ahead = needs_corpus(params, phases), params.base_model.source != "none", _compiles_ahead(params)
    kind, text = params.pretrain_rows.row_kind, str(artifacts.CORPUS)
    validated = {"corpus": {"data": text, "with": text}} if corpus else {}
    for phase in phases:
        validated[phase] = {"data": artifacts.rows_folder(phase).as_posix(), "with": str(artifacts.TOKENIZER)}
    found = {
        "corpus": {"text": {"given": input_path(params.corpus, "tasks/corpus")}} if corpus else {},
        "tokenizer": _made_of(
            None if params.tokenizer.source == "train" else input_path(params.tokenizer, "tasks/records")
        ),
        "validate": validated,
        "pretraining": {
            "head": f"ipu_model/heads/{PRETRAINING_HEADS[kind]}.py",
            "rows": f"ipu_model/row_kinds/{kind}.py",
        },
        "base_model": {"given": {"path": input_path(params.base_model, "tasks/records")}} if base else {},
        "phases": {phase: _phase(phase, params, base) for phase in phases},
        "compile_pretrain": list(phases) if ahead else [],
        "compile": {entry.name: {**_parts(entry), **_taught(entry)} for entry in entries(params)} if ahead else {},
        "teacher": {
            entry.name: {**_parts(entry), "given": entry.params.distill.teacher or "tasks/models"}
            for entry in entries(params)
            if entry.params.distill.has_teacher
        },
        "downstream": {entry.name: _entry(entry, params) for entry in entries(params)},
        "parity": {
            f"{entry.name}-{place}": {
                "entry": entry.name,
                "place": place,
                "program": _program(
                    artifacts.job_name(entry.name, "predict"), params, RuntimeSpec.parse(place).runtime
                ),
                **_parts(entry),
            }
            for entry in entries(params)
            for place in entry.params.parity.against
        },
        "export": {entry.name: _parts(entry) for entry in entries(params) if entry.params.export.formats},
        "released": {entry.name: _parts(entry) for entry in entries(params) if entry.fetches_released},
        "ipu_config": params.ipu.config if ahead else CODE,
    }
    return {ROOT_KEY: found}


def input_path(section: Any, otherwise: str, key: str = "path") -> str:
    """Return the path in a section that reads files, otherwise `otherwise`."""
    return str(getattr(section, key)) if section.source in ("files", "file", "folder") else otherwise


def _made_of(path: str | None) -> dict[str, str]:
    """Return the source of something and its verdict: the corpus with its verdict, or a path."""
    verdict = artifacts.validation_report("corpus").as_posix()
    return {"source": path or str(artifacts.CORPUS), "verdict": path or verdict}


def _phase(phase: str, params: Params, base: bool) -> dict[str, str]:
    rows, before = params.pretrain_rows, PHASES.index(phase) - 1
    path = {"corpus": None, "files": getattr(rows, phase).path}.get(rows.source, "tasks/rows")
    start = PHASES[before] if before >= 0 else BASE if base else ""
    return {
        **_made_of(path),
        "start": str(artifacts.MODELS / start) if start else CODE,
        "program": _program(phase, params),
    }


def _compiles_ahead(params: Params) -> bool:
    """Return True if programs are compiled before training; if `auto` chooses IPUs, the training compiles them."""
    return params.device.runtime == "ipu"


def _program(job: str, params: Params, runtime: str = "") -> str:
    """Return the path that determines the program of a job, or the IPU config that the job may read.

    Args:
        runtime: runtime of the job, if it is not device.runtime.
    """
    if _compiles_ahead(params):
        return artifacts.compile_report(job).as_posix()
    return params.ipu.config if (runtime or params.device.runtime) in ("auto", "ipu") else CODE


def _parts(entry: Entry) -> dict[str, str]:
    task = load_spec(entry)
    folder = entry.params.package().replace(".", "/")
    return {"kind": entry.kind, "code": folder, "head": task.head, "row_kind": task.row_kind}


def _taught(entry: Entry) -> dict[str, Any]:
    """Return what a student learns from: the rows of its teacher, and `student` if anything differs from training."""
    distill, student = entry.params.distill, dict[str, float]()
    if distill.layers is not None:
        student["layers"] = distill.layers
    if distill.has_teacher:
        student |= {"temperature": distill.temperature, "alpha": distill.alpha}
    rows = entry.training_rows
    return {
        "teacher": CODE if rows is None else rows.as_posix(),
        "learns": "student" if student else "facts",
        **({"student": student} if student else {}),
    }


def _entry(entry: Entry, params: Params) -> dict[str, Any]:
    task, start, data = load_spec(entry), start_model(entry), entry.params.data
    names = [name for name in type(data).model_fields if name == "path" or name.endswith("_path")]
    paths = [input_path(data, "tasks/records", name) for name in names if getattr(data, name) is not None]
    return {
        **_parts(entry),
        "facts": {**entry.params.options, "development": list(task.development), "labels": list(task.labels)},
        "predicted": list(task.predicted),
        "given": {"train": paths[0], "dev": paths[-1]},
        "text": str(artifacts.CORPUS) if learns_text(entry, params) else "tasks/records",
        "start": str(start) if start else CODE,
        **_taught(entry),
        **{f"{job}_program": _program(artifacts.job_name(entry.name, job), params) for job in ("finetune", "predict")},
        "released": str(entry.released or artifacts.TOKENIZER),
        "exports": _export_files(entry),
        "seeds": entry.params.gate.seeds or str(artifacts.TOKENIZER),
        "upstream": _upstream_files(entry, params),
    }


def _export_files(entry: Entry) -> dict[str, str]:
    """Return the outs of the stage export; data/tokenizer is the placeholder for missing ones."""
    files = {"folder": artifacts.exports_folder(entry.name), "metrics": artifacts.metrics_file(entry.name, "export")}
    there = entry.params.export.formats
    return {name: (path if there else artifacts.TOKENIZER).as_posix() for name, path in files.items()}


def _upstream_files(entry: Entry, params: Params) -> dict[str, str]:
    """Return upstream files that the gate of an entry evaluates; data/tokenizer is the placeholder for missing ones."""
    found = find_upstream(entry, params)
    files = {
        "corpus": (artifacts.validation_report("corpus"), found.corpus),
        "base_model": (artifacts.BASE_MODEL / "base_model.json", found.base_model),
        "teacher": (artifacts.teacher_folder(entry.name), entry.params.distill.has_teacher),
    }
    for phase in PHASES:
        there = phase in found.phases
        files[f"{phase}_rows"] = artifacts.rows_folder(phase) / "manifest.json", there
        files[f"{phase}_verdict"] = artifacts.validation_report(phase), there
        files[f"{phase}_training"] = artifacts.METRICS / f"pretrain-{phase}.json", there
    return {name: (path if there else artifacts.TOKENIZER).as_posix() for name, (path, there) in files.items()}


def write_plan(root: Path, composed: Mapping[str, Any]) -> bool:
    """Write plan.yaml if its content changes; return True if it was written."""
    text, path = HEADER + yaml_text(dict(composed)), root / artifacts.PLAN
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def require_plan(root: Path, params: Params) -> None:
    """Reject a plan.yaml that does not match params.yaml.

    Raises:
        InputError: it is missing, invalid or out of date; the message names the command that writes it.
    """
    path = root / artifacts.PLAN
    try:
        found = read_dvc_file(path)
    except ParamsError as error:
        raise InputError(f"{error}: rewrite it with `{WRITE}`") from None
    if found != compose(params):
        raise InputError(f"{path} does not match {root / artifacts.PARAMS}: update it with `{WRITE}`")


def remove_stale(root: Path, say: Callable[[str], None]) -> None:
    """Remove outs of stages that are in dvc.lock but no longer in the plan, and their entries in dvc.lock.

    An out that changed since its stage wrote it belongs to the user: it stays, with a message.

    Args:
        root: checkout with an up-to-date plan.yaml.
    """
    plan, stages = read_plan(root), read_locked_stages(root / LOCK)
    gone = {name: stages[name] for name in stages if name not in plan}
    if not gone or not plan:
        return
    kept = {out for stage in plan.values() for out in stage.outs}
    removed = []
    outs = [out for stage in gone.values() if isinstance(stage, dict) for out in stage.get("outs") or ()]
    for out in outs:
        parts = PurePosixPath(out.get("path") or "").parts if isinstance(out, dict) else ()  # the last may be cut off
        if not parts or parts[0] not in FOLDERS or ".." in parts:
            continue
        if out["path"] in kept or not (root / out["path"]).exists():
            continue
        if compute_md5(root / out["path"]) != out.get("md5"):
            say(f"{out['path']} was kept: its stage is no longer in the plan, but the file was changed by hand")
            continue
        _remove(root, PurePosixPath(out["path"]), kept)
        removed.append(out["path"])
    if removed:
        names = ", ".join(sorted(removed))
        say(f"removed outs of stages that are no longer in the plan ({names}); DVC's cache keeps them")
    kept_stages = {name: stage for name, stage in stages.items() if name in plan}
    write_text(root / LOCK, yaml_text({"schema": LOCK_SCHEMA, "stages": kept_stages}))


def _remove(root: Path, path: PurePosixPath, kept: Collection[str]) -> None:
    """Remove a file or folder, except outs of stages in the plan."""
    place = root / path
    if not place.is_dir() or place.is_symlink():
        place.unlink()
    elif not any(path in PurePosixPath(one).parents for one in kept):
        shutil.rmtree(place)
    else:
        for entry in place.iterdir():
            if str(path / entry.name) not in kept:
                _remove(root, path / entry.name, kept)
