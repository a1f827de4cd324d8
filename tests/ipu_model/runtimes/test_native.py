"""Functions compiled to libraries: the same numbers, loaded by the next process, never from damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
import torch
from tiny_torch import needs_compiler
from torch import Tensor

from ipu_model.runtimes import compilation
from ipu_model.runtimes.compilation import NativeFunction


def scaled_sum(values: Tensor, total: Tensor, factor: Tensor) -> Tuple[Tensor]:
    """A function of two vectors and a number that changes an argument."""
    total.copy_(total + values.float() * factor)
    return (total.sum(),)


def arguments(count: int) -> List[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [*(torch.randn(count, generator=generator) for _ in range(2)), torch.tensor(0.5)]


LOAD = """
import json, sys
import torch
from pathlib import Path
from test_native import arguments, scaled_sum
from ipu_model.runtimes.compilation import NativeFunction
torch.set_num_threads(int(sys.argv[2]))  # another number is another library
said = []
before = set(sys.modules)
NativeFunction(scaled_sum, Path(sys.argv[1]), said.append)(*arguments(50))
print(json.dumps([said, sorted(m for m in set(sys.modules) - before if m.startswith("torch._"))]))
"""


@pytest.mark.soak
@needs_compiler
def test_a_library_computes_what_the_function_does_and_is_found_again_unless_damaged(tmp_path: Path) -> None:
    said: List[str] = []
    compiled = NativeFunction(scaled_sum, tmp_path, said.append)
    for count in (100, 3, 1000):
        found, expected = arguments(count), arguments(count)
        (of_library,), (of_function,) = compiled(*found), scaled_sum(*expected)
        torch.testing.assert_close(of_library, of_function)
        torch.testing.assert_close(found[1], expected[1])
    assert len(said) == 1, "one library for any length"
    (library,) = tmp_path.glob("*.so")

    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(compilation.__file__).parents[2])]
    code, threads = f"import sys; sys.path[:0] = {folders!r}\n{LOAD}", str(torch.get_num_threads())
    command = [sys.executable, "-c", code, str(tmp_path), threads]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    said, imported = json.loads(done.stdout)
    assert "scaled_sum: loaded in" in said[0]
    assert imported == [], "another process loads it without the compiler"

    half = library.read_bytes()[:-100]
    library.unlink()  # the file itself is mapped by this process
    library.write_bytes(half)
    said.clear()
    (total,) = NativeFunction(scaled_sum, tmp_path, said.append)(*arguments(50))
    torch.testing.assert_close(total, scaled_sum(*arguments(50))[0])
    assert "scaled_sum: damaged, compiled in" in said[0]


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"sha256": "0"}'])
def test_a_record_that_says_nothing_makes_the_library_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    library, said = tmp_path / "x.so", []  # type: Path, List[str]
    library.write_bytes(b"library")
    monkeypatch.setattr(compilation, "fingerprint", lambda parts: "x")
    monkeypatch.setattr(compilation, "_compile", lambda *arguments: str(library))
    monkeypatch.setattr(compilation, "_load", lambda path: lambda values: values)
    (tmp_path / "scaled_sum-x.so").write_bytes(b"library")
    (tmp_path / "scaled_sum-x.json").write_text(record)
    NativeFunction(scaled_sum, tmp_path, said.append)(*arguments(50))
    assert "scaled_sum: damaged, compiled in" in said[0]
