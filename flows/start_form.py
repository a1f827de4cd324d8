"""What a Prefect server shows who starts a run by hand, in the types of the flow's parameters.

The form is made from the schema that a deployment gets (`podium deploy`), in the order of the flow's parameters, which
its docstring describes. What may be left out is an empty field there; "or null" would make two of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from tasks.project import artifacts
from tasks.project.overlays import preset_names

NO_PRESET = str(artifacts.PARAMS)
"""What is chosen in place of a preset where params.yaml counts."""
Preset = Annotated[str | None, WithJsonSchema({"type": "string", "enum": [NO_PRESET, *preset_names()]})]
"""Those of the project's folder, where the flow is loaded."""
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
Words = Annotated[Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})]

Unseen = Annotated[str | None, SkipJsonSchema()]
"""What `podium run` notes, and nobody at a form knows: it is not in there."""


def preset_of(chosen: str | None) -> str | None:
    """The preset that the form, or a caller, names; None: params.yaml."""
    return None if chosen == NO_PRESET else chosen
