"""Parts of a step compiled by inductor, where a job asks for it: `compile` of the job, `device.compile`.

One encoder layer is compiled once for all of them and for any number of tokens, so that compiling takes the same time
for 2 layers as for 24. On a CPU compiled layers took 1.05 to 1.15 times as long as plain ones (tiny and base, bf16,
dropout 0 and 0.1, torch 2.13): there the part to compile is LAMB's update (native.py). What is compiled stays in
PODIUM_EXECUTABLE_CACHE for the next process. inductor's own folder in it belongs to this host: it is read with pickle,
so it is not for carrying between machines.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, MutableMapping, Optional

import torch
from torch import Tensor, nn

from ipu_model.errors import ConfigError
from ipu_model.ipu.program_folder import CACHE_VARIABLE
from ipu_model.models.encoder import Layer, Masks, finish_layer
from ipu_model.optim.blocked import BlockedLamb, advance_lamb
from ipu_model.runtimes.native import NativeFunction

OLDEST = (2, 4)
"""Version of torch from which compiled functions are kept between processes without further settings."""
INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
HIT, MISS = "fxgraph_cache_hit", "fxgraph_cache_miss"
"""inductor's counters."""
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


class Compiler:
    """Puts compiled functions in the place of plain ones; each is built when it is first called.

    Args:
        what: optimizer, layers or all.
        environ: inductor is told through it to keep what it compiles in PODIUM_EXECUTABLE_CACHE.
        say: Takes lines for people.
    """

    def __init__(self, what: str, environ: MutableMapping[str, str], say: Callable[[str], None]) -> None:
        self._root = environ.get(CACHE_VARIABLE)
        self._what, self._kept, self._say = what, keep_compiled(environ), say

    @property
    def needs_a_step(self) -> bool:
        """Whether what is compiled is traced while it runs: a forward and a backward pass build it."""
        return self._what in ("layers", "all")

    def take(self, model: nn.Module, optimizer: Optional[torch.optim.Optimizer]) -> None:
        """Compile what there is to gain from: the encoder layers, and the update of LAMB on a CPU."""
        if self.needs_a_step:
            finish = _compiled_finish()
            for module in model.modules():
                if isinstance(module, Layer):
                    module.finish = finish
        if self._what in ("optimizer", "all") and isinstance(optimizer, BlockedLamb):
            if not self._root:
                self._say(f"compiled at every start: set {CACHE_VARIABLE} to a folder that stays")
            root = Path(self._root).expanduser().absolute() if self._root else None
            optimizer.advance = NativeFunction(advance_lamb, root, self._say)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Around the step that builds the layers; says how long it took and what came from the cache."""
        from torch._dynamo.utils import counters

        started, before = time.perf_counter(), dict(counters["inductor"])
        self._say("compiling: layers")
        yield
        hits, misses = (counters["inductor"][name] - before.get(name, 0) for name in (HIT, MISS))
        self._say(
            f"compiled in {time.perf_counter() - started:.1f} s: {hits} of {hits + misses} graphs were in the cache "
            f"({self._kept})"
        )


def keep_compiled(environ: MutableMapping[str, str]) -> str:
    """Make inductor keep what it compiles in PODIUM_EXECUTABLE_CACHE; call it before anything is compiled.

    Returns:
        Where it is kept, for people; what the user told inductor stays.
    """
    root = environ.get(CACHE_VARIABLE)
    if environ.get(INDUCTOR_CACHE):
        return f"{environ[INDUCTOR_CACHE]}, as {INDUCTOR_CACHE} says"
    if not root:
        return f"inductor's own; set {CACHE_VARIABLE} to a folder that stays"
    # One per torch and Python: others can use nothing of it.
    name = f"inductor-torch-{torch.__version__}-python-{sys.version_info[0]}.{sys.version_info[1]}"
    environ[INDUCTOR_CACHE] = str(Path(root).expanduser().absolute() / name)
    return environ[INDUCTOR_CACHE]


def _compiled_finish() -> Callable[..., Tensor]:
    compiled = torch.compile(finish_layer)

    def finish(context: Tensor, hidden: Tensor, keep: Masks, *others: Any) -> Tensor:
        # As bool: inductor has no vectors of int16.
        keep = (None if keep[0] is None else keep[0] != 0, None if keep[1] is None else keep[1] != 0)
        for varying in (context, hidden, *keep):
            if varying is not None:
                # Only the number of tokens varies: inner loops over constants are faster than over variables.
                torch._dynamo.mark_dynamic(varying, 0)
        return compiled(context, hidden, keep, *others)

    return finish
