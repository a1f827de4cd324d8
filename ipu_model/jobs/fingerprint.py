"""What decides a run or a program, as values under dotted names and as a short hash. Standard library only."""

from __future__ import annotations

import hashlib
import json
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


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of what decides an executable; the order of the keys does not matter."""
    text = json.dumps(flat(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
