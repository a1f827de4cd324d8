"""The architecture that a model folder states, read without torch and without its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ipu_model.errors import CheckpointError, ConfigError
from ipu_model.files import read_json, reject_duplicate_keys
from ipu_model.models.config import ModelConfig
from ipu_model.units import shorten

CONFIG = "config.json"
COMPUTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
REQUIRED = {**COMPUTED, "is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
"""Keys of BertConfig that say what is computed, and the values this package computes (their defaults in BertConfig)."""

SAME = ("vocab_size", "hidden_size", "intermediate_size", "type_vocab_size", "layer_norm_eps", "initializer_range")
# Ours -> Hugging Face's.
CONFIG_KEYS = {
    **{name: name for name in SAME},
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
LIMITS = {"hidden_size": 16384, "num_hidden_layers": 256, "num_attention_heads": 1024, "intermediate_size": 65536}
LIMITS.update(vocab_size=2 << 20, max_position_embeddings=32767, type_vocab_size=256)
"""Far above every BERT; positions are int16 and segments uint8 in the rows."""


RANGES = {
    "hidden_dropout_prob": (0.0, 1.0),
    "attention_probs_dropout_prob": (0.0, 1.0),
    "layer_norm_eps": (1e-30, 1.0),
    "initializer_range": (1e-30, 100.0),
}
"""Smallest and largest value of what is not a whole number; far beyond those of every BERT."""


def read_config(path: Path) -> Tuple[ModelConfig, List[str]]:
    """The architecture that a config.json of transformers states, and the names of its labels.

    What it leaves out has BertConfig's default.

    Raises:
        CheckpointError: missing, damaged, or of a model that this package does not compute.
    """
    values = read_object(path)
    for key, required in REQUIRED.items():
        if values.get(key) not in (None, required):
            raise CheckpointError(f"{path}: {key} is {values[key]!r}, this version computes {required!r} only")
    lacking = [theirs for theirs in ("vocab_size", "hidden_size") if theirs not in values]
    if lacking:
        raise CheckpointError(f"{path} lacks {', '.join(lacking)}: it is no configuration of a BERT")
    for theirs, most in LIMITS.items():
        if theirs in values and not (type(values[theirs]) is int and 1 <= values[theirs] <= most):
            raise CheckpointError(
                f"{path}: {theirs} is {values[theirs]!r:.80}, a whole number from 1 to {most} is required"
            )
    for theirs, (smallest, largest) in RANGES.items():
        value = values.get(theirs, smallest)
        if type(value) not in (int, float) or not smallest <= value <= largest:
            raise CheckpointError(
                f"{path}: {theirs} is {value!r:.80}, a number from {smallest} to {largest} is required"
            )
    labels = _labels(values.get("id2label") or {}, path)
    try:
        config = ModelConfig(**{ours: values[theirs] for ours, theirs in CONFIG_KEYS.items() if theirs in values})
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return config, labels


def _labels(names: Any, path: Path) -> List[str]:
    numbers = [str(number) for number in range(len(names))] if isinstance(names, dict) else None
    if numbers is None or set(numbers) != set(names) or not all(type(x) in (str, int, float) for x in names.values()):
        raise CheckpointError(f"{path}: id2label must be an object of number: name, of the numbers from 0 on")
    return [str(names[number]) for number in numbers]


def match_labels(found: Sequence[str], wanted: Sequence[str]) -> Tuple[Optional[List[int]], str]:
    """Find the classes that are wanted among those of a model.

    Returns:
        The number of each in the model, or None where they are not the same classes, so that the head is new; and what
        becomes of the head, for people: empty where it stays.
    """
    numbers = {_plain_label(name): number for number, name in enumerate(found)}
    places = [numbers.get(_plain_label(name)) for name in wanted]
    order = [place for place in places if place is not None]
    if not len(places) == len(set(order)) == len(found):
        return (
            None,
            f"the model has the classes {shorten(found, 5)}, the examples have {shorten(wanted, 5)}: the head is new",
        )
    note = f"the model has the classes of the examples in another order: its head is reordered to {shorten(wanted, 5)}"
    return order, "" if order == list(range(len(found))) else note


def _plain_label(name: str) -> str:
    """The name of a class; LABEL_0, as transformers calls a class without a name, is 0."""
    number = name[len("LABEL_") :] if name.startswith("LABEL_") else ""
    return number if number.isdigit() else name


def architecture_of(folder: Path) -> str:
    """The class of transformers that the config.json of a folder names; empty where it names none, or several."""
    named = read_object(folder / CONFIG).get("architectures")
    return named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else ""


def read_object(path: Path) -> Dict[str, Any]:
    """The JSON object in a file of a model folder.

    Raises:
        CheckpointError: missing, damaged, or something else.
    """
    try:
        values = read_json(path, object_pairs_hook=reject_duplicate_keys)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {path.parent} is no model folder") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold an object, found {type(values).__name__}")
    return values


def differences(wanted: ModelConfig, found: ModelConfig) -> List[str]:
    """What a stated architecture has otherwise than a model, as `name: found, stated ...`; dropout and the range of
    fresh weights are no part of a model."""
    free = ("hidden_dropout", "attention_dropout", "initializer_range")
    stated, real = dataclasses.asdict(wanted), dataclasses.asdict(found)
    return [f"{k}: {real[k]}, stated {stated[k]}" for k in stated if k not in free and stated[k] != real[k]]
