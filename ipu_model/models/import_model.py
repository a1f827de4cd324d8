"""A BERT of any maker in Hugging Face layout, written as a model folder of ours; what is taken and left out is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Set, Tuple

import torch
from torch import Tensor

from ipu_model import heads
from ipu_model.errors import CheckpointError
from ipu_model.models.architecture import CONFIG, architecture_of, read_config
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import (
    ModelFolder,
    Origin,
    class_of,
    missing_parameters,
    write_model,
)
from ipu_model.models.modeling import build_model
from ipu_model.models.weight_files import our_name, read_weights

WORDS = "bert.embeddings.word_embeddings.weight"
TIED = {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Other name of a weight -> the name it is saved under."""
BUFFERS = ("position_ids", "token_type_ids")
"""Last parts of names that hold no weights: 0, 1, 2, ... and zeros, which older transformers saved."""


@dataclass(frozen=True)
class Imported:
    """What became of a foreign model."""

    architecture: str
    """The class of transformers that the folder loads as."""
    weights_sha256: str
    """Hash of the file that was read; of shards, the hash of their hashes."""
    parameters: int
    left_out: List[str]
    """Weights of heads that are not computed here."""
    missing: List[str]
    """Weights of the pooler and the heads that the model does not have; who needs them draws them from its seed."""
    widened: Dict[str, int]
    """Number type -> weights that came in it; all are kept in fp32, which holds fp16 and bf16 exactly."""


def import_model(source: Path, target: Path, tokenizer_sha256: str) -> Imported:
    """Read the folder `source` and fill the existing folder `target`.

    Args:
        tokenizer_sha256: of the tokenizer.json that rows for this model are made with.

    Raises:
        CheckpointError: no BERT that this package computes, incomplete, damaged, inconsistent, or not finite.
    """
    config, names = read_config(source / CONFIG)
    raw, sha256 = read_weights(source, config, pickled=True)
    head, labels = _labels(source, names, raw)
    expected = _expected(config, head, len(labels))
    state, left_out = _ours(raw, expected, source)
    missing = missing_parameters(ModelFolder(source, config, state, None, sha256), expected)
    types = [str(x.dtype).replace("torch.", "") for x in state.values() if x.dtype is not torch.float32]
    found = _head(head, set(state))
    state = {name: x.to(torch.float32) for name, x in state.items()}
    origin = Origin(tokenizer_sha256, "import", found, steps=0, seed=0)
    write_model(target, found, config, state, origin, labels)
    parameters = sum(x.numel() for x in state.values())
    widened = {name: types.count(name) for name in sorted(set(types))}
    return Imported(class_of(found), sha256, parameters, left_out, missing, widened)


def _labels(source: Path, names: List[str], raw: Dict[str, Tensor]) -> Tuple[str, List[str]]:
    """The head whose classes the model has, and their names; empty, and none, for a model without classes.

    transformers leaves names out of config.json where they are LABEL_0 and LABEL_1. The matrix of classes has one name
    in several of its models, so that only config.json tells what they are classes of.
    """
    architecture = architecture_of(source)
    for name in heads.list_heads():
        head = heads.get_head(name)
        if head.labelled and head.architecture == architecture and head.weight in raw:
            return name, names or [f"LABEL_{number}" for number in range(len(raw[head.weight]))]
    return "", []


def _expected(config: ModelConfig, labelled: str, labels: int) -> Dict[str, Tensor]:
    """Every weight that a model with one of our heads has, without memory; of heads with classes, `labelled` alone."""
    expected: Dict[str, Tensor] = {}
    with torch.device("meta"):
        for name in heads.list_heads():
            if not heads.get_head(name).labelled or name == labelled:
                expected.update(build_model(name, config, labels).state_dict())
    return expected


def _ours(raw: Dict[str, Tensor], known: Mapping[str, Tensor], source: Path) -> Tuple[Dict[str, Tensor], List[str]]:
    """Weights under our names, and the names of those that nothing here computes.

    Raises:
        CheckpointError: a tied weight with other values, a weight of the encoder that is not BERT's, or
            values that are no numbers.
    """
    state: Dict[str, Tensor] = {}
    for old, x in raw.items():
        name = our_name(old)
        if name.split(".")[-1] in BUFFERS:
            continue
        if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
            raise CheckpointError(f"{source}: {old} holds values that are no finite numbers ({x.dtype})")
        state[name] = x
    for other, name in TIED.items():
        if other not in state:
            continue
        x = state.pop(other)
        if not torch.equal(state.setdefault(name, x), x):
            raise CheckpointError(
                f"{source}: {other} differs from {name}. BERT's decoder is tied to its word embeddings, and only such "
                "a model is computed here (tie_word_embeddings)"
            )
    foreign = sorted(name for name in state if name not in known)
    strange = [name for name in foreign if name.startswith("bert.")]
    if strange:
        raise CheckpointError(
            f"{source}: {len(strange)} weights of the encoder are not BERT's, the first is {strange[0]}: it has other "
            "parts than its config.json says, or was saved under other names"
        )
    return {name: x for name, x in state.items() if name in known}, foreign


def _head(labelled: str, weights: Set[str]) -> str:
    """The head that a set of weights has, or one of model_folder.WITHOUT_HEAD."""
    if labelled:
        return labelled
    for name in reversed(heads.list_heads()):
        if not heads.get_head(name).labelled and heads.get_head(name).weight in weights:
            return name
    return "masked_lm" if "cls.predictions.bias" in weights else "encoder"
