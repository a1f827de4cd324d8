"""LAMB's update on a CPU compiled by inductor, where a job asks for it: `compile` of the job, `device.compile`.

Encoder layers compiled with inductor were 1 to 15% slower than plain ones on CPUs (tiny and base, bf16 and fp32, torch
2.13), so the update, a third faster, is all there is to compile.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Callable, Mapping, Optional

import torch

from ipu_model.errors import ConfigError
from ipu_model.ipu.program_folder import CACHE_VARIABLE
from ipu_model.optim.blocked import BlockedLamb, advance_lamb
from ipu_model.runtimes.native import NativeFunction

OLDEST = (2, 4)
"""Version of torch from which functions are compiled ahead of time as native.py does."""
COMPILERS = ("CXX", "g++", "clang++")
"""What inductor uses on a CPU: what the variable names, or one of the commands."""


def check_compiler(runtime: str, environ: Mapping[str, str], version: str = torch.__version__) -> None:
    """Whether this host can compile for the runtime.

    Raises:
        ConfigError: torch is too old, or there is no C++ compiler.
    """
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        raise ConfigError(f"compiling needs torch {oldest} or newer, found {version}: set device.compile to none")
    candidates = [environ.get(COMPILERS[0]), *COMPILERS[1:]]
    if runtime == "cpu" and not any(name and shutil.which(name) for name in candidates):
        raise ConfigError(
            "compiling for a CPU needs a C++ compiler: install g++, name one in CXX, or set device.compile to none"
        )


def compile_optimizer(
    optimizer: Optional[torch.optim.Optimizer], environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Put a compiled function in the place of LAMB's update on a CPU; it is built when it is first called.

    Args:
        optimizer: Others stay as they are.
        environ: Its PODIUM_EXECUTABLE_CACHE keeps what is compiled for the next process.
        say: Takes lines for people.
    """
    if not isinstance(optimizer, BlockedLamb):
        return
    root = environ.get(CACHE_VARIABLE)
    if not root:
        say(f"compiled at every start: set {CACHE_VARIABLE} to a folder that stays")
    folder = Path(root).expanduser().absolute() if root else None
    optimizer.advance = NativeFunction(advance_lamb, folder, say)
