"""Model folders that `from_pretrained` of transformers loads, and that we load from there.

`config.json` (BertConfig keys, architecture only), `model.safetensors` (Hugging Face parameter names, or shards of it),
`podium.json` (where the weights come from). Pickled weights are read by import_model.py alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from torch import Tensor

from ipu_model import heads
from ipu_model.errors import CheckpointError
from ipu_model.files import write_json
from ipu_model.models.architecture import (
    COMPUTED,
    CONFIG,
    CONFIG_KEYS,
    architecture_of,
    match_labels,
    read_config,
    read_object,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.head import Head
from ipu_model.models.tensors import save_tensors
from ipu_model.models.weight_files import WEIGHTS, our_name, read_weights

ORIGIN = "podium.json"
WITHOUT_HEAD = {"masked_lm": "BertForMaskedLM", "encoder": "BertModel"}
"""What models that were taken in may have instead of a head, and the class of transformers that loads them."""


@dataclass(frozen=True)
class Origin:
    """podium.json: where the weights of a model folder come from."""

    tokenizer_sha256: str
    kind: str
    head: str
    steps: int
    seed: int


@dataclass(frozen=True)
class ModelFolder:
    """A model read from disk."""

    path: Path
    config: ModelConfig
    state: Dict[str, Tensor]
    """Hugging Face parameter name -> weight, fp32."""
    tokenizer_sha256: Optional[str]
    """None for a folder that Podium did not write."""
    sha256: str
    """Hash of model.safetensors; of shards, the hash of their hashes."""
    labels: Sequence[str] = ()
    """Names of the classes of its head, in order; one for a regression, none for a head without."""
    architecture: str = ""
    """The class of transformers that its config.json names; empty where it names none."""
    note: str = ""
    """What became of its classes, for people; empty where they stay."""

    def for_head(self, head: Head) -> ModelFolder:
        """The folder as a model with this head starts from it: classes of another head are left behind."""
        if not head.labelled or self.architecture in ("", head.architecture):
            return self
        state = {name: x for name, x in self.state.items() if name.startswith("bert.")}
        return dataclasses.replace(self, state=state, labels=())

    def for_labels(self, head: Head, labels: Sequence[str]) -> ModelFolder:
        """The folder as a model of these classes starts from it: the same ones in their order, or without any.

        A value has no class, so its name does not matter.
        """
        found = self.labels
        if not found or len(found) == len(labels) == 1:
            return dataclasses.replace(self, labels=labels) if found else self
        part = head.weight.rpartition(".")[0]
        own = [name for name in self.state if name.startswith(f"{part}.")]
        order, note = match_labels(found, labels)
        if order is None:
            state = {name: x for name, x in self.state.items() if name not in own}
            return dataclasses.replace(self, state=state, labels=(), note=note)
        state = {**self.state, **{name: self.state[name][order] for name in own if note}}
        return dataclasses.replace(self, state=state, labels=labels, note=note)


def class_of(head: str) -> str:
    """The class of transformers that loads a model with this head, or one of WITHOUT_HEAD."""
    return WITHOUT_HEAD[head] if head in WITHOUT_HEAD else heads.get_head(head).architecture


def write_model(
    folder: Path, head: str, config: ModelConfig, state: Dict[str, Tensor], origin: Origin, labels: Sequence[str] = ()
) -> None:
    """Fill an existing folder with config.json, model.safetensors and podium.json.

    The tied decoder is saved once, as the word embedding, which is how transformers saves it.
    """
    values: Dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in CONFIG_KEYS.items()}
    values.update(architectures=[class_of(head)], pad_token_id=0, tie_word_embeddings=True, **COMPUTED)
    if labels:
        values.update(
            id2label={str(number): name for number, name in enumerate(labels)},
            label2id={name: number for number, name in enumerate(labels)},
            **heads.get_head(head).settings(labels),
        )
    write_json(folder / CONFIG, values)
    save_tensors(folder / WEIGHTS, state)
    write_json(folder / ORIGIN, dataclasses.asdict(origin))


def read_model(folder: Path) -> ModelFolder:
    """Read a model folder, ours or of the Hub (safetensors only).

    Raises:
        CheckpointError: a file is missing or damaged, or it is no BERT that this package computes.
    """
    folder = Path(folder)
    config, labels = read_config(folder / CONFIG)
    state, sha256 = read_weights(folder, config)
    origin = read_object(folder / ORIGIN) if (folder / ORIGIN).is_file() else {}
    state = {our_name(name): x.float() for name, x in state.items()}
    named = architecture_of(folder)
    classes = [heads.get_head(name).weight for name in heads.list_heads() if heads.get_head(name).labelled]
    if not any(weight in state for weight in classes):
        labels = []  # transformers gives every model the names of two
    return ModelFolder(folder, config, state, origin.get("tokenizer_sha256"), sha256, labels, named)


def missing_parameters(found: ModelFolder, expected: Dict[str, Tensor]) -> List[str]:
    """Names of parameters of the pooler and the head that the folder lacks and that must be initialised.

    Raises:
        CheckpointError: a shape differs; of the encoder none is missing (weight_files.require_sizes).
    """
    for name, weight in expected.items():
        if name in found.state and found.state[name].shape != weight.shape:
            raise CheckpointError(
                f"{found.path}: {name} has shape {tuple(found.state[name].shape)}, its config.json asks for "
                f"{tuple(weight.shape)}: the folder is inconsistent, download or make it again"
            )
    return [name for name in expected if name not in found.state]
