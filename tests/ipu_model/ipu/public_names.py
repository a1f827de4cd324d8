"""Names of a BERT trainer's part of PopTorch, with what they take. `python public_names.py` prints them as JSON."""

from __future__ import annotations

import enum
import inspect
import json
from typing import Any, Dict

MADE_BY_FUNCTIONS = ("PoplarExecutor",)
"""Classes that no one calls: their constructors do not matter."""


def public_names() -> Dict[str, Any]:
    """Dotted name -> names of its arguments, or the members of an enumeration."""
    import poptorch

    options = poptorch.Options()
    found: Dict[str, Any] = {}
    for name in poptorch.__all__ if hasattr(poptorch, "__all__") else dir(poptorch):
        thing = getattr(poptorch, name)
        if inspect.ismodule(thing) or name.startswith("_") or name in MADE_BY_FUNCTIONS:
            continue
        if inspect.isclass(thing) and issubclass(thing, enum.Enum):
            found[name] = {member.name: member.value for member in thing}
        elif callable(thing) and not (inspect.isclass(thing) and issubclass(thing, BaseException)):
            found[name] = _arguments(thing)
    for group in ("Training", "Precision", "TensorLocations", "_Popart"):
        found.update(_methods(f"Options.{group}", type(getattr(options, group))))
    for kind in (poptorch.Options, poptorch.PoplarExecutor, poptorch.TensorLocationSettings):
        found.update(_methods(kind.__name__, kind))
    for name in ("SGD", "Adam", "AdamW", "LAMB"):
        found[f"optim.{name}"] = _arguments(getattr(poptorch.optim, name))
    return found


def _methods(owner: str, kind: type) -> Dict[str, Any]:
    listed = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        f"{owner}.{name}": _arguments(thing) if callable(thing) else "property"
        for name, thing in listed.items()
        if not name.startswith("_")
    }


def _arguments(thing: Any) -> Any:
    try:
        return [str(parameter.name) for parameter in inspect.signature(thing).parameters.values()]
    except ValueError:
        return None


if __name__ == "__main__":
    print(json.dumps(public_names()))
