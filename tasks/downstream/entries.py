"""Entries of downstream work: what a run fine-tunes for, each with a name, a kind and its own sections of params.yaml.

What these sections and the stages are called in params.yaml and dvc.yaml is known here and nowhere else. No stage
depends on this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.param_glue import GlueTask
from tasks.project.param_inputs import RowsParams
from tasks.project.param_sections import ReleaseParams, Section
from tasks.project.params import PHASES, FinetuneParams, Params, PublishParams, packed
from tasks.project.strict_yaml import nearest

QUESTIONS, GLUE = "squad", "glue"
_STAGES = {
    QUESTIONS: {
        "examples": "questions",
        "validate": "validate@questions",
        "rows": "squad_rows@train",
        "validate_rows": "validate@squad-train",
        "compile": "compile@finetune",
    },
    GLUE: {
        "examples": "glue_data",
        "validate": "validate_glue",
        "rows": "glue_rows",
        "validate_rows": "validate_glue_rows",
        "compile": "compile_glue",
    },
}
_SECTIONS = {
    QUESTIONS: {
        "data": "questions",
        "rows": "squad_rows",
        "finetune": "finetune",
        "evaluate": "evaluate",
        "gate": "gate",
        "publish": "publish",
        "validate": "validate",
    },
    GLUE: {
        "data": "glue",
        "rows": "glue_rows",
        "finetune": "glue_finetune",
        "gate": "glue_gate",
        "publish": "glue_publish",
        "validate": "glue",
    },
}
_JUDGED = {
    QUESTIONS: ("evaluate", "finetune", "gate", "ipu.finetune", "ipu.predict", "questions", "squad_rows"),
    GLUE: (
        "glue.dataset",
        "glue.dataset_revision",
        "glue.min_examples",
        "glue.path",
        "glue.source",
        "glue_finetune",
        "glue_gate",
        "glue_rows",
        "ipu.glue",
    ),
}


@dataclass(frozen=True)
class EntryName:
    """What an entry is called, and what follows from that alone."""

    name: str
    """Names its files and stages, see tasks.project.artifacts."""
    kind: str
    """The folder of tasks/downstream that knows how."""
    task: str
    """Which of the tasks of its kind, where there are several; else empty."""

    def key(self, role: str, name: str = "") -> str:
        """A section of this entry, or a parameter in it, as params.yaml calls it.

        Args:
            role: data, rows, finetune, evaluate, gate, publish, or validate for the least number of examples.
            name: of the parameter.
        """
        section = _SECTIONS[self.kind][role]
        return f"{section}.{name}" if name else section

    def stage(self, what: str) -> str:
        """The stage of dvc.yaml that does this: examples, validate, rows, validate_rows, compile, finetune, predict,
        evaluate or gate."""
        if self.kind == QUESTIONS:
            return _STAGES[QUESTIONS].get(what, what)
        return f"{_STAGES[GLUE].get(what, f'glue_{what}')}@{self.task}"

    def ipu_key(self, job: str) -> str:
        """The key of the section `ipu` for its `finetune` or `predict`."""
        return job if self.kind == QUESTIONS else GLUE

    def verdict(self, split: str = "") -> str:
        """The name of the data verdict on its examples, or on the rows of a split."""
        if self.kind == QUESTIONS:
            return f"{self.name}-{split}" if split else "questions"
        return f"{self.name}-rows" if split else self.name

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Those that decide what its model is, beside the parameters of pre-training."""
        return _JUDGED[self.kind]


@dataclass(frozen=True)
class Entry(EntryName):
    """One thing to fine-tune for, with its sections of params.yaml."""

    data: Section
    rows: RowsParams
    """As `packing` has it."""
    finetune: FinetuneParams
    evaluate: Section | None
    gate: ReleaseParams
    publish: PublishParams
    least_examples: int
    """Fewer in a split are refused."""


def entries(params: Params) -> list[Entry]:
    """All that the parameters ask for, in their order."""
    return [_questions(params), *(_glue(params, task) for task in params.glue.tasks)]


def entry_of(params: Params, name: str) -> Entry:
    """The entry of that name.

    Args:
        name: or what a stage is called in dvc.yaml: a name after an @.

    Raises:
        ParamsError: there is none; the nearest one is named.
    """
    name = name.rpartition("@")[2]
    known = {entry.name: entry for entry in entries(params)}
    found = known.get(name) or known.get(f"{GLUE}-{name}")
    task = name.removeprefix(f"{GLUE}-")
    if found is None and task in get_args(GlueTask):  # made in an earlier run
        found = _glue(params, task)
    if found is None:
        raise ParamsError(f"{name!r} is nothing that params.yaml fine-tunes for{nearest(name, list(known))}")
    return found


def start_model(params: Params) -> Path:
    """The folder of the weights that fine-tuning starts from."""
    return artifacts.BASE_MODEL if starts_from_base(params) else artifacts.MODELS / PHASES[-1]


def starts_from_base(params: Params) -> bool:
    """Whether a given model is fine-tuned as it is, as nothing is pre-trained."""
    return params.base_model.source != "none" and not params.pretrain.enabled


def _questions(params: Params) -> Entry:
    return Entry(
        name=QUESTIONS,
        kind=QUESTIONS,
        task="",
        data=params.questions,
        rows=packed(params.squad_rows, params.packing),
        finetune=params.finetune,
        evaluate=params.evaluate,
        gate=params.gate,
        publish=params.publish,
        least_examples=params.validate_.min_questions,
    )


def _glue(params: Params, task: str) -> Entry:
    own: Mapping[str, str | None] = params.glue_publish.model_dump()
    names = {key: value and f"{value}-{task}" for key, value in own.items()}
    return Entry(
        name=f"{GLUE}-{task}",
        kind=GLUE,
        task=task,
        data=params.glue,
        rows=packed(params.glue_rows, params.packing),
        finetune=params.glue_finetune,
        evaluate=None,
        gate=params.glue_gate,
        publish=params.publish.model_copy(update=names),
        least_examples=params.glue.min_examples,
    )
