"""Weight files of a Hugging Face model folder: one file, or shards with an index.

safetensors files are always read; PyTorch's pickled files only on request, and only with a loader that builds nothing
but tensors. The sizes of the weights are compared with config.json before memory is allocated.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError  # the class alone: what torch.load raises
from typing import Any, Dict, Iterable, List, Tuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import sha256_of
from ipu_model.core.memory import free_memory
from ipu_model.core.units import parse_version
from ipu_model.models import families
from ipu_model.models.architecture import read_class_name, read_object
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert
from ipu_model.models.tensors import DTYPES, UndrawnWeights, load_tensors
from ipu_model.models.transformers_encoder import build_encoder

T = TypeVar("T")

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OTHER_KINDS = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "bert_model.ckpt.index")
MAX_BYTES = 16 << 30
"""Limit: BERT large has 1.3 GB in fp32."""
TIED = 2
"""Limit on how often weights may count: a tied decoder repeats the word embeddings once."""
_PYTHONS = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError)
DAMAGE = (*_PYTHONS, UnpicklingError, struct.error)
"""Errors that torch.load raises for a file that is truncated or has anything but tensors."""
SAFE_TORCH = (2, 6)
"""First version in which weights_only prevents a file from running code (CVE-2025-32434)."""
LAYER = re.compile(r"bert\.encoder\.layer\.(\d{1,9})\.")

Shapes = Dict[str, Tuple[int, ...]]


def read_weights(folder: Path, config: ModelConfig, pickled: bool = False) -> Tuple[Dict[str, Tensor], str]:
    """Read the tensors of a model folder under Podium's names, and hash their files.

    The weights must have the sizes of config.json. If `pickled`, PyTorch's own files are also read if there are no
    safetensors. The SHA-256 is that of the file; for shards, that of their hashes in the order of their names.

    Raises:
        CheckpointError: there are no such files; a shard is missing or a weight is in two shards; a file is damaged,
            too large, or of other sizes; a pickled file has anything but tensors, or torch cannot read it safely.
    """
    paths = weight_files(folder, pickled)
    size = sum(path.stat().st_size for path in paths)
    if size > MAX_BYTES:
        raise CheckpointError(f"{folder} has {size} bytes of weights, more than {MAX_BYTES}: it is not an encoder")
    left = free_memory()
    if left is not None and size > left:
        raise CheckpointError(
            f"{folder} has {size:,} bytes of weights, but only {left:,} bytes of memory are free on this host and in "
            "its cgroup: run it on a host with more memory"
        )
    if paths[0].suffix == ".bin":
        state = _join(map(_load_pickled, paths), config, folder)
        require_sizes(config, {name: tuple(x.shape) for name, x in state.items()}, folder)
    else:
        require_sizes(config, _join(map(read_shapes, paths), config, folder), folder)
        state = _join(map(load_tensors, paths), config, folder)
    hashes = [sha256_of(path) for path in paths]
    return state, hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _join(shards: Iterable[Dict[str, T]], config: ModelConfig, folder: Path) -> Dict[str, T]:
    """Return the content of all files under Podium's names; no weight may occur twice."""
    joined: Dict[str, T] = {}
    family, architecture = families.get_family(config.family), read_class_name(folder)
    for old, value in (entry for shard in shards for entry in shard.items()):
        name = family.to_ours(old, architecture)
        if name in joined:
            raise CheckpointError(f"{folder} has {name} twice, once as {old}: it was combined from two models")
        joined[name] = value
    return joined


def weight_files(folder: Path, pickled: bool = False) -> List[Path]:
    """Return the weight files of a model folder: safetensors first, one file before shards.

    Raises:
        CheckpointError: there are no supported files, or an index names a missing file.
    """
    kinds = [(WEIGHTS, INDEX)] + ([(PICKLED, PICKLED_INDEX)] if pickled else [])
    for single, index in kinds:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index, Path(single).suffix)
    advice = f"weights must be {WEIGHTS}, or shards with {INDEX}" + (f", or {PICKLED}" if pickled else "")
    other = [name for name in (*OTHER_KINDS, PICKLED, PICKLED_INDEX) if (folder / name).is_file()]
    if other and other[0] in OTHER_KINDS:
        advice = (
            f"{other[0]} is of another framework; load it with from_pretrained(..., from_tf=True) or from_flax=True of "
            "transformers 4 and save it with save_pretrained"
        )
    elif other:
        advice = (
            f"weights must be safetensors here, and {PICKLED} is pickled. Import the model with base_model.source, "
            "or save it again with save_pretrained"
        )
    raise CheckpointError(f"{folder / WEIGHTS} is missing: {advice}")


