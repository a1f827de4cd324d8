"""What a check says, and what it is told of the run that is to be."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows import checkout
from flows.forecast import StageForecast, forecast_with_files
from tasks.project.composing import compose
from tasks.project.params import Params, check
from tasks.project.plan_file import Stage, read_plan
from tasks.project.row_folders import MANIFEST

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `podium doctor`; a run is refused for every problem, and says the warnings."""

    name: str
    """What was looked at, in a word or two."""
    level: Level
    text: str
    """For a problem: what was found, what is required, and which parameter or setting to change."""
    of_parameters: bool = False
    """Whether the parameters are at fault, which is exit code 2, and not the host."""


@dataclass(frozen=True)
class Wanted:
    """The run that is to be."""

    project: Path
    values: dict[str, Any]
    """The resolved parameters; relative paths count from the project."""
    root: Path
    """The checkout it will work in, which may not be there yet."""
    stages: tuple[str, ...]
    """What it brings up to date, in order."""
    publish: bool
    on_workers: bool = False
    """Nothing is made here: the host of a worker has the device, the token and the disk."""
    curious: bool = False
    """`podium doctor` also asks what this run does not need to know."""
    force: bool = False
    """Device jobs that are not expected to fit are tried all the same."""

    @functools.cached_property
    def params(self) -> Params:
        """The same parameters, checked."""
        return check(self.values)

    @functools.cached_property
    def plan(self) -> tuple[Stage, ...]:
        """The same stages, as dvc.yaml has them."""
        known = read_plan(self.project, compose(self.params))
        return tuple(known[stage] for stage in self.stages)

    @property
    def forecast(self) -> tuple[StageForecast, ...]:
        """What would become of each stage; hashes what the parameters name.

        Raises:
            OSError: some of that cannot be read.
        """
        return tuple(self._foretold[0])

    @property
    def manifests(self) -> dict[str, Path]:
        """Manifests of rows that will be as a cache of this host has them -> where it has them; as `forecast`."""
        return self._foretold[1]

    @functools.cached_property
    def _foretold(self) -> tuple[list[StageForecast], dict[str, Path]]:
        project, root, values = self.project, self.root, self.values
        seen = values if root == project else checkout.seen_from(values, project, root)
        return forecast_with_files(project, root, seen, self.stages, MANIFEST)

    @property
    def name(self) -> str:
        """What the run is called; "." in the project's own folder."""
        return "." if self.root == self.project else self.root.name

    def makes(self, *names: str) -> bool:
        """Whether a stage of one of these names, whatever its item, is among those to make."""
        return any(stage.partition("@")[0] in names for stage in self.stages)


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", text)


def warning(name: str, text: str) -> Finding:
    """Worth a line, and no reason to refuse."""
    return Finding(name, "warning", text)


def problem(name: str, text: str, *, of_parameters: bool = False) -> Finding:
    """A reason to refuse."""
    return Finding(name, "problem", text, of_parameters)
