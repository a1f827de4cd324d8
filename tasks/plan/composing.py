"""plan.yaml: what params.yaml makes of dvc.yaml, which stages there are and what each starts from.

DVC knows no conditions, so that which phases, entries and given files a plan has is worked out here, from checked
parameters, and read by dvc.yaml. `podium run` writes it before every run and `podium plan --write` on demand; a stage
refuses one that does not belong to params.yaml.

Where a stage of this plan has no use for something that others of its group read, its place is taken by a path that the
stage depends on anyway: DVC takes a list of dependencies only as dvc.yaml writes it.

Outs of stages that an earlier plan.yaml had, and this one has not, are removed: DVC leaves them where they are, and
a folder that a stage reads would still hold them. What they held stays in DVC's cache, for a plan that has them again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ipu_model.files import write_text
from tasks.params.entries import BASE, Entry, behind, entries, learns_text, needs_corpus, start_model
from tasks.params.schema import PHASES, Params
from tasks.params.sections import Place
from tasks.params.strict_yaml import yaml_text
from tasks.plan.dvc_records import LOCK, md5_of
from tasks.plan.kinds import load_spec
from tasks.plan.plan_file import read_dvc_file, read_plan, stages_of
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

ROOT_KEY = "plan"
"""Under this key, as DVC lays the file over params.yaml, whose keys it must not have."""
WRITE = "podium plan --write"
CODE = "tasks/jobs"
"""Stands for what a training has no use for."""
FOLDERS = (
    "data",
    "evaluation",
    "executables",
    "measurements",
    "metrics",
    "models",
    "plots",
    "predictions",
    "reports",
)
"""Where stages write; nothing is removed elsewhere, whatever dvc.lock says."""
LOCK_SCHEMA = "2.0"
"""Of the dvc.lock that DVC 3 writes."""
HEADER = f"""# What params.yaml makes of dvc.yaml. Made by `podium run` and `{WRITE}`: edit params.yaml, not this.
"""


def compose(params: Params) -> dict[str, Any]:
    """The content of plan.yaml.

    Args:
        params: the parameters, checked.
    """
    phases = PHASES if params.pretrain.enabled else ()
    corpus, base, ahead = needs_corpus(params, phases), params.base_model.source != "none", _compiles_ahead(params)
    found = {
        "corpus": {"text": {"given": given(params.corpus, "tasks/corpus")}} if corpus else {},
        "tokenizer": _made_of(None if params.tokenizer.source == "train" else given(params.tokenizer, "tasks/records")),
        "validate": _validate(corpus, phases),
        "row_shares": params.pretrain_rows.shares if phases else [],
        "base_model": {"given": {"path": given(params.base_model, "tasks/records")}} if base else {},
        "phases": {phase: _phase(phase, params, base) for phase in phases},
        "compile_pretrain": list(phases) if ahead else [],
        "compile": {entry.name: _parts(entry) for entry in entries(params)} if ahead else {},
        "downstream": {entry.name: _entry(entry, params) for entry in entries(params)},
        "parity": {
            f"{entry.name}-{place}": {
                "entry": entry.name,
                "place": place,
                "program": _program(artifacts.job_name(entry.name, "predict"), params, Place.of(place).runtime),
                **_parts(entry),
            }
            for entry in entries(params)
            for place in entry.params.parity.against
        },
        "released": {entry.name: _parts(entry) for entry in entries(params) if entry.fetches_released},
        "ipu_config": params.ipu.config if ahead else CODE,
    }
    return {ROOT_KEY: found}


def given(section: Any, otherwise: str, key: str = "path") -> str:
    """The path that a section names, where it reads one."""
    return str(getattr(section, key)) if section.source in ("files", "file", "folder") else otherwise


def _verdict(name: str) -> str:
    return artifacts.validation_report(name).as_posix()


def _made_of(path: str | None) -> dict[str, str]:
    """Return what something is made of, and what is said of that: the corpus with its verdict, or a path."""
    return {"source": path or str(artifacts.CORPUS), "verdict": path or _verdict("corpus")}


def _validate(corpus: bool, phases: tuple[str, ...]) -> dict[str, Any]:
    text = str(artifacts.CORPUS)
    of_rows = {
        phase: {"data": artifacts.rows_folder(phase).as_posix(), "beside": str(artifacts.TOKENIZER)} for phase in phases
    }
    return {**({"corpus": {"data": text, "beside": text}} if corpus else {}), **of_rows}


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
    """Whether there are programs to build before training; where `auto` chooses IPUs, they are compiled there."""
    return params.device.runtime == "ipu"


def _program(job: str, params: Params, runtime: str = "") -> str:
    """What says which program a job has, or else which IPU config it may read.

    Args:
        runtime: that of the job, where it is not device.runtime.
    """
    if _compiles_ahead(params):
        return artifacts.compile_report(job).as_posix()
    return params.ipu.config if (runtime or params.device.runtime) in ("auto", "ipu") else CODE


def _parts(entry: Entry) -> dict[str, str]:
    task = load_spec(entry)
    folder = entry.params.package().replace(".", "/")
    return {"kind": entry.kind, "code": folder, "head": task.head, "row_kind": task.row_kind}


def _entry(entry: Entry, params: Params) -> dict[str, Any]:
    task, start = load_spec(entry), start_model(entry)
    return {
        **_parts(entry),
        "facts": {**entry.params.options, "development": list(task.development), "labels": list(task.labels)},
        "given": _given(entry),
        "text": str(artifacts.CORPUS) if learns_text(entry, params) else "tasks/records",
        "start": str(start) if start else CODE,
        **{f"{job}_program": _program(artifacts.job_name(entry.name, job), params) for job in ("finetune", "predict")},
        "released": str(entry.released),
        "seeds": entry.params.gate.seeds or str(artifacts.TOKENIZER),
        "behind": _behind(entry, params),
    }


def _given(entry: Entry) -> dict[str, str]:
    """The files of training and of development: one where it holds both, or development is a part of training."""
    names = [name for name in type(entry.params.data).model_fields if name == "path" or name.endswith("_path")]
    data = entry.params.data
    paths = [given(data, "tasks/records", name) for name in names if getattr(data, name) is not None]
    return {"train": paths[0], "dev": paths[-1]}


def _behind(entry: Entry, params: Params) -> dict[str, str]:
    """What the gate of an entry judges beside the entry's own; data/tokenizer stands for what is not there."""
    found, nothing = behind(entry, params), str(artifacts.TOKENIZER)
    return {
        "corpus": _verdict("corpus") if found.corpus else nothing,
        "base_model": (artifacts.BASE_MODEL / "base_model.json").as_posix() if found.base_model else nothing,
        **{key: path for phase in PHASES for key, path in _of_phase(phase, phase in found.phases).items()},
    }