def _shards(index: Path, suffix: str) -> List[Path]:
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise CheckpointError(f"{index} must have weight_map, from names of weights to names of files")
    names = sorted(set(files.values()))
    for name in names:
        if Path(name).name != name or Path(name).suffix != suffix:
            raise CheckpointError(f"{index} names {json.dumps(name)}, which is not a {suffix} file in its own folder")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index} names {name}, which is missing: download the model again")
    return [index.parent / name for name in names]


def _load_pickled(path: Path) -> Dict[str, Tensor]:
    if parse_version(torch.__version__) < SAFE_TORCH:
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
            f"{path} is damaged, or has more than tensors, and only tensors are read from a pickled file ({first})"
        ) from None
    if not isinstance(values, dict) or not all(
        isinstance(name, str) and isinstance(x, Tensor) for name, x in values.items()
    ):
        raise CheckpointError(f"{path} must have tensors by name (a state_dict), as save_pretrained writes it")
    total, size = sum(x.numel() * x.element_size() for x in values.values()), path.stat().st_size
    if total > TIED * size:
        raise CheckpointError(
            f"{path} declares {total} bytes of weights but has {size}: weights share memory, unlike in any encoder"
        )
    return values


def _require_unpacked(path: Path) -> None:
    """Require an uncompressed zip file, as PyTorch writes it; a compressed one could expand to any size."""
    if not zipfile.is_zipfile(str(path)):
        return
    try:
        with zipfile.ZipFile(str(path)) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error})") from None
    total, size = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{path} has {size} bytes and unpacks to {total}; PyTorch writes such files unpacked: save the model again"
        )


def count_parameters(folder: Path) -> int:
    """Return the number of weights in the safetensors of a folder, from their headers; errors as `read_weights`."""
    shapes = (shape for path in weight_files(folder) for shape in read_shapes(path).values())
    return sum(math.prod(shape) for shape in shapes)


def read_shapes(path: Path) -> Shapes:
    """Read the shape of each tensor from the header of a safetensors file, which must match the file."""
    try:
        with safe_open(str(path), "pt") as content:  # checks the header against the file
            names = list(content.keys())
            tensors = {name: content.get_slice(name) for name in names}
        for name, tensor in tensors.items():
            if tensor.get_dtype() not in DTYPES.values():
                raise ValueError(f"{name} has numbers of type {tensor.get_dtype()}")
        return {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error})") from None


def require_sizes(config: ModelConfig, shapes: Shapes, source: Path) -> None:
    """Compare the shapes of an encoder's weights with its config.json.

    Raises:
        CheckpointError: a weight is missing, or has another size.
    """
    family = families.get_family(config.family)
    layers = {int(match.group(1)) for match in map(LAYER.match, shapes) if match}
    if layers and len(layers) != config.num_layers:
        raise CheckpointError(
            f"{source}: its config.json requires {config.num_layers} layers (num_hidden_layers), its weights have "
            f"{len(layers)}: the folder is inconsistent, download or create it again"
        )
    with UndrawnWeights(), torch.device("meta"):  # takes no memory; without pooler and head
        if family.own:
            encoder: Any = Bert(config, pooler=False)
        else:
            encoder = build_encoder("ForMaskedLM", config.family, family.write_values(config), 0).base_model
    expected = {f"{family.inside}{name}": tuple(x.shape) for name, x in encoder.state_dict().items()}
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} weights of the encoder, the first is {missing[0]}: it is not a "
            f"{family.prefix} model, or was saved under other names"
        )
    require_shapes(expected, shapes, source)


def require_shapes(expected: Shapes, actual: Shapes, source: Path) -> None:
    """Compare the shapes of weights with those that config.json requires; some weights may be missing."""
    for name, shape in actual.items():
        if expected.get(name, shape) != shape:
            raise CheckpointError(
                f"{source}: {name} has shape {shape}, its config.json requires {expected[name]}: the folder is "
                "inconsistent, download or create it again"
            )
