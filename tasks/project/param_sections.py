"""What a section of params.yaml is, and the sections that say how and where device jobs run (the others: params.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
HeldOut = Annotated[float, Field(ge=0, le=0.5)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _named(pattern: str, rule: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is {text!r}, must be {rule}")
        return text

    return AfterValidator(check)


Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, _named(r"[^\x00-\x1f\x7f]+", "one line of text, without control characters, and not empty")]
"""Name of a file, a column or a run."""
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")
"""The name of a model or data set on the Hub."""
HubName = Annotated[str, _named(HUB_NAME.pattern, "user/name, of letters, digits, '-', '_' and '.'")]
Word = Annotated[str, _named(r"[A-Za-z0-9][A-Za-z0-9.+-]*", "one word of letters, digits, '.', '+' and '-'")]
"""Name of a license or a language."""


class Section(BaseModel):
    """Frozen, no unknown keys, no silent conversion (the text "3" is no number), no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DeviceParams(Section):
    runtime: Literal["auto", "cpu", "cuda", "ipu"] = "auto"
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["none", "optimizer"] = "none"
    micro_batch_size: Positive = 8
    recompute: bool = False
    """It changes no result, so that no stage depends on it."""
    launcher: Literal["torchrun", "poprun"] | None = None
    processes: Positive = 1
    restarts: Annotated[int, Field(ge=0)] = 0

    @field_validator("compile", mode="before")
    @classmethod
    def _layers_are_not_compiled(cls, value: object) -> object:
        """Old values are answered with what to write now."""
        if value in ("layers", "all"):
            now = "none" if value == "layers" else "optimizer"
            raise ValueError(f"compiled encoder layers never paid and are gone: write {now} in the place of {value}")
        return value

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
    phase1: dict[str, Any] | None = None
    phase2: dict[str, Any] | None = None
    inference_execution: Literal["auto", "sharded", "pipelined"] = "auto"


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

    backends: list[Literal["wandb", "tensorboard", "mlflow"]] = Field(default_factory=list)
    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")] = "podium"
    """What every backend takes."""
    name: Name | None = None
    group: Name | None = None
    folder: Name = "runs/tracking"

    @model_validator(mode="after")
    def _each_once(self) -> TrackingParams:
        if len(set(self.backends)) < len(self.backends):
            raise ValueError(f"backends={self.backends} names one twice")
        return self


class CheckpointParams(Section):
    """Where checkpoints travel to; it changes no result, so that no stage depends on it."""

    remote: Name | None = None

    @model_validator(mode="after")
    def _no_secret(self) -> CheckpointParams:
        if self.remote and urlsplit(self.remote).password is not None:
            raise ValueError("remote holds a password, and params.yaml is for everybody: leave it to the environment")
        return self
