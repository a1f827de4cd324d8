"""Settings that both sides of a comparison share: model sizes, optimizer, seed."""

from __future__ import annotations

import dataclasses
from typing import Any

from ipu_model.jobs.job import OptimizerConfig
from ipu_model.models.config import ModelConfig

VOCABULARY = 30522
"""Vocabulary size of bert-base-uncased. Models have this size even if the rows use a smaller vocabulary."""
DROPOUT = 0.1
SEED = 1
OPTIMIZER = OptimizerConfig(
    name="adamw",
    learning_rate=1e-4,
    weight_decay=0.01,
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    bias_correction=True,
    max_grad_norm=1.0,
    loss_scaling=1.0,
    first_moment_precision="auto",
)
WARMUP_FRACTION = 0.1

SIZES: dict[str, dict[str, Any]] = {
    "test": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32},
    "tiny": {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "intermediate_size": 512},
    "base": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072},
}


def make_model_config(size: str, dropout: float = DROPOUT, vocabulary: int = VOCABULARY) -> ModelConfig:
    """Return the architecture of a size: layers/hidden 1/16 (tests), 2/128 (tiny) or 12/768 (base)."""
    return ModelConfig(vocabulary, hidden_dropout=dropout, attention_dropout=dropout, **SIZES[size])


@dataclasses.dataclass(frozen=True)
class Training:
    """Training that a child measures, the same for every configuration of a case."""

    task: str
    """pretrain or squad."""
    size: str
    rows: str
    """Row folder."""
    sequences: int
    """Sequences per update."""
    dropout: float = DROPOUT
    vocabulary: int = VOCABULARY

    @property
    def head(self) -> str:
        """Name of the head in ipu_model.heads."""
        return "pretraining" if self.task == "pretrain" else "question_answering"

    @property
    def row_kind(self) -> str:
        """Kind of rows in ipu_model.row_kinds."""
        return "pretrain" if self.task == "pretrain" else "question_answering"

    @property
    def model(self) -> ModelConfig:
        """Architecture of the model."""
        return make_model_config(self.size, self.dropout, self.vocabulary)

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Training:
        """Make a training from a child's specification."""
        return Training(**spec["training"])
