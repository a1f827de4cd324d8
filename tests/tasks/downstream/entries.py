"""Parameters with entries of downstream work, and entries with sections of their own, for tests."""

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tasks.downstream.kind import kind_of
from tasks.downstream.squad.questions import SquadQuestion
from tasks.downstream.texts.scores import TextsDevSet
from tasks.params.downstream import defaults_of
from tasks.params.entries import Entry, find_entry
from tasks.params.schema import Params, validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.plan import stages
from tasks.plan.writing import write_plan
from tasks.records.answer_places import ReferenceAnswer
from tasks.stage import artifacts
from tests.places import ROOT


def values_with(downstream: Mapping[str, Mapping[str, Any] | None] | None = None, **sections: Any) -> dict[str, Any]:
    """The project's own params.yaml with other values laid over it; a new entry says its kind, None takes one away."""
    values: dict[str, Any] = copy.deepcopy(read_yaml(ROOT / "params.yaml"))
    for name, entry in (downstream or {}).items():
        if entry is None:
            del values["downstream"][name]
            continue
        if name not in values["downstream"]:
            values["downstream"][name] = defaults_of(entry["kind"], name)
        lay_over(values["downstream"][name], entry)
    lay_over(values, sections)
    return values


def lay_over(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            lay_over(values[key], value)
        else:
            values[key] = value


def write_parameters(root: Path, values: Mapping[str, Any]) -> Params:
    """params.yaml and the dvc.yaml that belongs to it."""
    root.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(values))  # no part stands there twice, which YAML would write as an alias
    (root / artifacts.PARAMS).write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    params = validate_params(dict(values))
    write_plan(root, stages.define(params))
    return params


def change_parameters(root: Path, changes: Mapping[str, Any]) -> Params:
    """Other values in the params.yaml of a checkout, key by key, and the dvc.yaml that belongs to it."""
    values = read_yaml(root / artifacts.PARAMS)
    lay_over(values, changes)
    return write_parameters(root, values)


def part_of(entry: Entry, part: str) -> Any:
    """A part of the kind of an entry: reader, encoder, scores, report or inference; "entry": the entry itself."""
    return entry if part == "entry" else getattr(kind_of(entry), part)(entry)


def task_with(name: str, part: str = "entry", **sections: Any) -> Any:
    """A part of an entry, with other sections: `squad` of the project's own params.yaml, `glue-<task>`, or the name of
    another kind."""
    parameters = {"kind": "glue", "task": name.removeprefix("glue-")} if name.startswith("glue-") else {"kind": name}
    entry = find_entry(validate_params(values_with({} if name == "squad" else {name: parameters})), name)
    changed = dataclasses.replace(
        entry, params=entry.params.model_copy(update=sections), rows=sections.get("rows", entry.rows)
    )
    return part_of(changed, part)


def dev_set(task: Any, texts: list[str], labels: np.ndarray) -> TextsDevSet:
    known = task.task.labels
    return TextsDevSet(texts, labels, [str(number) for number in range(len(texts))], known, len(known))


def make_question(
    name: str, text: str, context: str, answers: Sequence[str], starts: Sequence[int] = (), title: str = ""
) -> SquadQuestion:
    """A question of squad; an answer without a start begins at 0."""
    references = tuple(ReferenceAnswer(*reference) for reference in zip_longest(answers, starts, fillvalue=0))
    return SquadQuestion(name, title, context, text, references)
