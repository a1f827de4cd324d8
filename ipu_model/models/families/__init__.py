"""Families of encoders, one file per family, with everything that differs between them (models/family.py).

There is no other list: each file here is a family, with the name of transformers' model_type. Standard library only.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import List

from ipu_model.errors import ConfigError
from ipu_model.models.family import Family


def list_families() -> List[str]:
    """Return the model types of all families."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def get_family(model_type: str) -> Family:
    """Return the family with this model type.

    Raises:
        ConfigError: there is no such family.
    """
    if model_type not in list_families():
        raise ConfigError(f"model_type is {model_type!r:.80}; supported: {', '.join(list_families())}")
    family: Family = importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}").FAMILY
    return family
