"""Heads of BERT, one file per head, with everything that differs between tasks.

There is no other list: each file here is a head with the name of the file, and `get_head` imports it on demand.
models/head.py documents the content of such a file.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List

from ipu_model.errors import ConfigError

if TYPE_CHECKING:  # job.py imports this module in a Python without torch
    from ipu_model.models.head import Head


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
    return {
        target.id: line.value.value
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }


def list_heads() -> List[str]:
    """Return the names of all heads."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_head(name: str) -> Head:
    """Return the head with this name.

    Raises:
        ConfigError: there is no such head.
    """
    _check(name)
    head: Head = importlib.import_module(f"{__name__}.{name}").HEAD
    return head


@functools.lru_cache(maxsize=None)
def get_head_spec(name: str) -> HeadSpec:
    """Return the placement data of a head on IPUs, for planning without torch.

    Raises:
        ConfigError: there is no such head.
    """
    _check(name)
    return read_head_spec(Path(__path__[0]) / f"{name}.py")


def _check(name: str) -> None:
    if name not in list_heads():
        raise ConfigError(f"head={name!r} is not one of {', '.join(list_heads())}")
