"""The model that a run trained, for the commands that use a finished one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.run_params import params_of
from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.params import PHASES


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
