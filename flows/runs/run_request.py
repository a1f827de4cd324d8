"""Request of a run: its parameters, plan and checkout, resolved once and then passed on."""

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.runs import policy, run_params
from flows.runs.checkout import Checkout, choose_folder, describe_checkout
from flows.runs.stage_plan import ALL, select_stages
from tasks.params.overlays import Setting, read_base, resolve
from tasks.params.schema import Params, unify_numbers, validate_params
from tasks.plan.dvc_records import StageStatus, compute_statuses
from tasks.plan.plan_file import PARAMS_FILE, Plan, Stage
from tasks.stage import artifacts
from tasks.stage.process import is_sent

CPU_QUEUE = "cpu/default"
"""Default queue of stages that use no device."""
SUBJECT = "the parameters"
"""Name of the parameters in messages."""


@dataclass(frozen=True)
class RunRequest:
    """Request of a run, resolved."""

    preset: str | None
    """Preset that extends the defaults; None: params.yaml."""
    overrides: tuple[str, ...]
    """Values of `--set` that extend the preset or params.yaml."""
    values: dict[str, Any]
    """Resolved parameters, with paths relative to the project."""
    params: Params
    """The same parameters, validated."""
    checkout: Checkout
    """Folder of the run, and its plan."""
    target: tuple[str, ...]
    """Stages that the run brings up to date, in order."""
    publish: bool
    """Publish models that a gate accepts; False if the run has no gate."""
    on_workers: bool = False
    """Run stages on workers, whose hosts have the device, the token and the disk."""
    thorough: bool = False
    """Check more than this run needs, for `podium doctor`."""
    force: bool = False
    """Run device jobs that are not expected to fit into memory."""
    part: str = ALL
    """Requested part of the pipeline."""
    to: tuple[str, ...] = ()
    """Requested last stages."""
    explicit_name: str | None = None
    """Name from the options; None: the parameters determine the folder."""

    @property
    def project(self) -> Path:
        """Project folder, with code, inputs and presets."""
        return self.checkout.project

    @property
    def root(self) -> Path:
        """Folder of the checkout, which may not exist yet."""
        return self.checkout.folder

    @property
    def plan(self) -> Plan:
        """All stages for the parameters, with paths relative to the checkout."""
        return self.checkout.plan

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Definitions of the target's stages."""
        return tuple(self.plan[name] for name in self.target)

    @property
    def name(self) -> str:
        """Name of the run; "." in the project folder."""
        return self.checkout.name

    @property
    def options(self) -> dict[str, Any]:
        """Options other than parameters and name, as arguments of `resolve_request`."""
        return {name: getattr(self, name) for name in ("part", "to", "publish", "on_workers", "force")}

    @property
    def command_options(self) -> str:
        """Options of the command line for this run, quoted for a shell, after a space; empty if there are none."""
        stated = [
            ("--preset", self.preset),
            *(("--set", one) for one in self.overrides),
            ("--name", self.explicit_name),
        ]
        stated += [("--part", self.part if self.part != ALL else None), *(("--to", one) for one in self.to)]
        words = [word for option, value in stated if value is not None for word in (option, value)]
        return f" {shlex.join(words)}" if words else ""

    @functools.cached_property
    def forecast(self) -> tuple[StageStatus, ...]:
        """Expected status of each stage. Computing it hashes the input files.

        Raises:
            OSError: an input file cannot be read.
        """
        stated = {PARAMS_FILE: self.checkout.values}
        return compute_statuses(self.project, self.root, self.plan, stated, self.target)

    def makes(self, *names: str) -> bool:
        """Return whether the target has a stage of one of these groups, such as pretrain for pretrain@phase1."""
        return any(stage.partition("@")[0] in names for stage in self.target)


def resolve_request(
    project: Path,
    preset: str | None,
    overrides: Sequence[str | Setting],
    part: str = ALL,
    to: Sequence[str] = (),
    publish: bool = True,
    on_workers: bool = False,
    thorough: bool = False,
    name: str | None = None,
    force: bool = False,
    values: dict[str, Any] | None = None,
) -> RunRequest:
    """Resolve the options of a command line, or the fields of a form.

    Args:
        project: folder with params.yaml and presets.
        overrides: values of `--set` and of other options.
        part: part of the pipeline; see `flows.runs.stage_plan.select_stages`.
        to: last stages of the run; nothing is published then.
        name: name of the run; None: the parameters determine the folder.
        values: resolved parameters of an existing run; None: resolve the preset and the overrides.
        preset, publish, on_workers, thorough, force: see `RunRequest`.

    Raises:
        ParamsError: preset, overrides, part or stages are invalid; or the name belongs to a run with other parameters;
            or, on a worker, its policy does not allow the parameters.
    """
    if values is None:
        values = resolve(read_base(preset, project), preset, overrides, project / artifacts.PRESETS)
    # The sender of a run may not be allowed to read other files of this worker.
    params = policy.require_parameters(values, project, SUBJECT) if is_sent() else validate_params(values, SUBJECT)
    values = unify_numbers(values, params)
    folder = choose_folder(project, values, preset, overrides, name, on_workers)
    place = describe_checkout(project, values, params, folder)
    target = tuple(select_stages(place.plan, part, to))
    run_params.require_same_params(project, values, name)
    publish = publish and not to and any(place.plan[stage].is_gate for stage in target)
    words = tuple(map(str, overrides))
    return RunRequest(
        preset, words, values, params, place, target, publish, on_workers, thorough, force, part, tuple(to), name
    )
