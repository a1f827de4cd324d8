"""Executables in a folder, by what decides them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Dict

NOT_COMPILED_IN = {"cachePath", "enableEngineCaching", "random_seed", "connection_type", "ipu_version"}


def fingerprint(executable: Any) -> str:
    """32 hexadecimal digits over operations, shapes, options and the optimizer's constants; weights do not count."""
    attributes = executable.attributes
    constants: Any = None
    if attributes is not None:
        kept = attributes.describe()
        for values in [kept["defaults"], *kept["groups"]]:
            values.update({name: "variable" for name, (_, constant) in list(values.items()) if not constant})
        constants = sorted(kept.items())
    weights = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in sorted(executable.weights.items())]
    options = sorted((k, str(v)) for k, v in executable.options.items() if k not in NOT_COMPILED_IN)
    program = executable.program
    graph = (program.signature, program.checkpoints, program.serialization)
    parts = (graph, weights, options, constants, executable.training)
    return hashlib.sha256(repr((*parts, sorted(executable.groups.items()))).encode()).hexdigest()[:32]


def look_up(executable: Any) -> Dict[str, Any]:
    """Find the executable in the cache folder or put it there, as <hash>.popef."""
    folder = executable.options.get("cachePath")
    if not (executable.options.get("enableEngineCaching") and folder):
        return {"hit": False}
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / f"{executable.hash}.popef"
    content = f"executable of the double: {executable.hash}\n"
    if file.exists() and file.read_bytes() == content.encode():
        return {"hit": True}
    partial = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, file)
    return {"hit": False}
