"""Weights as files of a Hugging Face model folder: one file, or shards with an index that names them.

safetensors always; PyTorch's own files (pickled) only where they are asked for, and only by a loader that builds
tensors and nothing else. The sizes that weights have are held against config.json before any memory is taken: a
safetensors file begins with 8 bytes, the length of a JSON header, then {name: {dtype, shape, data_offsets}}.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError  # the class alone: what torch.load raises
from typing import Dict, List, Mapping, Tuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ipu_model.errors import CheckpointError
from ipu_model.files import open_regular, parse_json, read_json, reject_duplicate_keys, sha256_of
from ipu_model.memory import free_memory
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert
from ipu_model.models.tensors import DTYPES, load_tensors

T = TypeVar("T")

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OTHER_KINDS = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "bert_model.ckpt.index")
MAX_BYTES = 16 << 30
"""BERT large has 1.3 GB in fp32; what is many times that is no BERT."""
TIED = 2
"""A tied decoder is the word embeddings again, so that weights may count twice, and no more."""
_PYTHONS = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError)
DAMAGE = (*_PYTHONS, UnpicklingError, struct.error)
"""What torch.load raises for a file that is cut short, or says what no list of tensors says."""
SAFE_TORCH = (2, 6)
"""Before it, a file could run code in spite of weights_only (CVE-2025-32434)."""
MAX_HEADER_BYTES = 8 << 20
"""BERT large has 40 KB."""
LAYER = re.compile(r"bert\.encoder\.layer\.(\d{1,9})\.")

Shapes = Dict[str, Tuple[int, ...]]


def read_weights(folder: Path, config: ModelConfig, pickled: bool = False) -> Tuple[Dict[str, Tensor], str]:
    """The tensors of a model folder under the names in its files, and their SHA-256.

    Args:
        config: what config.json says; the weights must have its sizes.
        pickled: also read PyTorch's own files, where there are no safetensors.

    Returns:
        Tensors by name, and the hash of the file; of shards, the hash of their hashes in order of their names.

    Raises:
        CheckpointError: no file of these kinds, a shard missing or named twice, damaged, too large, of other sizes, or,
            of PyTorch's own files, one that holds anything but tensors, or a torch that cannot read them safely.
    """
    paths = weight_files(folder, pickled)
    size = sum(path.stat().st_size for path in paths)
    if size > MAX_BYTES:
        raise CheckpointError(f"{folder} holds {size} bytes of weights, up to {MAX_BYTES} are read: it is no BERT")
    left = free_memory()
    if left is not None and size > left:
        raise CheckpointError(
            f"{folder} has {size:,} bytes of weights, and {left:,} bytes of memory are left by this host and its "
            "cgroup: run it where there is more memory"
        )
    if paths[0].suffix == ".bin":
        state = _joined({path: _load_pickled(path) for path in paths}, folder)
        require_sizes(config, {name: tuple(x.shape) for name, x in state.items()}, folder)
    else:
        require_sizes(config, _joined({path: read_shapes(path) for path in paths}, folder), folder)
        state = _joined({path: load_tensors(path) for path in paths}, folder)
    if len(paths) == 1:
        return state, sha256_of(paths[0])
    return state, hashlib.sha256("".join(sha256_of(path) for path in paths).encode()).hexdigest()


def _joined(shards: Dict[Path, Dict[str, T]], folder: Path) -> Dict[str, T]:
    joined: Dict[str, T] = {}
    for path, found in shards.items():
        twice = sorted(set(found) & set(joined))
        if twice:
            raise CheckpointError(f"{path} holds {twice[0]}, which another shard of {folder} holds, too")
        joined.update(found)
    return joined


def weight_files(folder: Path, pickled: bool = False) -> List[Path]:
    """The files that hold the weights of a model folder: safetensors first, one file before shards.

    Raises:
        CheckpointError: there are none that can be read, or an index names what is not there.
    """
    kinds = [(WEIGHTS, INDEX)] + ([(PICKLED, PICKLED_INDEX)] if pickled else [])
    for single, index in kinds:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index, Path(single).suffix)
    raise CheckpointError(f"{folder / WEIGHTS} is missing: {_what_there_is(folder, pickled)}")


def _what_there_is(folder: Path, pickled: bool) -> str:
    if not pickled and ((folder / PICKLED).is_file() or (folder / PICKLED_INDEX).is_file()):
        return (
            f"weights must be safetensors here, and {PICKLED} is pickled. base_model.source takes such a model in, "
            "or save it again with save_pretrained"
        )
    other = [name for name in OTHER_KINDS if (folder / name).is_file()]
    if other:
        return (
            f"{other[0]} is of another framework; load it with from_pretrained(..., from_tf=True) or from_flax=True of "
            "transformers 4 and save it with save_pretrained"
        )
    return f"weights must be {WEIGHTS}, or shards with {INDEX}" + (f", or {PICKLED}" if pickled else "")


def _shards(index: Path, suffix: str) -> List[Path]:
    try:
        values = read_json(index)
    except ValueError as error:
        raise CheckpointError(f"{index} is not JSON ({error})") from None
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{index} must hold weight_map, from names of weights to names of files")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or Path(name).suffix != suffix:
            raise CheckpointError(f"{index} names {json.dumps(name)}, which is no {suffix} file of its own folder")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index} names {name}, which is not there: download the model again")
    return [index.parent / name for name in names]


def _load_pickled(path: Path) -> Dict[str, Tensor]:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < SAFE_TORCH:
        raise CheckpointError(
            f"{path} is pickled, and torch {torch.__version__} cannot read that safely (CVE-2025-32434): "
            f"{'.'.join(map(str, SAFE_TORCH))} or newer is required, or save the model as safetensors"
        )
    _require_unpacked(path)
    try:
        values = torch.load(str(path), map_location="cpu", weights_only=True)
    except DAMAGE as error:
        first = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"{path} is damaged, or holds more than tensors, and nothing else is read from a pickled file ({first})"
        ) from None
    if not isinstance(values, dict) or not all(
        isinstance(name, str) and isinstance(x, Tensor) for name, x in values.items()
    ):
        raise CheckpointError(f"{path} must hold tensors by name (a state_dict), as save_pretrained writes it")
    stated, size = sum(x.numel() * x.element_size() for x in values.values()), path.stat().st_size
    if stated > TIED * size:
        raise CheckpointError(
            f"{path} states {stated} bytes of weights and has {size}: many of them are one, which no BERT is saved as"
        )
    return values


def _require_unpacked(path: Path) -> None:
    """PyTorch writes its zip files without packing; what is packed could unfold to any size.

    Raises:
        CheckpointError: something in it is packed, or stands in it twice.
    """
    if not zipfile.is_zipfile(str(path)):
        return
    try:
        with zipfile.ZipFile(str(path)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from None
    stated, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if stated > size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{path} has {size} bytes and unpacks to {stated}: PyTorch writes such files unpacked; save the model again"
        )


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
            values = parse_json(stream.read(length).decode("utf-8"), object_pairs_hook=reject_duplicate_keys)
        if not isinstance(values, dict):
            raise ValueError("its header is no object")
        with safe_open(str(path), "pt") as content:  # holds sizes and places against the file
            tensors = {name: content.get_slice(name) for name in values if name != "__metadata__"}
            for name, tensor in tensors.items():
                if tensor.get_dtype() not in DTYPES.values():
                    raise ValueError(f"{name} has numbers of type {tensor.get_dtype()}")
            return {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    except (OSError, ValueError, struct.error, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None


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
    with torch.device("meta"):  # takes no memory
        weights = Bert(config, pooler=False).state_dict()
    return {f"bert.{name}": tuple(x.shape) for name, x in weights.items()}
