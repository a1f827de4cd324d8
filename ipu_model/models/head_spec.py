"""Constants of a head that are needed without torch, read from its file without importing it."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict


@dataclass(frozen=True)
class HeadSpec:
    """Constants of a head that decide its placement; models/head.py documents them."""

    title: str
    stage: str
    pooler: bool = True
    tied: bool = False
    pretrains: bool = False


def read_head_spec(path: Path) -> HeadSpec:
    """Read the constants of a head from its file: from the class that sets `title` and `stage`.

    Raises:
        LookupError: there is no such class, which is a bug.
    """
    names = {field.name for field in dataclasses.fields(HeadSpec)}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            constants = _read_constants(node)
            if "title" in constants and "stage" in constants:
                return HeadSpec(**{name: value for name, value in constants.items() if name in names})
    raise LookupError(f"{path} has no class that sets title and stage to plain constants")


def _read_constants(node: ast.ClassDef) -> Dict[str, Any]:
    """Return the attributes that the body of a class sets to plain constants."""
    return {
        target.id: line.value.value
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
