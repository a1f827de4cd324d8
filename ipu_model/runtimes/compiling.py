"""LAMB's update on a CPU compiled by inductor, where a job asks for it: `compile` of the job, `device.compile`.

Encoder layers compiled with inductor were 1 to 15% slower than plain ones on CPUs (tiny and base, bf16 and fp32, torch
2.13), so the update, a third faster, is all there is to compile.

It is compiled to a shared library ahead of time, and kept for the next process. What torch.compile keeps is found again
only by a process that imports dynamo and inductor and traces anew: seconds of every start. A library is loaded in a
millisecond without either, and nothing is read with pickle.
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

from ipu_model.errors import ConfigError
from ipu_model.files import find_object, new_file, sha256_of, write_json
from ipu_model.ipu.program_folder import CACHE_VARIABLE
from ipu_model.jobs.fingerprint import fingerprint
from ipu_model.optim.optimizers import BlockedLamb, advance_lamb
from ipu_model.runtimes.host import cpu_flags

OLDEST = (2, 4)
"""Version of torch from which functions are compiled ahead of time as here."""
COMPILERS = ("CXX", "g++", "clang++")
"""What inductor uses on a CPU: what the variable names, or one of the commands."""
Call = Callable[..., List[Tensor]]
SMALLEST = 2
"""Length of the shortest vectors a library takes: 0 and 1 are compiled as cases of their own."""


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


class NativeFunction:
    """A function on the CPU, one library per kinds of its arguments, made when first called with them.

    Args:
        function: Takes vectors of one length, then tensors of no dimension; returns tensors, and may change
            its arguments. It must stand in a source file.
        root: Folder of the libraries, which the user must own: what lies there is run. None keeps nothing.
        say: Takes lines for people.
    """

    def __init__(self, function: Callable[..., Any], root: Optional[Path], say: Callable[[str], None]) -> None:
        self._function, self._root, self._say = function, root, say
        self._calls: Dict[Sequence[torch.dtype], Call] = {}

    def __call__(self, *arguments: Tensor) -> List[Tensor]:
        kinds = tuple(x.dtype for x in arguments)
        if kinds not in self._calls:
            self._calls[kinds] = self._make(arguments)
        return self._calls[kinds](list(arguments))

    def _make(self, arguments: Sequence[Tensor]) -> Call:
        if self._root is None:
            with tempfile.TemporaryDirectory() as folder:
                return self._found_or_built(Path(folder), arguments)
        return self._found_or_built(self._root, arguments)

    def _found_or_built(self, root: Path, arguments: Sequence[Tensor]) -> Call:
        parts = self._parts(arguments)
        library = root / f"{self._function.__name__}-{fingerprint(parts)}.so"
        record = library.with_suffix(".json")
        started = time.perf_counter()
        state = _state(library, record)
        if state == "whole":
            call = _load(library)
            record.touch()  # for who removes what is not used
            self._say(f"{self._function.__name__}: loaded in {time.perf_counter() - started:.3f} s from {library}")
            return call
        record.unlink(missing_ok=True)
        with new_file(library) as partial:
            shutil.copyfile(_compile(self._function, arguments), str(partial))
        write_json(record, {"parts": parts, "sha256": sha256_of(library)})
        kept = f"kept as {library}" if self._root is not None else "kept for this process only"
        self._say(f"{self._function.__name__}: {state}, compiled in {time.perf_counter() - started:.1f} s, {kept}")
        return _load(library)

    def _parts(self, arguments: Sequence[Tensor]) -> Dict[str, Any]:
        """What decides the library."""
        return {
            "source": inspect.getsource(self._function),
            "arguments": [f"{x.dtype}[{'n' * x.dim()}]" for x in arguments],
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cpu": sorted(cpu_flags()),
        }


def _state(library: Path, record: Path) -> str:
    """whole, absent or damaged: a library is dlopened, and half of one would end the process."""
    if not record.exists() or not library.exists():
        return "absent"
    return "whole" if (find_object(record) or {}).get("sha256") == sha256_of(library) else "damaged"


def _compile(function: Callable[..., Any], arguments: Sequence[Tensor]) -> str:
    """Path of the library inductor made."""
    import torch._inductor

    class Module(nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    length = torch.export.Dim("n", min=SMALLEST)
    shapes = tuple({0: length} if x.dim() else None for x in arguments)
    # Values of nobody: export may run the function.
    examples = tuple(torch.zeros_like(x) for x in arguments)
    with torch.no_grad():
        exported = torch.export.export(Module(), examples, dynamic_shapes=(shapes,))
        made = torch._inductor.aot_compile(exported.module(), examples)
    assert isinstance(made, str)  # as long as nobody asks for a package
    return made


def _load(library: Path) -> Call:
    # What torch._inductor.aoti_load_package wraps, without importing inductor: that took 1.6 s.
    call: Call = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1).run
    return call
