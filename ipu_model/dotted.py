"""Nested values under dotted names, as fingerprints and their differences are stated. Standard library only."""

from __future__ import annotations

from typing import Any, Dict, Mapping


def flat(values: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Nested dicts under dotted names: {"geometry": {"micro_batch_size": 4}} -> {"geometry.micro_batch_size": 4}."""
    result: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}."))
        else:
            result[f"{prefix}{name}"] = value
    return result
