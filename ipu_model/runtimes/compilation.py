"""Compilation of LAMB's update on a CPU with inductor, for jobs with `compile: optimizer` (`device.compile`).

Only the update is compiled, which makes it a third faster: compiled encoder layers were 1 to 15% slower than plain ones
on CPUs (tiny and base, bf16 and fp32, torch 2.13).

It is compiled ahead of time to a shared library, and cached for the next process. The cache of torch.compile would cost
seconds at every start, because a process must import dynamo and inductor and trace again to use it. A library loads in
a millisecond without either, and without pickle.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import find_object, fingerprint, new_file, sha256_of, write_json
from ipu_model.core.units import parse_version
from ipu_model.ipu.program_folder import CACHE_VARIABLE
from ipu_model.optim.optimizers import BlockedLamb, advance_lamb
from ipu_model.runtimes.host import cpu_flags

OLDEST = (2, 4)
"""First version of torch with this form of ahead-of-time compilation."""
COMPILERS = ("CXX", "g++", "clang++")
"""Compilers that inductor uses on a CPU: the value of the variable, or one of the commands."""
Call = Callable[..., List[Tensor]]
SMALLEST = 2
"""Length of the shortest vectors that a library accepts: inductor compiles 0 and 1 as special cases."""


def check_compiler(runtime: str, environ: Mapping[str, str], version: str = torch.__version__) -> None:
    """Check that this host can compile for the runtime.

    Raises:
        ConfigError: torch is too old, or no C++ compiler is installed.
    """
    if parse_version(version) < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        raise ConfigError(f"compiling needs torch {oldest} or newer, found {version}: set device.compile to none")
    candidates = [environ.get(COMPILERS[0]), *COMPILERS[1:]]
    if runtime == "cpu" and not any(name and shutil.which(name) for name in candidates):
        raise ConfigError(
            "compiling for a CPU needs a C++ compiler: install g++, set CXX to one, or set device.compile to none"
        )


def compile_optimizer(
    optimizer: Optional[torch.optim.Optimizer], environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Replace LAMB's update on a CPU by a compiled function, which is built on its first call; others stay.

    PODIUM_EXECUTABLE_CACHE of the environment is the folder that caches libraries for the next process.
    """
    if not isinstance(optimizer, BlockedLamb):
        return
    root = environ.get(CACHE_VARIABLE)
    if not root:
        say(f"no cache: the optimizer is compiled at every start. Set {CACHE_VARIABLE} to a permanent folder")
    folder = Path(root).expanduser().absolute() if root else None
    optimizer.advance = NativeFunction(advance_lamb, folder, say)


class NativeFunction:
    """A compiled function on the CPU: one library per combination of argument types, built on the first call.

    Args:
        function: Takes vectors of equal length, then 0-dim tensors; returns tensors, and may modify its arguments. It
            must be defined in a source file.
        root: Folder of the libraries, which the user must own, because its files are executed. None: no cache.
    """

    def __init__(self, function: Callable[..., Any], root: Optional[Path], say: Callable[[str], None]) -> None:
        self._function, self._root, self._say = function, root, say
        self._calls: Dict[Sequence[torch.dtype], Call] = {}

    def __call__(self, *arguments: Tensor) -> List[Tensor]:
        kinds = tuple(x.dtype for x in arguments)
        if kinds not in self._calls:
            with tempfile.TemporaryDirectory() as folder:
                self._calls[kinds] = self._load_or_build(self._root or Path(folder), arguments)
        return self._calls[kinds](list(arguments))

    def _load_or_build(self, root: Path, arguments: Sequence[Tensor]) -> Call:
        parts = {
            "source": inspect.getsource(self._function),
            "arguments": [f"{x.dtype}[{'n' * x.dim()}]" for x in arguments],
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cpu": sorted(cpu_flags()),
        }
        library = root / f"{self._function.__name__}-{fingerprint(parts)}.so"
        record = library.with_suffix(".json")
        started = time.perf_counter()
        exists = record.exists() and library.exists()
        # Loading a truncated library would crash the process.
        if exists and (find_object(record) or {}).get("sha256") == sha256_of(library):
            call = _load(library)
            record.touch()  # marks the library as used, for pruning
            self._say(f"{self._function.__name__}: loaded in {time.perf_counter() - started:.3f} s from {library}")
            return call
        record.unlink(missing_ok=True)
        with new_file(library) as partial:
            shutil.copyfile(_compile(self._function, arguments), str(partial))
        write_json(record, {"parts": parts, "sha256": sha256_of(library)})
        state = "damaged" if exists else "absent"
        cached = f"cached as {library}" if self._root is not None else "not cached"
        self._say(f"{self._function.__name__}: {state}, compiled in {time.perf_counter() - started:.1f} s, {cached}")
        return _load(library)


def _compile(function: Callable[..., Any], arguments: Sequence[Tensor]) -> str:
    import torch._inductor

    class Module(nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    length = torch.export.Dim("n", min=SMALLEST)
    shapes = tuple({0: length} if x.dim() else None for x in arguments)
    # Dummy values, because export may run the function, which modifies its arguments.
    examples = tuple(torch.zeros_like(x) for x in arguments)
    with torch.no_grad():
        exported = torch.export.export(Module(), examples, dynamic_shapes=(shapes,))
        library = torch._inductor.aot_compile(exported.module(), examples)
    assert isinstance(library, str)  # it is a list only for packages
    return library


def _load(library: Path) -> Call:
    # torch._inductor.aoti_load_package wraps this, but importing inductor takes 1.6 s.
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run
