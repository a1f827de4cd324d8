"""The entry of downstream work that a finished model stands for: as its release states it, or by its config.json."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ipu_model.files import read_json
from ipu_model.strict import nearest
from tasks.downstream.inference.model import CONFIG, PROVENANCE, FoundModel
from tasks.downstream.inference.task import ApplyTask
from tasks.params.downstream import EntryParams, defaults_of, kind_names, kind_params
from tasks.params.entries import Entry
from tasks.params.schema import build
from tasks.params.sections import SHORTEST_ROW
from tasks.stage.errors import InputError, ParamsError

NAME = "given"
"""Names the files of the entry, which nobody sees."""
TAKEN = ("rows", "evaluate")
"""Sections of a release that say how its model was judged."""
Stated = Mapping[str, Mapping[str, Any]]


def entry_of(
    model: FoundModel, task: str | None = None, stated: Stated | None = None, run: Mapping[str, Any] | None = None
) -> Entry:
    """The entry whose model this is.

    Its rows and its evaluation are those that its run or its release states; else a kind's defaults, shortened to what
    the model takes.

    Args:
        task: the word that says which, where the model alone does not.
        stated: parameters by section, which win.
        run: the entry as the run states it that trained the model; empty or None for any other model.

    Raises:
        InputError: the model is for nothing that is known here.
        ParamsError: the model may be for several tasks, and `task` is none of them; a parameter out of its range.
    """
    released = run or _released(model)
    if released and task is None:
        kind = released["kind"]  # with what it asks beside the sections that all have, such as the name of a task
        own = kind_params(kind).model_fields.keys() - EntryParams.model_fields.keys()
        options = {name: released[name] for name in own if name in released}
    else:
        kind, options = _chosen(model, task)
    values = {**defaults_of(kind, NAME), **options}
    if values["rows"]["row_length"] > model.longest:
        values["rows"] |= rows_within(kind, model.longest)
    taken = {name: released[name] for name in TAKEN if name in released} if released.get("kind") == kind else {}
    of_folder = _apply(kind).stated_by(model.folder)
    for section, stating in (*taken.items(), *of_folder.items(), *(stated or {}).items()):
        values[section] = {**values.get(section, {}), **stating}
    params = build(kind_params(kind), values, "what is stated for this model")
    if params.rows.row_length > model.longest:
        raise ParamsError(
            f"rows of {params.rows.row_length} tokens are too long: the model takes {model.longest} tokens at most. "
            "Lower --row-length"
        )
    return Entry(NAME, params, params.rows, "")


def rows_within(kind: str, longest: int) -> dict[str, Any]:
    """Return the section `rows` of an entry of this kind for a model that takes `longest` tokens at most.

    Raises:
        InputError: too few for any row.
    """
    if longest < SHORTEST_ROW:
        raise InputError(
            f"the model takes {longest} tokens at most, {SHORTEST_ROW} are required: correct max_position_embeddings "
            "of config.json, or model_max_length of tokenizer_config.json"
        )
    return _apply(kind).rows_within(longest)


def _released(model: FoundModel) -> dict[str, Any]:
    """The entry that the provenance of a release states; empty where there is none."""
    path = model.folder / PROVENANCE
    if not path.is_file():
        return {}
    try:
        [entry] = read_json(path)["parameters"]["downstream"].values()
        kind_params(entry["kind"])
        return {**entry, **{name: dict(entry[name]) for name in TAKEN}}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not say what this model was trained for ({error}): take the file of the release, or move it "
            "away and say --task"
        ) from None


def _chosen(model: FoundModel, task: str | None) -> tuple[str, dict[str, Any]]:
    """The kind that uses a model of this architecture, and what tells its tasks apart."""
    parts = list(dict.fromkeys(map(_apply, kind_names())))
    named = model.architectures or [one.architecture for one in parts]
    fitting = [one for one in parts if one.architecture in named]
    if not fitting:
        known = ", ".join(sorted({one.architecture for one in parts}))
        raise InputError(
            f"{model.folder} holds {', '.join(named)}, which answers nothing: a fine-tuned model is required ({known})"
        )
    found = {word: values for one in fitting for word, values in one.tasks_of(model.labels).items()}
    if not found:
        raise InputError(
            f"{model.folder / CONFIG} has the classes {', '.join(model.labels)}, which are of no task known here"
        )
    by_name = [] if model.unnamed else [word for word in found if word not in {one.general for one in fitting}]
    sure = by_name or list(found)
    if task is None and len(sure) == 1:
        [task] = sure
    if task not in found:
        said = f"--task {task} does not fit" if task else "say for which task, as its classes do not tell: --task WORD"
        raise ParamsError(f"{model.folder}: {said}{nearest(task or '', list(found))}")
    options = dict(found[task])
    return options.pop("kind"), options


def _apply(kind: str) -> type[ApplyTask[Any, Any, Any]]:
    found: type[ApplyTask[Any, Any, Any]] = importlib.import_module(f"{kind_params(kind).package()}.apply").Task
    return found
