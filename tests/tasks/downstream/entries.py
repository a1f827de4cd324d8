"""Entries of downstream work with sections of their own, for tests of what the kinds share."""

from __future__ import annotations

import dataclasses
from typing import Any

from tasks.downstream.entries import entry_of
from tasks.downstream.task import part_of
from tasks.project.params import check
from tasks.project.strict_yaml import read_yaml
from tests.places import ROOT


def task_with(name: str, part: str = "about", **sections: Any) -> Any:
    """A part of an entry of the project's own params.yaml, `squad` or `glue-<task>`, with other sections."""
    values = read_yaml(ROOT / "params.yaml")
    values["glue"]["tasks"] = [name.removeprefix("glue-")] if name.startswith("glue-") else []
    return part_of(dataclasses.replace(entry_of(check(values), name), **sections), part)
