"""The sizes that weights have, held against config.json before any memory is taken; read without torch.

A safetensors file begins with 8 bytes, the length of a JSON header, then {name: {dtype, shape, data_offsets}}.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from ipu_model.errors import CheckpointError
from ipu_model.files import each_key_once, open_regular, parse_json
from ipu_model.models.config import ModelConfig

MAX_HEADER_BYTES = 8 << 20
"""BERT large has 40 KB."""
MAX_DIMENSIONS = 8
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1}
BYTES.update({f"{kind}{8 * size}": size for kind in "IU" for size in (8, 4, 2, 1)})
"""Bytes of a number of each type."""
LAYER = re.compile(r"bert\.encoder\.layer\.(\d{1,9})\.")

Shapes = Dict[str, Tuple[int, ...]]


def our_name(name: str) -> str:
    """Older names of the same parameters: LayerNorm gamma and beta, and a bare encoder without its prefix."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            name = name[: -len(old)] + new
    bare = name.startswith(("embeddings.", "encoder.", "pooler."))
    return "bert." + name if bare else name


def read_shapes(path: Path) -> Shapes:
    """Name of each tensor of a safetensors file -> its shape; of the file only the header is read.

    Raises:
        CheckpointError: missing, no such file, or a header that says what the file cannot hold.
    """
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(MAX_HEADER_BYTES, size - 8):
                raise ValueError(f"its header has {length} bytes, of {size} in all; up to {MAX_HEADER_BYTES} are read")
            values = parse_json(stream.read(length).decode("utf-8"), object_pairs_hook=each_key_once)
        if not isinstance(values, dict):
            raise ValueError("its header is no object")
        values.pop("__metadata__", None)
        return _checked(values, size - 8 - length)
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None


def _checked(values: Dict[str, Any], size: int) -> Shapes:
    shapes: Shapes = {}
    extents: List[Tuple[int, int]] = []
    for name, entry in values.items():
        if not isinstance(entry, dict):
            raise ValueError(f"{name} is described by {type(entry).__name__}, an object is required")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape", ()), entry.get("data_offsets", ())
        if not isinstance(dtype, str) or dtype not in BYTES:
            raise ValueError(f"{name} has numbers of type {dtype!r}; known are {', '.join(BYTES)}")
        if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS or not _are_counts(offsets) or len(offsets) != 2:
            raise ValueError(f"{name} has the shape {shape!r:.80} and the place {offsets!r:.80}")
        needed = BYTES[dtype]
        for one in shape:
            needed *= one
        if offsets[1] > size or offsets[1] - offsets[0] != needed:
            raise ValueError(
                f"{name} of shape {shape} has {needed} bytes, those from {offsets[0]} to {offsets[1]} of {size}"
            )
        shapes[name] = tuple(shape)
        extents.append((offsets[0], offsets[1]))
    extents.sort()
    if any(first[1] > second[0] for first, second in zip(extents, extents[1:])):
        raise ValueError("two tensors stand in one place")
    return shapes


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(x) is int and 0 <= x < 2**48 for x in values)


def require_sizes(config: ModelConfig, found: Mapping[str, Tuple[int, ...]], source: Path) -> None:
    """Hold the weights of an encoder against what its config.json says.

    Args:
        found: name of each weight -> its shape.
        source: the model folder, for messages.

    Raises:
        CheckpointError: a weight that is not there, is there under two names, or has another size.
    """
    shapes: Shapes = {}
    for old, shape in found.items():
        name = our_name(old)
        if name in shapes:
            raise CheckpointError(f"{source} holds {name} twice, once as {old}: it was put together from two models")
        shapes[name] = shape
    layers = {int(match.group(1)) for match in map(LAYER.match, shapes) if match}
    if layers and len(layers) != config.num_layers:
        raise CheckpointError(
            f"{source}: its config.json asks for {config.num_layers} layers (num_hidden_layers), its weights have "
            f"{len(layers)}: the folder is inconsistent, download or make it again"
        )
    wanted = _encoder(config)
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} weights of the encoder, the first is {missing[0]}: it is no BERT, "
            "or was saved under other names"
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{source}: {name} has shape {shapes[name]}, its config.json asks for {shape}: the folder is "
                "inconsistent, download or make it again"
            )


def _encoder(config: ModelConfig) -> Shapes:
    """The shapes of everything below the pooler and the heads."""
    hidden, between = config.hidden_size, config.intermediate_size
    square = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    dense = dict.fromkeys(square, (hidden, hidden))
    dense.update({"intermediate.dense": (between, hidden), "output.dense": (hidden, between)})
    layers = [f"encoder.layer.{number}" for number in range(config.num_layers)]
    norms = [f"{layer}.{place}" for layer in layers for place in ("attention.output", "output")]
    shapes: Shapes = {
        "bert.embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "bert.embeddings.position_embeddings.weight": (config.max_positions, hidden),
        "bert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
    }
    for layer in layers:
        for name, shape in dense.items():
            shapes[f"bert.{layer}.{name}.weight"] = shape
            shapes[f"bert.{layer}.{name}.bias"] = shape[:1]
    for place in ("embeddings", *norms):
        shapes.update({f"bert.{place}.LayerNorm.{kind}": (hidden,) for kind in ("weight", "bias")})
    return shapes