def _of_phase(phase: str, there: bool) -> dict[str, str]:
    found = {
        "rows": artifacts.rows_folder(phase) / "manifest.json",
        "verdict": artifacts.validation_report(phase),
        "training": artifacts.METRICS / f"pretrain-{phase}.json",
    }
    return {f"{phase}_{what}": path.as_posix() if there else str(artifacts.TOKENIZER) for what, path in found.items()}


def text_of(composed: Mapping[str, Any]) -> str:
    """plan.yaml as it is written."""
    return HEADER + yaml_text(dict(composed))


def write_plan(root: Path, composed: Mapping[str, Any]) -> bool:
    """Write plan.yaml of this content where it says something else; whether it did."""
    text, path = text_of(composed), root / artifacts.PLAN
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def require_plan(root: Path, params: Params) -> None:
    """Refuse a plan.yaml that does not say what params.yaml does.

    Raises:
        InputError: it is missing, broken or of other parameters; names the command that writes it.
    """
    path = root / artifacts.PLAN
    try:
        found = read_dvc_file(path)
    except ParamsError as error:
        raise InputError(f"{error}: write it again with `{WRITE}`") from None
    if found != compose(params):
        raise InputError(f"{path} does not belong to {root / artifacts.PARAMS}: write it with `{WRITE}`, then go on")


def remove_gone(root: Path, say: Callable[[str], None]) -> None:
    """Remove outs of stages that are in dvc.lock and not in the plan, and their lines there.

    An out that does not hold what its stage wrote is somebody's own: it stays, and is named.

    Args:
        root: a checkout whose plan.yaml is up to date.
        say: told what was removed, and what was left.
    """
    plan, stages = read_plan(root), stages_of(root / LOCK)
    gone = {name: stages[name] for name in stages if name not in plan}
    if not gone or not plan:
        return
    kept = {out for stage in plan.values() for out in stage.outs}
    removed = []
    for out in _outs_of(gone):
        if out["path"] in kept or not (root / out["path"]).exists():
            continue
        if md5_of(root / out["path"]) != out.get("md5"):
            say(f"{out['path']} of a stage that is no longer in the plan was changed by hand: it was left where it is")
            continue
        _remove(root, PurePosixPath(out["path"]), kept)
        removed.append(out["path"])
    if removed:
        names = ", ".join(sorted(removed))
        say(f"removed what stages wrote that are no longer in the plan ({names}); DVC's cache has it")
    kept_stages = {name: stage for name, stage in stages.items() if name in plan}
    write_text(root / LOCK, yaml_text({"schema": LOCK_SCHEMA, "stages": kept_stages}))


def _outs_of(stages: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What they wrote in FOLDERS; the last of them may be half of a stage."""
    for stage in stages.values():
        for out in (stage.get("outs") or ()) if isinstance(stage, dict) else ():
            parts = PurePosixPath(out.get("path") or "").parts if isinstance(out, dict) else ()
            if parts and parts[0] in FOLDERS and ".." not in parts:
                yield out


def _remove(root: Path, path: PurePosixPath, kept: Collection[str]) -> None:
    """Remove a file or folder, but what stages of the plan write in it."""
    place = root / path
    if not place.is_dir() or place.is_symlink():
        place.unlink()
    elif not any(path in PurePosixPath(one).parents for one in kept):
        shutil.rmtree(place)
    else:
        for entry in place.iterdir():
            if str(path / entry.name) not in kept:
                _remove(root, path / entry.name, kept)
