"""Parameters of a run, and their differences from defaults, presets and other runs."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.runs import listing, report
from flows.runs.checkout import checkout_folder, default_name, rebase_paths
from flows.runs.run_options import RunOptions
from ipu_model.core.files import write_text
from tasks.params.overlays import Setting, complete_names, nest, read_base, replace_overrides, resolve
from tasks.params.schema import default_values, validate_params
from tasks.params.strict_yaml import leaves, read_yaml, value_at, yaml_text
from tasks.params.tables import ABSENT, find_differing, format_table
from tasks.plan.dvc_records import LOCK
from tasks.plan.plan_file import read_locked_stages
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

ADJUSTABLE = ".gate.seeds"
"""Suffix of a parameter that may change in an existing run: seeds are added after training and do not affect it."""
MOST_SHOWN = 12
"""Parameters that a refusal lists."""
TRAININGS = ("pretrain", "finetune")
"""Stages that train."""

ParameterRow = tuple[str, Any, Any]
"""Name, value in the base, value in the run."""


def read_run_params(project: Path, folder: Path) -> dict[str, Any]:
    """Read params.yaml of a run, add defaults for missing parameters, and make paths relative to the project.

    Raises:
        ParamsError: the file is missing or cannot be read.
    """
    written = read_yaml(folder / artifacts.PARAMS)
    # Newer parameters get their defaults. The values were validated before the run and are not validated again.
    values = complete_params(default_values(written), written)
    if folder == project:
        return values
    try:
        return rebase_paths(values, folder.resolve(), project.resolve())
    except TypeError:  # in an older revision, the parameter was not a path
        return values


def require_known_params(project: Path, run: listing.Run) -> None:
    """Require that this version of Podium knows the parameters of a run.

    Raises:
        InputError: another version made the run, with parameters that do not exist here.
        ParamsError: its params.yaml is missing or damaged.
    """
    values = read_run_params(project, run.folder)
    try:
        validate_params(values, "")
    except ParamsError as error:
        reason = str(error).splitlines()[-1].partition(";")[0].strip()
        commit = f" ({run.record.commit})" if run.record is not None and run.record.commit else ""
        raise InputError(
            f"run {run.name} is of another version of Podium{commit}: {reason} here. Use it with that version, or "
            "start a new run"
        ) from None


def copy_params(project: Path, like: str, options: RunOptions) -> tuple[RunOptions, dict[str, Any]]:
    """Return options and parameters of a run with the parameters of another run and the overrides of its own options.

    A release folder that has the name of the other run gets the name of the new one.

    A run without a name gets one from the other's name and the parameters.

    Raises:
        ParamsError: there is no such run, or an override is invalid.
    """
    [run] = listing.find_runs(project, [like])
    require_known_params(project, run)
    values = read_run_params(project, run.folder)
    overrides = complete_names(list(map(str, options.overrides)), values)
    values = resolve(values, None, overrides)
    name = options.name or default_name(values, like if like != listing.PROJECT else None)
    folders = {
        f"downstream.{entry}.publish.folder": params["publish"]["folder"]
        for entry, params in values["downstream"].items()
    }
    moved = [
        Setting(key, str(artifacts.RELEASES / name))
        for key, folder in folders.items()
        if folder == str(artifacts.RELEASES / like) and not any(text.startswith(f"{key}=") for text in overrides)
    ]
    preset, before = (None, []) if run.record is None else (run.record.preset, run.record.overrides)
    replaced = replace_overrides(before, [*overrides, *map(str, moved)])
    return replace(options, preset=preset, overrides=replaced, name=name), resolve(values, None, moved)


def complete_params(below: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, and those of `below` that they lack, at any depth."""
    both = {
        key: complete_params(below[key], value)
        for key, value in values.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **values, **both}


