"""What a section of params.yaml is, and the sections that say how and where device jobs run (the others: params.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

Fraction = Annotated[float, Field(ge=0, le=1)]
HeldOut = Annotated[float, Field(ge=0, le=0.5)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
SHORTEST_ROW = 16
RowLength = Annotated[int, Field(ge=SHORTEST_ROW, le=32767)]


def _named(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is {text!r}, must be {rule}")
        return text

    return AfterValidator(check)


def _written(pattern: str) -> WithJsonSchema:
    """The same rule for editors."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


Text = Annotated[str, StringConstraints(min_length=1)]
LINE = r"[^\x00-\x1f\x7f]+"
Name = Annotated[str, _named(LINE, "one line of text, without control characters, and not empty"), _written(LINE)]
"""Name of a file, a column or a run."""
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""The name of a model or data set on the Hub."""
HubName = Annotated[
    str, _named(HUB_NAME.pattern, "user/name, of letters, digits, '-', '_' and '.'"), _written(HUB_NAME.pattern)
]
WORD = r"[A-Za-z0-9][A-Za-z0-9.+-]*"
Word = Annotated[str, _named(WORD, "one word of letters, digits, '.', '+' and '-'"), _written(WORD)]
"""Name of a license or a language."""
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
SEPARATOR = rf"{'|'.join(SEPARATORS)}|\t|[!#$%&*+,./:;=?@^_`|~-]"
Separator = Annotated[
    str,
    _named(SEPARATOR, f"{', '.join(SEPARATORS)}, or one sign"),
    AfterValidator(lambda word: SEPARATORS.get(word, word)),
    _written(SEPARATOR),
]
"""What separates the fields of a table."""


class Section(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the text "3" is no number), no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DeviceParams(Section):
    runtime: Literal["auto", "cpu", "cuda", "ipu"] = "auto"
    """cpu, cuda, ipu, or auto: IPUs, else a GPU, else the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """fp32, bf16, fp16 (on ipu), or auto: the faster one of the device, which a CPU measures."""
    compile: Literal["none", "optimizer"] = "none"
    """none, or optimizer: LAMB's update compiled on cpu, a third faster."""
    micro_batch_size: Positive = 8
    """Rows in one forward pass, where a job states no other."""
    recompute: bool = False
    """On cpu and cuda: keep less of a forward pass and compute it again, a third slower. It changes no result."""
    launcher: Literal["torchrun", "poprun"] | None = None
    """torchrun (cpu, cuda) or poprun (ipu) trains with several processes (docs/survive.md); null: one process."""
    processes: Positive = 1
    """Processes of a training job, all hosts together; each trains on its share of every update."""
    restarts: Annotated[int, Field(ge=0)] = 0
    """Times that torchrun begins again from the last checkpoint when a process dies."""

    @model_validator(mode="after")
    def _the_launcher_serves_the_device(self) -> DeviceParams:
        serves = {"torchrun": ("cpu", "cuda"), "poprun": ("ipu",)}
        if self.recompute and self.runtime == "ipu":
            raise ValueError(
                "recompute: true is of cpu and cuda; on IPUs it is recompute_checkpoint_every_layer of an "
                "ipu_config.json: set recompute to false"
            )
        if self.launcher is not None and self.runtime not in serves[self.launcher]:
            raise ValueError(
                f"launcher {self.launcher} starts jobs on {' and '.join(serves[self.launcher])}, found "
                f"runtime={self.runtime}: state one of them, or launcher: null"
            )
        if self.launcher is None and self.processes > 1:
            raise ValueError(f"processes={self.processes} needs launcher: torchrun (cpu, cuda) or poprun (ipu)")
        if self.launcher != "torchrun" and self.restarts:
            raise ValueError(f"restarts={self.restarts} needs launcher: torchrun; others do not start again")
        return self


class IpuParams(Section):
    """Placement and memory on IPUs; the keys of the mappings are checked by ipu_model.ipu.config."""

    config: Name = "inputs/ipu"
    """An ipu_config.json, as Optimum Graphcore writes it, or its folder; one that is not there: none."""
    phase1: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the first phase, laid over that file."""
    phase2: dict[str, Any] | None = None
    """Keys of an ipu_config.json for the second phase, laid over that file."""
    inference_execution: Literal["auto", "sharded", "pipelined"] = "auto"
    """sharded: one IPU of a replica works at a time; pipelined: all do; auto: where it can."""


RUNTIMES = ("auto", "cpu", "cuda", "ipu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Place:
    """Where a model is computed: cpu:bf16, or cpu, which leaves the precision to the device (auto)."""

    runtime: str
    precision: str = "auto"

    @staticmethod
    def of(text: str) -> Place:
        """Read `RUNTIME[:PRECISION]`.

        Raises:
            ValueError: it names no runtime or precision of this program.
        """
        runtime, colon, precision = text.partition(":")
        if runtime not in RUNTIMES or (colon and precision not in PRECISIONS):
            raise ValueError(
                f"{text!r} must be RUNTIME[:PRECISION], a runtime of {', '.join(RUNTIMES)} and a precision of "
                f"{', '.join(PRECISIONS)}, for example cpu:bf16"
            )
        return Place(runtime, precision or "auto")


class TrackingParams(Section):
    """Where trainings are watched; it changes no result, so that no stage depends on it."""

    backends: list[Literal["trackio", "wandb", "tensorboard", "mlflow"]] = Field(default_factory=list)
    """Trackers that record trainings; keys and addresses come from the environment (docs/tracking.md)."""
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")] = "podium"
    """What the project is called there; a name that every tracker takes."""
    name: Name | None = None
    """Put before the name of the stage, which a run is called by."""
    group: Name | None = None
    """What runs belong together by; null: the parameters. The same training in another group is another run."""
    folder: Name = "runs/tracking"
    """Where what is recorded on this host goes."""

    @model_validator(mode="after")
    def _each_once(self) -> TrackingParams:
        if len(set(self.backends)) < len(self.backends):
            raise ValueError(f"backends={self.backends} names one twice")
        return self


class CheckpointParams(Section):
    """Where checkpoints travel to; it changes no result, so that no stage depends on it."""

    remote: Name | None = None
    """A folder or URL (s3://bucket/path, sftp://host/path) that checkpoints are copied to; null: none."""

    @model_validator(mode="after")
    def _no_secret(self) -> CheckpointParams:
        if self.remote and urlsplit(self.remote).password is not None:
            raise ValueError("remote holds a password, and params.yaml is for everybody: leave it to the environment")
        return self


class PublishParams(Section):
    """Where a release goes is said by its entry (EntryPublishParams)."""

    target: Literal["local", "hub"] = "local"
    """local: a folder in Hub layout; hub: a Hugging Face repository."""
    private: bool = True
    """A repository that is created is private, and a public one is refused."""
    review: bool = False
    """Open a pull request on the Hub; the model is released (tagged) once that is merged and published again."""
    examples: bool = False
    """Predictions and the page of the evaluation, which quote your data, are published, too."""
    license: Word | None = None
    """Licence of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    language: Word | None = None
    """Language of the model on its card; null: that of the base model's README.md, or none. A release on the Hub needs
    one."""
    base_model: HubName | None = None
    """Name of the base model on the card, user/name on the Hub; null: base_model.repository, or what config.json or
    README.md of the base model state, or none."""

    @model_validator(mode="after")
    def _a_review_needs_the_hub(self) -> PublishParams:
        if self.review and self.target != "hub":
            raise ValueError("review: true opens a pull request, which needs target: hub")
        return self
