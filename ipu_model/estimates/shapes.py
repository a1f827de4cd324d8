"""Parameters and FLOPs of the parts of a model, from its configuration.

Legend: L tokens of a row, P slots for masked positions, H hidden size, E embedding size (mostly H), I feed-forward
size, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model import heads
from ipu_model.models.config import ModelConfig
from ipu_model.models.families import get_family
from ipu_model.rows.format import Manifest


@dataclass(frozen=True)
class RowShape:
    """Dimensions of rows that decide memory and time; equal for all rows, as programs have fixed shapes."""

    length: int
    """Tokens, padding included."""
    masked: int = 0
    """Slots for masked positions; 0 without masking."""
    sequences: int = 1
    """Largest number of sequences."""
    packing_factor: float = 1.0
    """Average number of sequences."""

    @staticmethod
    def from_manifest(manifest: Manifest) -> RowShape:
        """Return the shape of the rows of a folder."""
        return RowShape(
            manifest.row_length, manifest.max_predictions, manifest.max_sequences, manifest.packing_factor or 1.0
        )


def layer_parameters(model: ModelConfig) -> int:
    """Count the parameters of one encoder layer: four matrices [H, H], two [H, I], their biases, two LayerNorms; with
    rotary positions three [H, I] and mostly no biases."""
    hidden, inner = model.hidden_size, model.intermediate_size
    if get_family(model.family).rotary:
        return 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    return 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner


def table_parameters(model: ModelConfig) -> int:
    """Count the parameters of the word table [V, E]."""
    return model.vocab_size * model.table_width


def embedding_parameters(model: ModelConfig) -> int:
    """Count the parameters of the embedding tables, their LayerNorm, and the projection to H if E differs."""
    width, hidden = model.table_width, model.hidden_size
    projection = (width + 1) * hidden if width != hidden else 0
    positions = 0 if get_family(model.family).rotary else model.max_positions + model.position_offset
    rows = positions + model.type_vocab_size + 2
    return table_parameters(model) + rows * width + projection


def pooler_parameters(model: ModelConfig) -> int:
    """Count the parameters of the dense layer over [CLS]."""
    return model.hidden_size * (model.hidden_size + 1)


def head_parameters(model: ModelConfig, head: str, labels: int = 2) -> int:
    """Count the parameters of a head without pooler; a tied head has the transform, the decoder's bias and two classes.

    Question answering has two labels, start and end.
    """
    hidden, spec = model.hidden_size, heads.get_head_spec(head)
    if get_family(model.family).rotary and not spec.pooler:
        labels += hidden + 1  # the dense layer that pools, and its norm
    if spec.tied:
        width = model.table_width
        return width * (hidden + 1) + 2 * width + model.vocab_size + 2 * (hidden + 1)
    return labels * (hidden + 1)


def model_parameters(model: ModelConfig, head: str, labels: int = 2) -> int:
    """Count all trained parameters."""
    pooler = pooler_parameters(model) if heads.get_head_spec(head).pooler else 0
    layers = model.num_layers * layer_parameters(model)
    return embedding_parameters(model) + layers + pooler + head_parameters(model, head, labels)


def dense_flops(model: ModelConfig, tokens: int) -> float:
    """Return the forward FLOPs of one layer's products with weights: 2 per weight and token, 24 H^2 if I = 4 H."""
    hidden, inner = model.hidden_size, model.intermediate_size
    return tokens * (8.0 * hidden * hidden + (6.0 if get_family(model.family).rotary else 4.0) * hidden * inner)


def decoder_flops(model: ModelConfig, masked: int) -> float:
    """Return the forward FLOPs of transform and decoder at the masked slots of a row: P (2 E V + 2 E H)."""
    return masked * 2.0 * model.table_width * (model.vocab_size + model.hidden_size)
