"""Families of encoders, one file per family, with everything that differs between them (models/family.py).

There is no other list: each file here is a family, with the name of transformers' model_type. Standard library only.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Any, Tuple

from ipu_model.models.config import ModelConfig
from ipu_model.models.family import Family
from ipu_model.models.transformers_family import make_family


@lru_cache(maxsize=None)  # a plan asks a hundred thousand times
def list_families() -> Tuple[str, ...]:
    """Return the model types of all families."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def get_family(model_type: str) -> Family:
    """Return the family with this model type; one without a file here is computed by transformers' own modules."""
    if model_type not in list_families():
        return make_family(model_type)
    return importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}").FAMILY


def configure_model(vocab_size: int, family: str, **fields: Any) -> ModelConfig:
    """Return the architecture of a model with new weights; see Family.configure."""
    return get_family(family).configure(vocab_size=vocab_size, **fields)
