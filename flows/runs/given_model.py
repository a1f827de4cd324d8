"""A model that a person names on the command line, a folder, a run or a Hub repository: as parameters of a run, and for
the commands that use a finished one.

The sizes, the dropout and the tokenizer are its own, so that nobody has to state them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.runs.checkout import own_folder
from flows.runs.run_params import params_of
from tasks.models.model_folders import download_model, read_architecture
from tasks.params.schema import PHASES, ModelParams
from tasks.params.sections import HUB_NAME
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError


def model_values(model: str, here: Path, project: Path) -> dict[str, Any]:
    """Parameters, by their dotted names, of a model: where it is, its tokenizer and its architecture.

    A model of the Hub is downloaded now, where people can watch, and named by its commit.

    Args:
        model: a folder, seen from `here`, a run that pre-trained one, or a Hub repository.
        here: where the command was called.
        project: where the run is called.

    Raises:
        InputError: none of these, or no model of a kind that is trained here.
    """
    folder = here / model
    if not folder.exists() and "/" not in model:
        folder = pretrained_in(own_folder(project, model)) or folder
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"--model {model} is a file: name the folder that save_pretrained wrote")
        path = stated_path(folder, project)
        given = {"base_model.source": "folder", "base_model.path": path}
        given |= {"tokenizer.source": "file", "tokenizer.path": path}
    else:
        folder, given = _of_hub(model)
    found = read_architecture(folder, f"--model {model}")
    return given | {f"model.{name}": getattr(found, name) for name in ModelParams.model_fields}


def _of_hub(model: str) -> tuple[Path, dict[str, Any]]:
    """The folder of the Hub's cache with the model, and the parameters that name it."""
    name, _, revision = model.partition("@")
    if not HUB_NAME.fullmatch(name):
        raise InputError(
            f"--model {model} is not there: name a model's folder, a run of podium pretrain, or a Hub repository "
            "(user/name)"
        )
    commit, folder = download_model(name, revision or None, "base_model")
    places = {
        f"{section}.{key}": value
        for section in ("base_model", "tokenizer")
        for key, value in (("source", "hub"), ("repository", name), ("revision", commit))
    }
    return folder, places


def stated_path(path: Path, project: Path) -> str:
    """A path as params.yaml of `project` states it: relative where it lies inside, else absolute."""
    found = Path(os.path.abspath(path))
    return str(found.relative_to(project)) if found.is_relative_to(project) else str(found)


@dataclass(frozen=True)
class NamedModel:
    """What a command was told to use."""

    name: str
    """A folder or a Hub repository."""
    tokenizer: Path | None = None
    """Folder of its tokenizer.json; None: the model's own."""
    entry: Mapping[str, Any] = field(default_factory=dict)
    """The entry of downstream work that a run trained it for; of other models empty."""


def pretrained_in(run: Path) -> Path | None:
    """Return the folder of the model that a run pre-trained, the last phase that is there; None where there is none."""
    folders = (run / artifacts.MODELS / phase for phase in reversed(PHASES))
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def trained_in(project: Path, run: Path) -> NamedModel:
    """The model of a run.

    Args:
        run: the folder of the run.

    Raises:
        ParamsError: it has none for a task yet, or several.
    """
    entries = params_of(project, run).get("downstream", {})
    folders = {name: run / artifacts.model_folder(name) for name in entries}
    trained = [name for name, folder in folders.items() if (folder / "config.json").is_file()]
    if not trained:
        if not entries and pretrained_in(run) is not None:
            raise ParamsError(
                f"the run {run.name} has pre-trained a model, and has not trained it for a task: podium finetune KIND "
                f"--model {run.name} --train FILE does"
            )
        raise ParamsError(
            f"the run {run.name} has not trained a model for a task yet: repeat its command, without --to or --part, "
            "to continue it"
        )
    if len(trained) > 1:
        raise ParamsError(
            f"the run {run.name} trained several models: name one by its folder, with --tokenizer "
            f"{run / artifacts.TOKENIZER}: {', '.join(str(folders[name]) for name in trained)}"
        )
    return NamedModel(str(folders[trained[0]]), run / artifacts.TOKENIZER, entries[trained[0]])
