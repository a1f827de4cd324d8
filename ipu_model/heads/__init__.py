"""The heads that a BERT can have, one file each: everything that differs between the tasks it is trained for.

Nothing else lists them: a file here is a head, called as the file is, and `of` imports it when it is asked for.
models/head.py says what such a file must hold.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, List

from ipu_model.errors import ConfigError

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
    if name not in names():
        raise ConfigError(f"head={name!r} is not one of {', '.join(names())}")
    head: Head = importlib.import_module(f"{__name__}.{name}").HEAD
    return head
