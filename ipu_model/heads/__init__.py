"""Heads of BERT, one file per head, with everything that differs between tasks.

There is no other list: each file here is a head with the name of the file, and `get_head` imports it on demand.
models/head.py documents the content of such a file.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, List

from ipu_model.core.errors import ConfigError
from ipu_model.models.config import HeadSpec, read_head_spec

if TYPE_CHECKING:  # job.py imports this module in a Python without torch
    from ipu_model.models.head import Head


def list_heads() -> List[str]:
    """Return the names of all heads."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_head(name: str) -> Head:
    """Return the head with this name.

    Raises:
        ConfigError: there is no such head.
    """
    _check(name)
    return importlib.import_module(f"{__name__}.{name}").HEAD


@functools.lru_cache(maxsize=None)
def get_head_spec(name: str) -> HeadSpec:
    """Return the placement data of a head on IPUs, for planning without torch."""
    _check(name)
    return read_head_spec(Path(__path__[0]) / f"{name}.py")


def _check(name: str) -> None:
    if name not in list_heads():
        raise ConfigError(f"head={name!r} is not one of {', '.join(list_heads())}")