def diff_params(base: Mapping[str, Any], params: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Return name, value in `base` and value in `params` of each parameter that differs.

    An entry that `base` lacks is compared with the defaults of its kind.
    """
    entries = {**default_values(params)["downstream"], **base["downstream"]}
    return find_differing([{**base, "downstream": entries}, dict(params)])


def format_differences(rows: Sequence[tuple[str, list[Any]]], heads: Sequence[str]) -> str:
    """Format the result of `find_differing` as a table."""
    cells = [(name, *("-" if value is ABSENT else json.dumps(value) for value in values)) for name, values in rows]
    return format_table([("", *heads), *cells])


@contextlib.contextmanager
def change_params(project: Path, run: listing.Run, settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
    """Change parameters of an ended run in its params.yaml; an exception restores them. Yield all its parameters.

    The other parameters stay as the run's own version of Podium wrote them.

    Raises:
        ParamsError: a value is invalid.
    """
    values = resolve(read_run_params(project, run.folder), None, settings)
    validate_params(values, f"the parameters of run {run.name}")
    path = run.folder / artifacts.PARAMS
    before, written = path.read_text(encoding="utf-8"), read_yaml(path)
    for setting in settings:
        *sections, key = setting.name.split(".")
        functools.reduce(lambda parent, section: parent.setdefault(section, {}), sections, written)[key] = value_at(
            values, setting.name
        )
    write_text(path, yaml_text(written))
    try:
        yield values
    except BaseException:
        write_text(path, before)
        raise


def require_same_params(project: Path, values: dict[str, Any], name: str | None) -> None:
    """Require that an existing run of this name has these parameters, unless it failed before its first training.

    Args:
        name: None: the run has no name, and its parameters determine the folder.

    Raises:
        ParamsError: the run has other parameters; lists the differences.
    """
    folder = checkout_folder(project, name or "")
    if name is None or not (folder / artifacts.PARAMS).is_file():
        return
    seen = rebase_paths(values, project.resolve(), folder.resolve())
    differ = find_differing([read_run_params(project, folder), rebase_paths(seen, folder.resolve(), project.resolve())])
    rows = [(parameter, values) for parameter, values in differ if not parameter.endswith(ADJUSTABLE)]
    run = report.read_report(project, folder)
    if not rows or (run is not None and report.run_outcome(run) in report.UNFINISHED and not has_trained(run, folder)):
        return
    began = f", started by: {run.command}" if run and run.command else ""
    shown = format_differences(rows[:MOST_SHOWN], (f"{name} has", "requested"))
    more = f"and {len(rows) - MOST_SHOWN} more\n" if len(rows) > MOST_SHOWN else ""
    advice = f"podium plan {name} and podium run --like {name} take its parameters"
    if run is not None and report.run_outcome(run) in report.UNFINISHED:
        advice = f"podium resume {name} continues it with its own"
    raise ParamsError(
        f"run {name} exists with other parameters{began}\n{shown}{more}{advice}. For these, use another --name, or "
        f"remove that run: podium clean {name}"
    )


def has_trained(run: report.RunReport, folder: Path) -> bool:
    """Return whether a training of the run has finished, was running at its end, or left a checkpoint."""
    ended = (stage.name for stage in run.stages if stage.status != "failed")
    known = {*ended, *run.at_work, *read_locked_stages(folder / LOCK)}
    checkpoints = (folder / artifacts.RUNS).glob("*/*/step-*")
    return any(name.partition("@")[0] in TRAININGS for name in known) or any(checkpoints)


@dataclass(frozen=True)
class RunSettings:
    """Parameters of a run and their differences."""

    values: dict[str, Any] = field(default_factory=dict)
    """All parameters; empty if they cannot be read."""
    origin: str = ""
    """Preset or file that the run is based on."""
    told: tuple[ParameterRow, ...] = ()
    """Differences from the origin."""
    unusual: tuple[ParameterRow, ...] = ()
    """Differences from the defaults."""


def read_run_settings(run: report.RunReport, root: Path, project: Path) -> RunSettings:
    """Read the parameters of a run from its checkout `root`."""
    try:
        values = read_run_params(project, root)
        base = values
        if root != project:
            base = resolve(read_base(run.preset, project), run.preset, [], project / artifacts.PRESETS)
        changed, unusual = (
            tuple((name, *both) for name, both in diff_params(origin, values)) for origin in (base, default_values())
        )
    except (ParamsError, KeyError):  # missing, or from a revision with other sections
        return RunSettings()
    return RunSettings(values, run.preset or str(artifacts.PARAMS), changed, unusual)


def format_parameter(value: Any) -> str:
    """Format a value. 2 and 2.0 look the same, as they are the same number."""
    if value is None or value is ABSENT:
        return "none"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def save_preset(path: Path, values: Mapping[str, Any], description: str) -> None:
    """Write a preset that resolves to these parameters, with all values that differ from the defaults.

    Args:
        path: a new file.
        values: parameters, resolved and validated.
        description: description of the preset.

    Raises:
        InputError: the file exists.
    """
    if path.exists():
        raise InputError(f"{path} already exists: choose a new file for --save-params")
    write_text(path, yaml_text({"description": description, **changed_values(values)}))


def changed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that differ from the defaults, nested, including the kind of each entry."""
    defaults = dict(leaves(default_values(values)))
    changed = ((name, value) for name, value in leaves(values) if value != defaults.get(name) or name.endswith(".kind"))
    return nest(dict(changed))
