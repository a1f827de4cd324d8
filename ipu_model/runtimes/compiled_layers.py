"""Encoder layers and the loss of masked tokens compiled by inductor, for `compile: model` on CUDA (`device.compile`).

Between its matrix products, a layer is many short passes over memory: LayerNorm, GELU, dropout, casts. Inductor joins
them. One layer is compiled, and all layers of a model run that code: their weights are its inputs. The number of tokens
is a dynamic dimension, and attention is an operator that the compiler does not look into.

Legend: T tokens of all sequences concatenated, N sequences, H hidden size, A heads, D = H / A.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, MutableMapping, Tuple, Union

import torch
from torch import Tensor, nn

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.program_folder import CACHE_VARIABLE
from ipu_model.models.encoder import Bert
from ipu_model.models.masked_lm import BertForMaskedLM, Differentiate, softmax_gradient
from ipu_model.runtimes.cuda import VarlenAttention

OLDEST = (2, 6)
"""First version of torch whose compiled layers share code however many there are (inline_inbuilt_nn_modules)."""
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variable that names a cache of compiled kernels -> its folder below ours."""
Backend = Union[str, Callable[..., Any]]
SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor offsets, SymInt longest, SymInt heads, float dropout) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
BACKWARD_SCHEMA = (
    "(Tensor d_context, Tensor query, Tensor key, Tensor value, Tensor context, Tensor sums, Tensor offsets, "
    "SymInt longest, SymInt heads, float dropout, Tensor rng_state, Tensor unused) -> (Tensor, Tensor, Tensor)"
)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int, heads: int, dropout: float
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    views = [x.unflatten(1, (heads, -1)) for x in (query, key, value)]  # len() would make T a constant
    run = torch.ops.aten._flash_attention_forward
    context, sums, rng_state, unused, _ = run(*views, offsets, offsets, longest, longest, dropout, False, False)
    return context.reshape(query.shape), sums, rng_state, unused


def _attend_backward(
    d_context: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    sums: Tensor,
    offsets: Tensor,
    longest: int,
    heads: int,
    dropout: float,
    rng_state: Tensor,
    unused: Tensor,
) -> Tuple[Tensor, Tensor, Tensor]:
    views = [x.contiguous().unflatten(1, (heads, -1)) for x in (d_context, query, key, value, context)]
    run = torch.ops.aten._flash_attention_backward
    rest = (sums, offsets, offsets, longest, longest, dropout, False, rng_state, unused)
    d_query, d_key, d_value = run(*views, *rest)
    return d_query.reshape(query.shape), d_key.reshape(key.shape), d_value.reshape(value.shape)


@functools.lru_cache(maxsize=None)
def load_operators() -> Tuple[Any, Any]:
    """Register flash attention over cumulative lengths, and its backward pass, as operators podium::attend...

    Return both. The first maps query, key and value [T, H], offsets [N + 1] int32, the longest length, heads and
    dropout to the context [T, H] and what the backward pass needs. Other devices may register their own.
    """
    from torch import library  # custom_op: torch 2.4

    attend: Any = library.custom_op("podium::attend", _attend, mutates_args=(), device_types="cuda", schema=SCHEMA)
    backward: Any = library.custom_op(
        "podium::attend_backward", _attend_backward, mutates_args=(), device_types="cuda", schema=BACKWARD_SCHEMA
    )
    # The kernels' own shape functions know what this version of torch keeps for the backward pass.
    attend.register_fake(_attend)
    backward.register_fake(lambda d, query, key, value, *rest: tuple(map(torch.empty_like, (query, key, value))))

    def keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        query, key, value, offsets, *ctx.numbers = inputs
        ctx.save_for_backward(query, key, value, offsets, *output)

    def differentiate(ctx: Any, d_context: Tensor, *_: Any) -> Tuple[Any, ...]:
        query, key, value, offsets, context, sums, rng_state, unused = ctx.saved_tensors
        inputs = (d_context, query, key, value, context, sums, offsets, *ctx.numbers, rng_state, unused)
        return (*backward(*inputs), None, None, None, None)

    attend.register_autograd(differentiate, setup_context=keep)
    return attend, backward


