"""Model folders, compatible in both directions with `from_pretrained` of transformers.

A folder has `config.json` (architecture), `model.safetensors` or its shards, both with the names that the model's
family has in transformers, and `podium.json` (origin of the weights). Only import_model.py reads pickled weights.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from torch import Tensor

from ipu_model import heads
from ipu_model.core.errors import CheckpointError
from ipu_model.core.files import write_json
from ipu_model.models import families
from ipu_model.models.architecture import CONFIG, match_labels, read_class_name, read_config, read_object
from ipu_model.models.config import ModelConfig
from ipu_model.models.head import Head
from ipu_model.models.tensors import save_tensors
from ipu_model.models.weight_files import WEIGHTS, read_weights, require_shapes

ORIGIN = "podium.json"
LAYERS = "bert.encoder.layer."
ENCODER = "encoder"
"""Name that an imported model without one of our heads has in place of a head."""


@dataclass(frozen=True)
class ModelOrigin:
    """Origin of the weights of a model folder, saved in podium.json."""

    tokenizer_sha256: str
    kind: str
    head: str
    steps: int
    seed: int


@dataclass(frozen=True)
class ModelFolder:
    """Model read from disk."""

    path: Path
    config: ModelConfig
    state: Dict[str, Tensor]
    """Weights under Podium's names, in the precision of their file."""
    tokenizer_sha256: Optional[str]
    """None for a folder that Podium did not write."""
    sha256: str
    """Hash of model.safetensors; for shards, the hash of their hashes."""
    labels: Sequence[str] = ()
    """Names of the classes of its head, in order; one for a regression, none for a head without classes."""
    architecture: str = ""
    """Transformers class in its config.json; empty if there is none."""
    note: str = ""
    """Message about a change of its classes; empty if they stay."""

    def for_head(self, head: Head) -> ModelFolder:
        """Return the folder as the start of a model with this head, without classes of another head."""
        if not head.labelled or not self.architecture or self.architecture.endswith(head.suffix):
            return self
        inside = families.get_family(self.config.family).inside
        state = {name: x for name, x in self.state.items() if name.startswith(inside)}
        return dataclasses.replace(self, state=state, labels=())

    def for_layers(self, count: int) -> ModelFolder:
        """Return the folder as the start of a model with fewer layers: the last of each of `count` equal parts, as the
        2nd, 4th and 6th of 6.

        Raises:
            CheckpointError: it has fewer layers, or is not of a family that Podium trains itself.
        """
        layers = self.config.num_layers
        if not families.get_family(self.config.family).own:
            raise CheckpointError(f"{self.path} is not of a family that Podium trains itself: omit `layers`")
        if count > layers:
            raise CheckpointError(f"{self.path} has {layers} layers, of which {count} cannot be copied: lower `layers`")
        state = {name: x for name, x in self.state.items() if not name.startswith(LAYERS)}
        for number in range(count):
            source = f"{LAYERS}{(number + 1) * layers // count - 1}."
            layer = {name[len(source) :]: x for name, x in self.state.items() if name.startswith(source)}
            state.update({f"{LAYERS}{number}.{name}": x for name, x in layer.items()})
        return dataclasses.replace(self, state=state, config=dataclasses.replace(self.config, num_layers=count))

    def for_labels(self, head: Head, labels: Sequence[str]) -> ModelFolder:
        """Return the folder as the start of a model with these classes: reordered, or without classes if they differ.

        A regression has no classes, so the name of its value does not matter.
        """
        if not self.labels or len(self.labels) == len(labels) == 1:
            return dataclasses.replace(self, labels=labels) if self.labels else self
        part = head.find_classes(self.state).rpartition(".")[0]
        names = [name for name in self.state if name.startswith(f"{part}.")]
        order, note = match_labels(self.labels, labels)
        if order is None:
            state = {name: x for name, x in self.state.items() if name not in names}
            return dataclasses.replace(self, state=state, labels=(), note=note)
        state = {**self.state, **{name: self.state[name][order] for name in names if note}}
        return dataclasses.replace(self, state=state, labels=labels, note=note)


def transformers_class(family: str, head: str) -> str:
    """Return the transformers class that loads a model with this head; ENCODER: without one."""
    return families.get_family(family).class_name("Model" if head == ENCODER else heads.get_head_spec(head).suffix)


def write_model(
    folder: Path,
    head: str,
    config: ModelConfig,
    state: Dict[str, Tensor],
    origin: ModelOrigin,
    labels: Sequence[str] = (),
    row_kind: Optional[str] = None,
) -> None:
    """Fill an existing folder with config.json, model.safetensors and podium.json.

    The tied decoder is saved once, as the word embedding, as transformers does. The model was trained on rows of
    `row_kind`; None: the head's first.
    """
    family = families.get_family(config.family)
    values: Dict[str, Any] = family.write_values(config)
    values.update(architectures=[transformers_class(config.family, head)], tie_word_embeddings=True)
    if labels:
        values.update(
            id2label={str(number): name for number, name in enumerate(labels)},
            label2id={name: number for number, name in enumerate(labels)},
        )
        labelled = heads.get_head(head)
        kind = row_kind or labelled.row_kinds(len(labels))[0]
        if kind in labelled.problem_types:
            values["problem_type"] = labelled.problem_types[kind]
    write_json(folder / CONFIG, values)
    save_tensors(folder / WEIGHTS, family.to_theirs(state))
    write_json(folder / ORIGIN, dataclasses.asdict(origin))


def read_model(folder: Path, pickled: bool = False) -> ModelFolder:
    """Read a model folder, ours or from the Hub; if `pickled`, also PyTorch's own files if there are no safetensors.

    Raises:
        CheckpointError: a file is missing or damaged, or the model is not supported.
    """
    folder = Path(folder)
    config, labels = read_config(folder / CONFIG)
    state, sha256 = read_weights(folder, config, pickled)
    origin = read_object(folder / ORIGIN) if (folder / ORIGIN).is_file() else {}
    labelled = [heads.get_head(name) for name in heads.list_heads() if heads.get_head(name).labelled]
    if not any(head.find_classes(state) for head in labelled):
        labels = []  # transformers writes two default names for every model
    return ModelFolder(folder, config, state, origin.get("tokenizer_sha256"), sha256, labels, read_class_name(folder))


def missing_parameters(folder: ModelFolder, expected: Dict[str, Tensor]) -> List[str]:
    """Return the parameters of the pooler and the head that the folder lacks and that must be initialised.

    Raises:
        CheckpointError: a shape differs; weight_files.require_sizes has checked the encoder.
    """
    shapes, required = ({name: tuple(x.shape) for name, x in state.items()} for state in (folder.state, expected))
    require_shapes(required, shapes, folder.path)
    return [name for name in expected if name not in folder.state]
