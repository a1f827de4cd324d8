"""Architecture of an encoder, and constants of its heads that are needed without torch. Standard library only."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional

from ipu_model.core.errors import ConfigError

SIZES = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions")
HEAD_DROPOUTS = ("sequence_dropout", "token_dropout", "span_dropout")
"""Fields of ModelConfig that a model's own config.json sets, for the heads."""
IGNORED_KEYS = re.compile("_|model_type|return_dict|output_|quantization_config|reference_compile|.*_implementation")
"""Beginnings of keys of config.json that choose an implementation, extra outputs or another number format."""
LONGEST_WITH_SCORES = 512
"""Tokens of the longest sequence whose attention keeps its scores on a CPU, where nothing is dropped: those of 4,096
tokens and 12 heads take 800 MB in a layer."""
NOT_OF_AN_ENCODER = frozenset(
    (
        "architectures",
        "auto_map",
        "id2label",
        "label2id",
        "num_labels",
        "podium",
        "problem_type",
        "dtype",
        "torch_dtype",
    )
)
"""Keys of config.json that depend on the task or the precision."""


@dataclass(frozen=True)
class Distillation:
    """Weight of a teacher in the loss of its student (Hinton et al. 2015, arXiv 1503.02531)."""

    temperature: float
    """Divisor of both models' logits before the softmax; gradients are scaled back by its square."""
    alpha: float
    """Share of the teacher's part, 0 to 1; the rest is the loss of the labels."""

    def mix(self, taught: Any, label_loss: Any) -> Any:
        """Return the loss from the teacher's part and the loss of the labels."""
        return self.alpha * taught + (1 - self.alpha) * label_loss


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of an encoder. Fields have the meaning of those in Hugging Face's BertConfig."""

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    """Tokens of the longest sequence."""
    type_vocab_size: int = 2
    """0: the model has no token types, and ignores those of the rows."""
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    sequence_dropout: Optional[float] = None
    """Dropout before the classes of sequences; None: hidden_dropout."""
    token_dropout: Optional[float] = None
    """Dropout before the classes of tokens; None: hidden_dropout."""
    span_dropout: float = 0.0
    """Dropout before the start and end logits of answers."""
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    family: str = "bert"
    """Name of a file of models/families, with hyphens."""
    pad_id: int = 0
    position_offset: int = 0
    """Position of the first token of a sequence in the table of positions."""
    embedding_size: Optional[int] = None
    """Width of the embeddings, which are projected to hidden_size; None: hidden_size."""
    settings: Optional[Dict[str, Any]] = None
    """Content of config.json, for a family that computes from more of it than these fields."""

    @property
    def table_width(self) -> int:
        """Width of the word table."""
        return self.embedding_size or self.hidden_size

    def __post_init__(self) -> None:
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.pad_id >= self.vocab_size:
            raise ConfigError(f"model.pad_id={self.pad_id} is not in the vocabulary of {self.vocab_size} tokens")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"model.hidden_size={self.hidden_size} cannot be split over num_heads={self.num_heads}: "
                "choose a hidden_size that is a multiple of num_heads"
            )


@dataclass(frozen=True)
class HeadSpec:
    """Constants of a head that decide its placement; models/head.py documents them."""

    title: str
    stage: str
    pooler: bool = True
    tied: bool = False
    pretrains: bool = False
    suffix: str = ""


def read_head_spec(path: Path) -> HeadSpec:
    """Read the constants of a head from its file: from the class that sets `title` and `stage`."""
    names = {field.name for field in dataclasses.fields(HeadSpec)}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        constants: Dict[str, Any] = {
            getattr(line.targets[0], "id", ""): line.value.value
            for line in getattr(node, "body", [])
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        }
        if {"title", "stage"} <= constants.keys():
            return HeadSpec(**{name: value for name, value in constants.items() if name in names})
    raise LookupError(f"{path} has no class that sets title and stage to plain constants")
