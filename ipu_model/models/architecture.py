"""Architecture of a model folder, read without torch and without its weights."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.core.files import read_json, reject_duplicate_keys
from ipu_model.core.units import shorten
from ipu_model.models import families
from ipu_model.models.config import HEAD_DROPOUTS, ModelConfig
from ipu_model.models.family import Family

CONFIG = "config.json"
MAX_BYTES = 4 << 20
"""Limit of a config.json; 50,000 named labels have 3 MB."""
FOREIGN = {
    "auto_map": "has Python code of its own (auto_map), which is not run and may compute something else than the named "
    "model_type. If it does not, remove auto_map from a copy of the file",
    "quantization_config": "has weights in another number format (quantization_config). Save the model without it",
}
"""Keys of models that are not supported: what they say, and what to do."""
IMPLEMENTATION = re.compile(r"_?\w*implementation\w*")
COUNT = re.compile(r"(.*_)?(layers|groups|group_num|blocks|block_sizes|block_repeats)")
"""Keys of transformers' other families that count parts of a model."""
MAX_PARTS = 256
REQUIRED = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
"""Keys of every family that decide the computation, and the supported values (their defaults)."""
BOUNDS: Dict[str, Tuple[float, float]] = {
    "hidden_size": (1, 16384),
    "embedding_size": (1, 16384),
    "num_layers": (1, 256),
    "num_heads": (1, 1024),
    "intermediate_size": (1, 65536),
    "vocab_size": (1, 2 << 20),
    "pad_id": (0, 2 << 20),
    "max_positions": (1, 32767),
    "type_vocab_size": (1, 256),
    **dict.fromkeys(("hidden_dropout", "attention_dropout", *HEAD_DROPOUTS), (0.0, 1.0)),
    "layer_norm_eps": (1e-30, 1.0),
    "initializer_range": (1e-30, 100.0),
}
"""Smallest and largest values, far beyond those of every encoder; whole numbers where these are. Positions are int16
and segments uint8 in the rows."""


def read_config(path: Path) -> Tuple[ModelConfig, List[str]]:
    """Read the architecture and the names of the labels from a config.json of transformers.

    Missing keys have the defaults of the family in transformers. For errors see `read_model_config`.
    """
    return read_model_config(path)[1:]


def read_model_config(path: Path) -> Tuple[Dict[str, Any], ModelConfig, List[str]]:
    """Read the content of a config.json, and what `read_config` returns; every command reads models in this way.

    No memory is taken for the sizes that it states.

    Raises:
        CheckpointError: the file is missing or damaged, or the model is not supported.
    """
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes; at most {MAX_BYTES:,} are read")
    values = read_object(path)
    if values.get("pad_token_id") is None:
        values.pop("pad_token_id", None)
    try:
        _refuse_foreign(values)
        family = families.get_family(values.get("model_type") or "bert")
        for key, required in {**family.computed, **REQUIRED}.items():
            if values.get(key) not in (None, required):
                raise ConfigError(f"{key} is {values[key]!r:.80}; only {required!r} is supported")
        _check_values(family, values)
        return values, ModelConfig(**family.read_fields(values)), _read_labels(values.get("id2label") or {})
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _refuse_foreign(values: Dict[str, Any]) -> None:
    """Refuse code of a repository and other number formats."""
    for key, value in values.items():
        if value and key in FOREIGN:
            raise ConfigError(f"the model {FOREIGN[key]}")
        if IMPLEMENTATION.fullmatch(key) and not (value is None or re.fullmatch(r"\w{1,40}", str(value))):
            raise ConfigError(
                f"{key} is {value!r:.80}, which is not a name: code of a repository is not run; remove it"
            )


