"""Entry parameters for a fine-tuned model, from its release's provenance or inferred from its config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from ipu_model.core.strict import nearest
from tasks.downstream.inference.model import CONFIG, PROVENANCE, InferenceModel
from tasks.downstream.kind import KINDS, kind_of
from tasks.params.downstream import EntryParams, defaults_of, kind_params
from tasks.params.entries import Entry
from tasks.params.schema import validate_section
from tasks.params.sections import SHORTEST_ROW
from tasks.stage.errors import InputError, ParamsError, PodiumError

NAME = "given"
"""Name of the entry in scratch files, which users never see."""
TAKEN = ("rows", "evaluate")
"""Sections of a release that record how its model was evaluated."""
Stated = Mapping[str, Mapping[str, object]]


def infer_entry(
    model: InferenceModel, task: str | None = None, explicit: Stated | None = None, run: Mapping[str, Any] | None = None
) -> Entry:
    """Return the entry that a model was fine-tuned for.

    Rows and evaluation settings come from its run or its release, else from the defaults of its kind, limited to the
    sequence length that the model supports.

    Args:
        task: value of --task, needed if the model alone is ambiguous.
        explicit: parameters by section; they take precedence.
        run: parameters of the entry in the run that trained the model; empty or None for any other model.

    Raises:
        InputError: the model fits no supported task.
        ParamsError: the model fits several tasks and `task` is none of them, or a parameter is out of range.
    """
    released = run or _released(model)
    if released and task is None:
        kind = released["kind"]  # with the parameters of its own, such as the name of a GLUE task
        kind_fields = kind_params(kind).model_fields.keys() - EntryParams.model_fields.keys()
        options = {name: released[name] for name in kind_fields if name in released}
    else:
        kind, options = _select_kind(model, task)
    values = {**defaults_of(kind, NAME), **options}
    values["data"] = {**values["data"], "control_characters": "keep"}
    for name, value in ({} if released else KINDS[kind].read_start(model.folder)).items():
        section, _, key = name.rpartition(".")
        (values[section] if section else values)[key] = value
    if values["rows"]["row_length"] > model.max_tokens:
        values["rows"] |= limit_rows(kind, model.max_tokens)
    taken = {name: released[name] for name in TAKEN if name in released} if released.get("kind") == kind else {}
    # A release of another version may state parameters that this one does not have.
    taken = {name: {key: x for key, x in stating.items() if key in values[name]} for name, stating in taken.items()}
    of_folder = KINDS[kind].read_params(model.folder)
    for section, stating in (*taken.items(), *of_folder.items(), *(explicit or {}).items()):
        values[section] = {**values.get(section, {}), **stating}
    params = validate_section(kind_params(kind), values, "the parameters of this model")
    if params.rows.row_length > model.max_tokens:
        raise ParamsError(
            f"rows of {params.rows.row_length} tokens are too long: the model supports up to {model.max_tokens}. "
            "Lower --row-length"
        )
    return Entry(NAME, params, params.rows, "")


def choose_entry(model: InferenceModel, path: Path, explicit: Stated | None = None, *, labelled: bool) -> Entry:
    """Return the entry of a model that was not released; if its classes are those of GLUE tasks, the columns decide.

    Args:
        explicit: as in `infer_entry`, as are the errors.
        labelled: the file has labels.
    """
    fitting, sure = _match_tasks(model)
    others = [task for task in fitting if task not in sure]
    if _released(model) or not others:
        return infer_entry(model, None, explicit)
    refusals = dict[str, PodiumError]()
    for tasks in (sure, others):
        entries = []
        for task in tasks:
            try:
                entry = infer_entry(model, task, explicit)
                kind_of(entry).inference(entry).require_columns(path, labelled=labelled)
                entries.append(entry)
            except PodiumError as error:
                refusals[task] = error
        if entries:
            return entries[0] if len(entries) == 1 else infer_entry(model, None, explicit)
    text = "; ".join(f"--task {task}: {refusals[task]}" for task in (*others, sure[0]))
    raise InputError(f"the classes of {model.folder} fit {', '.join(sure)}, the columns of {path} no task. {text}")


def limit_rows(kind: str, longest: int) -> dict[str, object]:
    """Return the section `rows` of an entry of this kind for a model that supports up to `longest` tokens.

    Raises:
        InputError: the limit is too small for any row.
    """
    if longest < SHORTEST_ROW:
        raise InputError(
            f"the model supports up to {longest} tokens, {SHORTEST_ROW} are required. Correct max_position_embeddings "
            "in config.json or model_max_length in tokenizer_config.json"
        )
    return KINDS[kind].limit_rows(longest)


def _released(model: InferenceModel) -> dict[str, Any]:
    path = model.folder / PROVENANCE
    if not path.is_file():
        return {}
    try:
        [entry] = read_json(path)["parameters"]["downstream"].values()
        kind_params(entry["kind"])
        return {**entry, **{name: dict(entry[name]) for name in TAKEN}}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not record what this model was trained for ({error}). Restore the file of the release, or "
            "move it away and pass --task"
        ) from None


def _select_kind(model: InferenceModel, task: str | None) -> tuple[str, dict[str, object]]:
    """Return the kind that uses a model of this architecture, and the options that select its task."""
    matches, sure = _match_tasks(model)
    if task is None and len(sure) == 1:
        [task] = sure
    if task not in matches:
        said = f"--task {task} does not fit" if task else "its classes fit several tasks: pass --task NAME"
        raise ParamsError(f"{model.folder}: {said}{nearest(task or '', list(matches))}")
    options = dict(matches[task])
    return options.pop("kind"), options


def _match_tasks(model: InferenceModel) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the tasks that a model fits, with their options, and those that the names of its classes state, if any."""
    named = model.architectures or [kind.suffix for kind in KINDS.values()]
    fitting = [kind for kind in KINDS.values() if any(name.endswith(kind.suffix) for name in named)]
    if not fitting:
        known = ", ".join(sorted({f"...{kind.suffix}" for kind in KINDS.values()}))
        raise InputError(
            f"{model.folder} is {', '.join(named)}, not a fine-tuned model. Supported architectures: {known}"
        )
    problem = model.config.get("problem_type")
    tasks = [(kind.is_fallback, kind.match_tasks(model.labels, problem)) for kind in fitting]
    matches = {word: values for _, options in tasks for word, values in options.items()}
    if not matches:
        raise InputError(
            f"{model.folder / CONFIG} has the classes {', '.join(model.labels)}, which match no supported task"
        )
    unnamed = model.labels == tuple(f"LABEL_{number}" for number in range(len(model.labels)))
    by_name = [] if unnamed else [word for is_fallback, options in tasks if not is_fallback for word in options]
    return matches, by_name or list(matches)
