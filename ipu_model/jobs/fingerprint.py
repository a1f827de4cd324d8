"""Fingerprints of runs and programs: values under dotted names, and a short hash. Standard library only."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, Mapping


def flatten_keys(values: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Flatten nested dicts: {"geometry": {"micro_batch_size": 4}} -> {"geometry.micro_batch_size": 4}."""
    result: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result.update(flatten_keys(value, f"{prefix}{name}."))
        else:
            result[f"{prefix}{name}"] = value
    return result


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of some values; the order of the keys does not matter."""
    text = json.dumps(flatten_keys(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
