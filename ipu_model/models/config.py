"""Architecture of a BERT. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from ipu_model.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of a BERT. Fields have the meaning of those in Hugging Face's BertConfig."""

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    type_vocab_size: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name}={getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ConfigError(
                f"model.hidden_size={self.hidden_size} cannot be split over num_heads={self.num_heads}: "
                "choose a hidden_size that is a multiple of num_heads"
            )
