"""A compiled update: the same numbers, found again by the next process, refused where it cannot be made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_jobs import TINY, finish, make_columns, make_job, start_job, write_rows
from tiny_torch import needs_compiler

from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.runtimes import compilation
from ipu_model.runtimes.compilation import NativeFunction, check_compiler
from ipu_model.runtimes.selection import plan_device
from tests.optimizers import optimizer_config


def train(folder, cache, **changes):
    """Weights, messages and losses of a job of a few updates."""
    from ipu_model.models.model_folder import read_model

    optimizer = optimizer_config(name="lamb", learning_rate=1e-2, max_grad_norm=1.0)
    rows = folder.parent / "rows"
    job = make_job(folder, "pretrain", rows, log_every_updates=1, optimizer=optimizer, precision="bf16", **changes)
    finished = finish(start_job(job, {"PODIUM_EXECUTABLE_CACHE": str(cache)}))
    assert finished.code == 0, finished.stderr
    losses = [event["loss"] for event in finished.of("step")]
    return read_model(Path(job.output)).state, [e["text"] for e in finished.of("message")], losses


@needs_compiler
@pytest.mark.soak
def test_a_compiled_run_trains_as_the_plain_one_and_the_next_finds_its_libraries(tmp_path):
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 24))
    cache = tmp_path / "cache"
    plain, said, losses = train(tmp_path / "plain", cache)
    assert not any("compil" in text for text in said)
    first, said, first_losses = train(tmp_path / "first", cache, compile="optimizer")
    assert sum("advance_lamb: absent, compiled in" in text for text in said) == 2, "gradients come in fp32 and bf16"
    again, said, _ = train(tmp_path / "again", cache, compile="optimizer")
    assert sum("advance_lamb: loaded in" in text for text in said) == 2, said
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["advance_lamb"] * 4
    # Dropout is on (0.1): the masks are those of the plain run, so the losses are.
    assert first_losses == pytest.approx(losses, rel=2e-3)
    assert all(torch.equal(again[name], first[name]) for name in first)
    torch.testing.assert_close(first, plain, rtol=1e-2, atol=5e-3)


def test_an_old_torch_and_a_host_without_a_compiler_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"torch 2.4 or newer, found 2.0.1\+cpu.*device.compile"):
        check_compiler("cpu", {}, "2.0.1+cpu")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="install g.., set CXX to one"):
        check_compiler("cpu", {}, "2.13.0")
    with pytest.raises(ConfigError, match="install g.."):
        check_compiler("cpu", {"CXX": "no-such-compiler"}, "2.13.0")
    check_compiler("cuda", {}, "2.13.0")


def scaled_sum(values, total, factor):
    """A function of two vectors and a number that changes an argument."""
    total.copy_(total + values.float() * factor)
    return (total.sum(),)


def arguments(count):
    generator = torch.Generator().manual_seed(count)
    return [*(torch.randn(count, generator=generator) for _ in range(2)), torch.tensor(0.5)]


LOAD = """
import json, sys
import torch
from pathlib import Path
from test_compiling import arguments, scaled_sum
from ipu_model.runtimes.compilation import NativeFunction
torch.set_num_threads(int(sys.argv[2]))  # another number is another library
said = []
before = set(sys.modules)
NativeFunction(scaled_sum, Path(sys.argv[1]), said.append)(*arguments(50))
print(json.dumps([said, sorted(m for m in set(sys.modules) - before if m.startswith("torch._"))]))
"""


@pytest.mark.soak
@needs_compiler
def test_a_library_computes_what_the_function_does_and_is_found_again_unless_damaged(tmp_path):
    said = []
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


def test_what_a_runtime_does_not_compile_or_recompute_is_refused(tmp_path):
    manifest = write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 8))
    for runtime, changes, said in (
        ("cpu", {"compile_only": True}, "device.compile"),
        ("ipu", {"recompute": True}, "recompute_checkpoint_every_layer"),
    ):
        job = make_job(tmp_path, "pretrain", tmp_path / "rows", **changes)
        with pytest.raises(ConfigError, match=said):
            plan_device(job, manifest, TINY, runtime, "fp32", Instances(), lambda event, **fields: None)
