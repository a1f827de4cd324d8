"""A model that a person names on the command line, a folder or a Hub repository, as parameters of a run.

The sizes, the dropout and the tokenizer are its own, so that nobody has to state them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flows.checkout import own_folder
from flows.run_model import pretrained_in
from tasks.project.errors import InputError
from tasks.project.param_sections import HUB_NAME
from tasks.project.params import ModelParams
from tasks.reading.model_folders import download_model, read_architecture


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
