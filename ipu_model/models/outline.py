"""What is known of a head without torch: which block it is on IPUs. Read from its file, which is not imported."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict


@dataclass(frozen=True)
class HeadOutline:
    """The constants of a head that say where it stands; what they mean is said in models/head.py."""

    title: str
    stage: str
    pooler: bool = True
    tied: bool = False
    pretrains: bool = False


def read_outline(path: Path) -> HeadOutline:
    """The outline of the head whose file this is: of its class that states `title` and `stage`.

    Raises:
        LookupError: there is no such class, which is a fault of ours.
    """
    wanted = {field.name for field in dataclasses.fields(HeadOutline)}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            stated = _constants(node)
            if "title" in stated and "stage" in stated:
                return HeadOutline(**{name: value for name, value in stated.items() if name in wanted})
    raise LookupError(f"{path} has no class that states title and stage as plain constants")


def _constants(node: ast.ClassDef) -> Dict[str, Any]:
    """The attributes that the body of a class sets to plain constants."""
    return {
        target.id: line.value.value
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
