"""The heads that a BERT can have, one file each: everything that differs between the tasks it is trained for.

Nothing else lists them: a file here is a head, called as the file is, and `of` imports it when it is asked for.
models/head.py says what such a file must hold.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, List

from ipu_model.errors import ConfigError
from ipu_model.models.outline import HeadOutline, read_outline

if TYPE_CHECKING:  # job.py asks for the names, in a Python without torch
    from ipu_model.models.head import Head


def names() -> List[str]:
    """The heads that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def of(name: str) -> Head:
    """The head of this name.

    Raises:
        ConfigError: there is none.
    """
    _check(name)
    head: Head = importlib.import_module(f"{__name__}.{name}").HEAD
    return head


@functools.lru_cache(maxsize=None)
def outline(name: str) -> HeadOutline:
    """What says where the head of this name stands on IPUs, for who plans without torch.

    Raises:
        ConfigError: there is none.
    """
    _check(name)
    return read_outline(Path(__path__[0]) / f"{name}.py")


def _check(name: str) -> None:
    if name not in names():
        raise ConfigError(f"head={name!r} is not one of {', '.join(names())}")
