"""Models named on the command line by a folder, a run or a Hub repository.

`model_parameters` turns one into parameters of a run, with its sizes, dropout and tokenizer. `find_finetuned` is for
commands that use a finished model.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.runs.checkout import checkout_folder
from flows.runs.run_params import read_run_params
from ipu_model.core.strict import nearest
from tasks.models.model_folders import (
    download_model,
    find_cached_folder,
    packs_rows,
    read_architecture,
    require_hub_name,
)
from tasks.params.schema import ModelParams
from tasks.params.sections import DEFAULT_PHASES
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError


def model_parameters(model: str, base: Path, project: Path) -> dict[str, Any]:
    """Return the parameters of a model, by dotted name: its location, tokenizer and architecture.

    A model on the Hub is downloaded now, with visible progress, and pinned to its commit.

    Args:
        model: a folder relative to `base`, a run that pre-trained a model, or a Hub repository.
        base: folder where the command was called.
        project: project folder.

    Raises:
        InputError: the model is not found, or its architecture is not supported.
    """
    folder = base / model
    if not folder.exists() and "/" not in model and (run := checkout_folder(project, model)).is_dir():
        if (found_model := find_pretrained(run)) is None:
            raise InputError(f"--model {model}: this run has no pre-trained model (podium runs show {model})")
        folder = found_model
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"--model {model} is a file: pass the folder that save_pretrained wrote")
        path = project_path(folder, project)
        source = {"base_model.source": "folder", "base_model.path": path}
        source |= {"tokenizer.source": "file", "tokenizer.path": path}
    else:
        try:
            folder, source = _download(model)
        except InputError as error:
            runs = [path.name for path in checkout_folder(project, "").glob("*/")]
            raise InputError(f"{error}{nearest(model, runs, '')}") from None
    architecture = read_architecture(folder, f"--model {model}")
    packing = {} if packs_rows(architecture.family) else {"packing": False}
    return source | packing | {f"model.{name}": getattr(architecture, name) for name in ModelParams.model_fields}


def _download(model: str) -> tuple[Path, dict[str, Any]]:
    """Download a model from the Hub; return its folder in the Hub's cache and its parameters."""
    name, _, revision = model.partition("@")
    require_hub_name(name, f"--model {model}")
    commit, folder = download_model(name, revision or None, "base_model", artifacts.MODULE_FILES)
    places = {
        f"{section}.{key}": value
        for section in ("base_model", "tokenizer")
        for key, value in (("source", "hub"), ("repository", name), ("revision", commit))
    }
    return folder, places


def teacher_parameters(teacher: str, base: Path, project: Path) -> dict[str, Any]:
    """Return the location of a teacher as parameters of section `distill`; arguments as in `model_parameters`.

    Raises:
        InputError, ParamsError: it is not found, or is a run without one fine-tuned model.
    """
    folder, run = base / teacher, checkout_folder(project, teacher)
    if not folder.exists() and "/" not in teacher and run.is_dir():
        folder, _ = find_finetuned(project, run)
    if folder.is_dir():
        return {"teacher": project_path(folder, project)}
    name, _, revision = teacher.partition("@")
    require_hub_name("" if folder.exists() else name, f"--distill {teacher}")
    commit, _ = download_model(name, revision or None, "distill")
    return {"repository": name, "revision": commit}


def start_from_teacher(teacher: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """Return the parameters of a student that starts from the weights of its teacher; see `teacher_parameters`."""
    if "teacher" not in teacher:
        return model_parameters(f"{teacher['repository']}@{teacher['revision']}", project, project)
    folder = project / teacher["teacher"]
    params = model_parameters(str(folder), project, project)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):  # models/NAME of a run
        params["tokenizer.path"] = project_path(folder.parent.parent / artifacts.TOKENIZER, project)
    return params


def base_folder(model: Mapping[str, Any], project: Path) -> Path:
    """Return the folder of a model from `model_parameters`."""
    if model["base_model.source"] == "folder":
        return project / model["base_model.path"]
    return find_cached_folder(model["base_model.repository"], model["base_model.revision"]) or project


def add_prefix_space(model: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """Return the setting with which the tokenizer of a model encodes words as in a text; {} if it needs none.

    Args:
        model: from `model_parameters`.
    """
    from tasks.vocabulary.hub_tokenizer import load_local_vocabulary

    if model["tokenizer.source"] == "hub":
        folder = find_cached_folder(model["tokenizer.repository"], model["tokenizer.revision"])
    else:
        folder = project / model["tokenizer.path"]
    try:
        needed = folder is not None and load_local_vocabulary(folder, True).blank_before_words
    except (InputError, OSError):  # the check of the vocabulary reports it
        needed = False
    return {"tokenizer.add_prefix_space": True} if needed else {}


def project_path(path: Path, project: Path) -> str:
    """Return a path for params.yaml of `project`: relative if it is inside the project, else absolute."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(project)) if absolute.is_relative_to(project) else str(absolute)


def find_pretrained(run: Path) -> Path | None:
    """Return the folder of the model that a run pre-trained, of the last finished phase; None if there is none."""
    path = run / artifacts.PARAMS
    training = read_yaml(path).get("pretrain", {}) if path.is_file() else {}
    # An older params.yaml has a section for each phase, and no list of them.
    phases = training.get("phases") or [name for name, section in training.items() if isinstance(section, dict)]
    phases = phases or [*DEFAULT_PHASES]
    folders = (run / artifacts.MODELS / phase for phase in reversed(phases))
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def find_finetuned(project: Path, run: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the folder of the model that a run fine-tuned, and its entry of `downstream`.

    Args:
        run: folder of the run.

    Raises:
        ParamsError: the run has not fine-tuned a model yet, or has fine-tuned several.
    """
    entries = read_run_params(project, run).get("downstream", {})
    compared = {entry.get("against") for entry in entries.values()}
    folders = {name: run / artifacts.model_folder(name) for name in entries if name not in compared}
    trained = [name for name, folder in folders.items() if (folder / "config.json").is_file()]
    if not trained:
        if not entries and find_pretrained(run) is not None:
            raise ParamsError(
                f"run {run.name} has pre-trained a model but not fine-tuned it: use podium finetune KIND --model "
                f"{run.name} --train FILE"
            )
        raise ParamsError(
            f"run {run.name} has not fine-tuned a model yet: repeat its command without --to or --part to continue it"
        )
    if len(trained) > 1:
        raise ParamsError(
            f"run {run.name} has fine-tuned several models: pass the folder of one, with --tokenizer "
            f"{run / artifacts.TOKENIZER}: {', '.join(str(folders[name]) for name in trained)}"
        )
    return folders[trained[0]], entries[trained[0]]
