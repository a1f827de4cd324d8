"""Options of a run: what its command line, the form of a Prefect server, or the record of its last start states."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from pydantic import WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from flows.runs.stage_plan import ALL, known_parts
from tasks.params.downstream import kind_names
from tasks.params.overlays import Setting, list_preset_names
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

CPU_QUEUE = "cpu/default"
"""Default queue of stages that use no device."""
NO_PRESET = str(artifacts.PARAMS)
"""Choice in the form for params.yaml instead of a preset."""
NO_KIND = "none"
"""Choice in the form for the entries of the preset or params.yaml."""
OF_KIND = ("task", "model", "train", "dev", "columns")
"""Fields of a form that fine-tunes a model on files."""
RECORDED = ("part", "to", "publish", "on_workers", "force", "cpu_queue", "device_queue")
"""Options other than parameters and name, which the record of a run has elsewhere."""

Preset = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [NO_PRESET, *list_preset_names()]})]
"""Presets of the folder in which the flow is loaded."""
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
Part = Annotated[str, WithJsonSchema({"type": "string", "enum": known_parts(kind_names())})]
Kind = Annotated[str, WithJsonSchema({"type": "string", "enum": [NO_KIND, *kind_names()]})]
ITEMS = {"type": "array", "items": {"type": "string", "default": ""}}
"""List of texts; the default is the value of a new item, which would otherwise be null and refused."""
Texts = Annotated[Sequence[str], WithJsonSchema(ITEMS)]
Settings = Annotated[Sequence[str | Setting], WithJsonSchema(ITEMS)]
HiddenText = Annotated[str | None, SkipJsonSchema()]
"""Option that only `podium run` sets; the form leaves it out."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. They are the parameters of the flow, and so the fields of its form.

    Optional texts are plain fields that may stay empty, because "or null" would show two fields each in the form.

    Args:
        preset: A preset that extends the defaults. params.yaml: use the project's parameters.
        overrides: Parameters to change, as `section.key=value`, for example `pretrain.seed=7`.
        name: Name of the run and of its folder, instead of the "Run Name" above. A name that belongs to a run with
            other parameters is refused.
        part: Part of the pipeline: all; pretraining; finetuning, which restores the pre-trained model; or the stages of
            one kind of task.
        kind: Kind of task, to fine-tune `model` on the file `train` as `podium finetune` does, without `preset`.
        task: Task of the kind glue, such as sst2.
        model: Model folder, run of podium pretrain, or Hub repository.
        train: Training data, a file or folder on the workers, or a Hub data set.
        dev: Evaluation data; if empty, a part of `train`.
        columns: Columns of the files, as PART=NAME, for example `label=stars`.
        to: Stages, such as gate@squad. Only these and the stages they need run, and nothing is published.
        publish: Publish models that the gate accepts. Otherwise the run ends at the gate.
        force: Run device jobs even if they are not expected to fit into memory.
        on_workers: Send the stages to queues. Otherwise they run on the host of this run.
        cpu_queue: The `pool/queue` for data preparation, validation, evaluation, gate and publish.
        device_queue: The `pool/queue` for training and prediction, such as ipu/pod-a. If empty, the queue `default` of
            the pool named like device.runtime, which must not be auto.
        command: The command line that started the run, for the list of runs.
        log: The log file, relative to the project's folder.
    """

    preset: Preset = NO_PRESET
    overrides: Settings = ()
    name: Text = ""
    part: Part = ALL
    kind: Kind = NO_KIND
    task: Text = ""
    model: Text = ""
    train: Text = ""
    dev: Text = ""
    columns: Texts = ()
    to: Texts = ()
    publish: bool = True
    force: bool = False
    on_workers: bool = False
    cpu_queue: str = CPU_QUEUE
    device_queue: Text = ""
    command: HiddenText = None
    log: HiddenText = None

    def __post_init__(self) -> None:
        """Use None for optional texts that are empty, and for params.yaml as a preset."""
        for field in fields(self):
            if field.default == "" == getattr(self, field.name):
                object.__setattr__(self, field.name, None)
        if self.preset == NO_PRESET:
            object.__setattr__(self, "preset", None)

    def clean_form(self) -> "RunOptions":
        """Return the options of a form without outer whitespace and empty fields and items.

        Raises:
            ParamsError: fields of a fine-tuning are filled in, but no kind is chosen; or a kind and a preset are.
        """
        cleaned: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, tuple):
                items = (item.strip() if isinstance(item, str) else item for item in value)
                cleaned[field.name] = tuple(item for item in items if item)
            elif not isinstance(value, bool):
                cleaned[field.name] = (value or "").strip() or field.default
        form = replace(self, **cleaned)
        if form.kind == NO_KIND and (unused := [name for name in OF_KIND if getattr(form, name)]):
            raise ParamsError(f"{', '.join(unused)} are of a fine-tuning: choose a kind for them, or leave them empty")
        if form.kind != NO_KIND and form.preset is not None:
            raise ParamsError(f"kind {form.kind} does not use preset {form.preset}: leave out one of both")
        return form

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that the record of a run keeps, to resume it."""
        return {name: getattr(self, name) for name in RECORDED}

    @property
    def as_words(self) -> str:
        """Options of the command line, quoted for a shell, after a space; empty if there are none."""
        options = [("--preset", self.preset), *(("--set", str(text)) for text in self.overrides), ("--name", self.name)]
        options += [("--part", self.part if self.part != ALL else None), *(("--to", stage) for stage in self.to)]
        words = [word for option, value in options if value is not None for word in (option, value)]
        return f" {shlex.join(words)}" if words else ""
