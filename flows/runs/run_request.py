"""Request of a run: its parameters, plan and checkout, resolved once and then passed on."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.runs import policy, run_params
from flows.runs.checkout import Checkout, choose_folder, describe_checkout
from flows.runs.run_options import RunOptions
from flows.runs.stage_plan import select_stages
from tasks.params.overlays import read_base, resolve
from tasks.params.schema import Params, unify_numbers, validate_params
from tasks.plan.dvc_records import StageStatus, compute_statuses
from tasks.plan.plan_file import PARAMS_FILE, Plan, Stage
from tasks.stage import artifacts
from tasks.stage.process import is_sent

SUBJECT = "the parameters"
"""Name of the parameters in messages."""


@dataclass(frozen=True)
class RunRequest:
    """Request of a run, resolved."""

    options: RunOptions
    """Options, with the arguments of `--set` as text. `publish` is False if the run has no gate or ends before it."""
    values: dict[str, Any]
    """Resolved parameters, with paths relative to the project."""
    params: Params
    """The same parameters, validated."""
    checkout: Checkout
    """Folder of the run, and its plan."""
    target: tuple[str, ...]
    """Stages that the run brings up to date, in order."""
    thorough: bool = False
    """Check more than this run needs, for `podium doctor`."""

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

    @functools.cached_property
    def forecast(self) -> tuple[StageStatus, ...]:
        """Expected status of each stage. Computing it hashes the input files.

        Raises:
            OSError: an input file cannot be read.
        """
        params = {PARAMS_FILE: self.checkout.values}
        return compute_statuses(self.project, self.root, self.plan, params, self.target)

    def makes(self, *names: str) -> bool:
        """Return whether the target has a stage of one of these groups, such as pretrain for pretrain@phase1."""
        return any(stage.partition("@")[0] in names for stage in self.target)


def resolve_request(
    project: Path, options: RunOptions, values: dict[str, Any] | None = None, thorough: bool = False
) -> RunRequest:
    """Resolve options to parameters, plan and checkout.

    Args:
        project: folder with params.yaml and presets.
        options: options of the run.
        values: resolved parameters of an existing run; None: resolve the preset and the overrides.
        thorough: see `RunRequest`.

    Raises:
        ParamsError: preset, overrides, part or stages are invalid; or the name belongs to a run with other parameters;
            or, on a worker, its policy does not allow the parameters.
    """
    preset, overrides, name = options.preset, options.overrides, options.name
    if values is None:
        values = resolve(read_base(preset, project), preset, overrides, project / artifacts.PRESETS)
    # The sender of a run may not be allowed to read other files of this worker.
    params = policy.require_parameters(values, project, SUBJECT) if is_sent() else validate_params(values, SUBJECT)
    values = unify_numbers(values, params)
    folder = choose_folder(project, values, preset, overrides, name, options.on_workers)
    checkout = describe_checkout(project, values, params, folder)
    target = tuple(select_stages(checkout.plan, options.part, options.to))
    run_params.require_same_params(project, values, name)
    publish = options.publish and not options.to and any(checkout.plan[stage].is_gate for stage in target)
    options = replace(options, overrides=tuple(map(str, overrides)), publish=publish)
    return RunRequest(options, values, params, checkout, target, thorough)