class OpaqueAttention(VarlenAttention):
    """Flash attention as an operator that a compiler does not look into."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, dropout: float, window: int = 0
    ) -> Tensor:
        """query, key, value and the result: [T, H]. `dropout` acts on the attention probabilities; no window."""
        context: Tensor = torch.ops.podium.attend(query, key, value, self.offsets, self.longest, heads, dropout)[0]
        return context


def _run_layer(layer: nn.Module, hidden: Tensor, offsets: Tensor, longest: int) -> Tensor:
    result: Tensor = layer(hidden, OpaqueAttention(offsets, longest))
    return result


class CompiledLayers:
    """Calls layers of an encoder through one compiled function; it compiles twice, for the first two lengths."""

    def __init__(self, backend: Backend = "inductor") -> None:
        load_operators()
        self._run = torch.compile(_run_layer, fullgraph=True, backend=backend)

    def __call__(self, layer: nn.Module, hidden: Tensor, attention: Any) -> Tensor:
        """Compute [T, H] -> [T, H]; `attention` has `offsets` and `longest`, as cuda.VarlenAttention."""
        for dynamic in (hidden, attention.offsets):
            torch._dynamo.mark_dynamic(dynamic, 0)  # else the first number of tokens would be a constant
        result: Tensor = self._run(layer, hidden, attention.offsets, attention.longest)
        return result


@functools.lru_cache(maxsize=None)
def shared_layers(backend: Backend = "inductor") -> CompiledLayers:
    """Return the compiled function of this process: what a trial compiled, the job need not compile again."""
    return CompiledLayers(backend)


@functools.lru_cache(maxsize=None)
def shared_differentiate(backend: Backend = "inductor") -> Differentiate:
    """Return the compiled softmax_gradient of this process."""
    compiled = torch.compile(softmax_gradient, fullgraph=True, backend=backend)

    def run(logits: Tensor, bias: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:
        for dynamic in (logits, labels):
            torch._dynamo.mark_dynamic(dynamic, 0)
        result: Tuple[Tensor, Tensor] = compiled(logits, bias, labels)
        return result

    return run


def compile_model(model: nn.Module, backend: Backend = "inductor") -> None:
    """Let a model of modeling.build_model call compiled layers and, if it has one, a compiled loss of masked tokens."""
    encoder: Any = model.bert
    assert isinstance(encoder, Bert)
    encoder.run_layer = shared_layers(backend)
    if isinstance(model, BertForMaskedLM):
        model.differentiate = shared_differentiate(backend)


def prepare_cache(environ: MutableMapping[str, str], say: Callable[[str], None]) -> None:
    """Choose the folder of compiled kernels, which only this user may read and write: they are executed, and pickled.

    The environment gets it for inductor and Triton, unless it names one already. `say` gets a message if the kernels
    are compiled again at every start.

    Raises:
        ConfigError: the folder belongs to another user.
    """
    if all(environ.get(variable) for variable in CACHES):
        return
    root = environ.get(CACHE_VARIABLE)
    if root:
        folder = Path(root).expanduser().absolute() / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise ConfigError(f"{folder} belongs to another user, but its files are executed: change {CACHE_VARIABLE}")
        folder.chmod(0o700)
    else:
        folder = Path(tempfile.mkdtemp(prefix="podium-compiled-"))  # torch's default is a shared name in /tmp
        atexit.register(shutil.rmtree, str(folder), ignore_errors=True)
        say(f"no cache: layers are compiled at every start. Set {CACHE_VARIABLE} to a permanent folder")
    for variable, name in CACHES.items():
        environ.setdefault(variable, str(folder / name))
