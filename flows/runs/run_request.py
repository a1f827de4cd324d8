"""What a run is to do: its parameters, plan and checkout, resolved once and passed on to whatever needs them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.runs import policy, run_params
from flows.runs.checkout import Checkout, checkout_of, folder_of
from flows.runs.stage_plan import ALL, stages_to_run
from tasks.params.overlays import Setting, base_of, resolve
from tasks.params.schema import Params, check
from tasks.plan.dvc_records import StageForecast, forecast
from tasks.plan.plan_file import COMPOSED_FILE, PARAMS_FILE, Plan, Stage
from tasks.stage import artifacts
from tasks.stage.process import is_sent
from tasks.stage.row_folders import MANIFEST

CPU_QUEUE = "cpu/default"
"""Where stages that use no device are sent, unless it is stated."""
CALLED = "the parameters"
"""What messages call them."""


@dataclass(frozen=True)
class RunRequest:
    """A run that is to be, or that is under way."""

    preset: str | None
    """The recipe that lies over the defaults; None: params.yaml counts."""
    overrides: tuple[str, ...]
    """Words of `--set` that say what was laid over it."""
    values: dict[str, Any]
    """The resolved parameters; relative paths count from the project."""
    params: Params
    """The same parameters, checked."""
    checkout: Checkout
    """Where it works, and the plan there."""
    target: tuple[str, ...]
    """The stages that it brings up to date, in order."""
    publish: bool
    """Whether it publishes what a gate accepts; false where it has no gate."""
    on_workers: bool = False
    """Nothing is made here: the host of a worker has the device, the token and the disk."""
    curious: bool = False
    """`podium doctor` also asks what this run does not need to know."""
    force: bool = False
    """Device jobs that are not expected to fit are tried all the same."""
    part: str = ALL
    """The part of the pipeline that was asked for, as were the stages `to` run to, and the name."""
    to: tuple[str, ...] = ()
    called: str | None = None
    """None: its parameters say where it works."""

    @property
    def project(self) -> Path:
        """The folder whose code, inputs and presets are used."""
        return self.checkout.project

    @property
    def root(self) -> Path:
        """The folder of the checkout, which may not be there yet."""
        return self.checkout.folder

    @property
    def plan(self) -> Plan:
        """Every stage that the parameters have, paths as in the checkout."""
        return self.checkout.plan

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the target, as dvc.yaml has them."""
        return tuple(self.plan[name] for name in self.target)

    @property
    def name(self) -> str:
        """What the run is called; "." in the project's own folder."""
        return self.checkout.name

    @property
    def words(self) -> str:
        """The options that ask for it, for a shell, a blank before them; empty if there are none."""
        stated = [("--preset", self.preset), *(("--set", one) for one in self.overrides), ("--name", self.called)]
        stated += [("--part", self.part if self.part != ALL else None), *(("--to", one) for one in self.to)]
        words = [word for option, value in stated if value is not None for word in (option, value)]
        return f" {shlex.join(words)}" if words else ""

    @property
    def forecast(self) -> tuple[StageForecast, ...]:
        """What would become of each stage; hashes what the parameters name.

        Raises:
            OSError: some of that cannot be read.
        """
        return tuple(self._forecast[0])

    @property
    def manifests(self) -> dict[str, Path]:
        """Manifests of rows that will be as a cache of this host has them -> where it has them; as `forecast`."""
        return self._forecast[1]

    @functools.cached_property
    def _forecast(self) -> tuple[list[StageForecast], dict[str, Path]]:
        stated = {PARAMS_FILE: self.checkout.values, COMPOSED_FILE: self.checkout.composed}
        return forecast(self.project, self.root, self.plan, stated, self.target, MANIFEST)

    def makes(self, *names: str) -> bool:
        """Whether a stage of one of these names, whatever its item, is among those to make."""
        return any(stage.partition("@")[0] in names for stage in self.target)


def resolve_request(
    project: Path,
    preset: str | None,
    overrides: Sequence[str | Setting],
    part: str = ALL,
    to: Sequence[str] = (),
    publish: bool = True,
    on_workers: bool = False,
    curious: bool = False,
    name: str | None = None,
    force: bool = False,
) -> RunRequest:
    """Resolve what the words of a command line, or of a form, ask for.

    Args:
        project: holds params.yaml, presets and dvc.yaml.
        preset: a recipe; None: params.yaml.
        overrides: words of `--set`, and what other options state, laid over it.
        part: a part of the pipeline; see `flows.runs.stage_plan.stages_to_run`, as is `to`.
        to: stages to run to; nothing is published then.
        publish: publish what a gate accepts.
        on_workers: stages are sent to queues.
        curious: see RunRequest, as is `force`.
        name: what the run is called; None: its parameters say where it works.
        force: try what is not expected to fit.

    Raises:
        ParamsError: preset, overrides, part or the stages to run to are wrong, or the name is another run's; of a run
            that a worker was sent, parameters that this worker does not allow.
    """
    values = resolve(base_of(preset, project), preset, overrides, project / artifacts.PRESETS)
    # What was sent, somebody may have stated who may read nothing else here.
    params = policy.require_parameters(values, project, CALLED) if is_sent() else check(values, CALLED)
    folder = folder_of(project, values, preset, overrides, name, on_workers)
    place = checkout_of(project, values, params, folder)
    target = tuple(stages_to_run(project, place.plan, part, to))
    run_params.require_same(project, values, name)
    publish = publish and not to and any(place.plan[stage].is_gate for stage in target)
    words = tuple(map(str, overrides))
    return RunRequest(
        preset, words, values, params, place, target, publish, on_workers, curious, force, part, tuple(to), name
    )
