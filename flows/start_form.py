"""What a Prefect server shows who starts a run by hand, in the types of the flow's parameters.

The form is made from the schema that a deployment gets (`podium deploy`), in the order of the flow's parameters, which
its docstring describes. What may be left out is an empty field there; "or null" would make two of each. Fields for text
have room for lines, and an item that was added is empty: space around a text counts for nothing, nor does an empty one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from flows.plan import part_names
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.overlays import preset_names
from tasks.project.param_downstream import kind_names
from tasks.project.plan_file import definitions_of


def _parts() -> list[str]:
    """Those of the project's folder; a form is no place to say what is wrong with its dvc.yaml."""
    with contextlib.suppress(OSError, InputError):
        return part_names(definitions_of(Path()), kind_names())
    return part_names({}, kind_names())


NO_PRESET = str(artifacts.PARAMS)
"""What is chosen in place of a preset where params.yaml counts."""
Preset = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [NO_PRESET, *preset_names()]})]
"""Those of the project's folder, where the flow is loaded."""
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
Part = Annotated[str, WithJsonSchema({"type": "string", "enum": _parts()})]
Words = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string", "default": ""}})]
"""The default is what an item is before anything is written into it; without one it would be null, and refused."""

Unseen = Annotated[str | None, SkipJsonSchema()]
"""What `podium run` notes, and nobody at a form knows: it is not in there."""


def text_of(written: str | None) -> str | None:
    """What somebody wrote into a field; None: nothing."""
    return (written or "").strip() or None


def words_of(written: Sequence[str] | None) -> list[str]:
    """The items of a list into which something was written."""
    return [word for item in written or () if (word := text_of(item))]


def preset_of(chosen: str | None) -> str | None:
    """The preset that the form, or a caller, names; None: params.yaml."""
    return None if chosen == NO_PRESET else chosen