def _check_values(family: Family, values: Dict[str, Any]) -> None:
    keys = family.config_keys
    lacking = [keys[ours] for ours in ("vocab_size", "hidden_size") if keys[ours] not in values]
    if lacking:
        raise ConfigError(f"{' and '.join(lacking)} not found: it is not the configuration of a {family.prefix} model")
    for ours, key in keys.items():
        value, (least, most) = values.get(key, BOUNDS[ours][0]), BOUNDS[ours]
        if value is None and ours in HEAD_DROPOUTS:
            continue
        number, types = ("whole number", (int,)) if isinstance(least, int) else ("number", (int, float))
        if type(value) not in types or not least <= value <= most:
            raise ConfigError(f"{key} is {value!r:.80}; a {number} from {least} to {most} is required")
    for key, value in values.items():
        counts = [x for x in (value if isinstance(value, list) else [value]) if type(x) in (int, float)]
        if COUNT.fullmatch(key) and sum(map(abs, counts)) > MAX_PARTS:
            raise ConfigError(f"{key} is {value!r:.80}; at most {MAX_PARTS} are supported")


def _read_labels(names: Any) -> List[str]:
    numbers = [str(number) for number in range(len(names))] if isinstance(names, dict) else None
    if numbers is None or set(numbers) != set(names) or not all(type(x) in (str, int, float) for x in names.values()):
        raise ConfigError("id2label must be an object that maps the numbers from 0 on to names")
    return [str(names[number]) for number in numbers]


def match_labels(present: Sequence[str], required: Sequence[str]) -> Tuple[Optional[List[int]], str]:
    """Return the number in the model of each class of the examples, or None if they differ, so that the head is new.

    Also return a message about the head, empty if it does not change.
    """
    # LABEL_0, the name in transformers of an unnamed class, is the class 0.
    plain, needed = ([re.sub(r"^LABEL_(?=\d+$)", "", name) for name in names] for names in (present, required))
    numbers = {name: number for number, name in enumerate(plain)}
    matches = [numbers.get(name) for name in needed]
    order = [number for number in matches if number is not None]
    if not len(matches) == len(set(order)) == len(present):
        classes = f"the model has the classes {shorten(present, 5)}, the examples have {shorten(required, 5)}"
        return None, f"{classes}: the head is new"
    note = (
        f"the model has the classes of the examples in another order: its head is reordered to {shorten(required, 5)}"
    )
    return order, "" if order == list(range(len(present))) else note


def read_class_name(folder: Path) -> str:
    """Return the transformers class in the config.json of a folder; empty if there is none, or several."""
    classes = read_object(folder / CONFIG).get("architectures")
    return classes[0] if isinstance(classes, list) and len(classes) == 1 and isinstance(classes[0], str) else ""


def read_object(path: Path) -> Dict[str, Any]:
    """Read the JSON object in a file of a model folder.

    Raises:
        CheckpointError: the file is missing, damaged, or not an object.
    """
    try:
        values = read_json(path, object_pairs_hook=reject_duplicate_keys)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {path.parent} is not a model folder") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must be an object, found {type(values).__name__}")
    return values


def adopt_weights(configured: ModelConfig, actual: ModelConfig) -> ModelConfig:
    """Return a configured architecture with the fields of a model that its weights decide.

    The word table may be larger than the vocabulary: some models pad it to a round size.
    """
    decided = ("type_vocab_size", "pad_id", "position_offset", "embedding_size", "settings", *HEAD_DROPOUTS)
    size = max(configured.vocab_size, actual.vocab_size)
    return dataclasses.replace(configured, vocab_size=size, **{name: getattr(actual, name) for name in decided})


def architecture_differences(configured: ModelConfig, actual: ModelConfig) -> List[str]:
    """Return the differences between a configured architecture and a model, as `name: actual, configured ...`.

    Dropout and the range of initial weights are not part of a model.
    """
    free = ("hidden_dropout", "attention_dropout", "initializer_range")
    ours, real = dataclasses.asdict(configured), dataclasses.asdict(actual)
    return [f"{k}: {real[k]}, configured {ours[k]}" for k in ours if k not in free and ours[k] != real[k]]
