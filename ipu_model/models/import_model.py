"""Import of a model in Hugging Face layout into a Podium model folder, with a report of the weights left out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Container, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from ipu_model import heads
from ipu_model.core.errors import CheckpointError
from ipu_model.models import families
from ipu_model.models.architecture import CONFIG, read_object
from ipu_model.models.config import ModelConfig
from ipu_model.models.family import Family
from ipu_model.models.layers import WORDS
from ipu_model.models.model_folder import (
    ENCODER,
    ModelFolder,
    ModelOrigin,
    missing_parameters,
    read_model,
    transformers_class,
    write_model,
)
from ipu_model.models.modeling import build_model
from ipu_model.models.tensors import UndrawnWeights

TIED = {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Duplicate name of a weight, and the name under which it is saved."""
BUFFERS = ("position_ids", "token_type_ids")
"""Last parts of names that are not weights: 0, 1, 2, ... and zeros, which older transformers saved."""


@dataclass(frozen=True)
class ImportReport:
    """Report of an import."""

    architecture: str
    """Transformers class that loads the folder."""
    weights_sha256: str
    """Hash of the source file; for shards, the hash of their hashes."""
    parameters: int
    left_out: List[str]
    missing: List[str]
    """Weights of the pooler and the heads that the model does not have; a job that needs them initialises them."""
    widened: Dict[str, int]
    """Number of weights for each type other than fp32; all are saved in fp32, which represents fp16 and bf16
    exactly."""


def import_model(source: Path, target: Path, tokenizer_sha256: str) -> ImportReport:
    """Read the folder `source` and fill the existing folder `target`.

    Raises:
        CheckpointError: the model is not supported, or is incomplete, damaged, inconsistent, or not finite.
    """
    model = read_model(source, pickled=True)
    config, family = model.config, families.get_family(model.config.family)
    head, labels = _find_classes(model)
    expected = _expected(config, head, len(labels))
    state, left_out = _select(model.state, expected, family, source)
    missing = missing_parameters(dataclasses.replace(model, state=state), expected)
    types = [str(x.dtype).replace("torch.", "") for x in state.values() if x.dtype is not torch.float32]
    state = {name: x.to(torch.float32) for name, x in state.items()}
    kind = None
    if head:
        problem, types_of_rows = read_object(source / CONFIG).get("problem_type"), heads.get_head(head).problem_types
        kinds = heads.get_head(head).row_kinds(len(labels))
        kind = next((name for name in kinds if types_of_rows.get(name) == problem), None)
    head = head or _detect_head(state, expected, model.architecture)
    write_model(target, head, config, state, ModelOrigin(tokenizer_sha256, "import", head, 0, 0), labels, kind)
    return ImportReport(
        architecture=transformers_class(config.family, head),
        weights_sha256=model.sha256,
        parameters=sum(x.numel() for x in state.values()),
        left_out=left_out,
        missing=list(family.to_theirs(dict.fromkeys(missing))),
        widened={name: types.count(name) for name in sorted(set(types))},
    )


def _find_classes(model: ModelFolder) -> Tuple[str, Sequence[str]]:
    """Return the head whose classes the model has, and their names; "" and [] for a model without classes.

    transformers omits the names LABEL_0 and LABEL_1 from config.json. The matrix of classes has the same name in
    several of its models, so that only config.json identifies the head.
    """
    for head in map(heads.get_head, heads.list_heads()):
        matrix = head.find_classes(model.state)
        if head.labelled and model.architecture.endswith(head.suffix) and matrix:
            return head.name, model.labels or [f"LABEL_{number}" for number in range(len(model.state[matrix]))]
    return "", []


def _expected(config: ModelConfig, labelled: str, labels: int) -> Dict[str, Tensor]:
    """Return all weights of models with our heads, without memory; of heads with classes, only those of `labelled`."""
    expected: Dict[str, Tensor] = {}
    family = families.get_family(config.family)
    with UndrawnWeights(), torch.device("meta"):
        for head in map(heads.get_head, heads.list_heads()):
            if not head.weight or (head.pretrains and not family.can_pretrain(head, config)):
                continue  # it adds nothing to the encoder, or the family has no such model
            other = head.labelled and head.name != labelled  # its pooler may be part of the encoder
            state = build_model(head.name, config, labels or 2).state_dict()
            expected.update({name: x for name, x in state.items() if not other or name.startswith(family.inside)})
    return expected


def _select(
    named: Dict[str, Tensor], known: Mapping[str, Tensor], family: Family, source: Path
) -> Tuple[Dict[str, Tensor], List[str]]:
    """Return the weights that Podium's models have, and the names of those that are not supported."""
    state = {name: x for name, x in named.items() if name.split(".")[-1] not in BUFFERS}
    for name, x in state.items():
        if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
            raise CheckpointError(f"{source}: {name} has values that are not finite numbers ({x.dtype})")
    for other, name in TIED.items():
        if other not in state:
            continue
        x = state.pop(other)
        if not torch.equal(state.setdefault(name, x), x):
            raise CheckpointError(
                f"{source}: {other} differs from {name}. The decoder must be tied to the word embeddings "
                "(tie_word_embeddings)"
            )
    unsupported = sorted(name for name in state if name not in known)
    unknown = [name for name in unsupported if family.is_unknown(name, known)]
    if unknown:
        raise CheckpointError(
            f"{source}: {len(unknown)} weights of the encoder are unknown, the first is {unknown[0]}: its parts do not "
            "match its config.json, or were saved under other names"
        )
    return {name: x for name, x in state.items() if name in known}, unsupported


def _detect_head(weights: Container[str], known: Container[str], architecture: str) -> str:
    """Return the head without classes that a set of weights has, or ENCODER.

    The weights that Podium's models have are `known`; not that of a decoder without bias, the word table alone.
    """
    for head in map(heads.get_head, reversed(heads.list_heads())):
        has_none = head.weight and head.weight not in known and architecture.endswith(head.suffix)
        if not head.labelled and (head.weight in weights or has_none):
            return head.name
    return ENCODER
