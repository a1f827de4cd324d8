"""What a head is: everything that differs between the tasks a BERT is trained for (ipu_model/heads has one file each).

Legend: R rows, L row length, S sequences a row at most, N sequences, T tokens of all of them, C classes.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ipu_model.errors import ConfigError
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Tokens
from ipu_model.models.flat import FlatBatch, Places
from ipu_model.models.outline import HeadOutline
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch


@dataclass(frozen=True)
class Logits:
    """What a head says of one sequence."""

    feature_id: int
    columns: Dict[str, np.ndarray]
    """By column of the prediction file (Head.logits): fp32, of one dimension."""


class Head(abc.ABC):
    """One head. The model that `build` makes has Hugging Face's parameter names, and its encoder is called `bert`."""

    pretrains = HeadOutline.pretrains
    """Trained by jobs of kind pretrain, and by no other; it has no logits to write."""
    labelled = False
    """Has classes, whose names a job states (Job.labels)."""
    architecture: str
    """The class of transformers that loads such a model."""
    weight: str
    """A parameter that no other part of a BERT has."""
    parts: Tuple[str, ...]
    """Names of the parts of the loss."""
    sums: Tuple[str, ...]
    """What is added up over held-out rows; losses are sums over labels."""
    best: Optional[str] = None
    """The figure that tells the best weights, larger is better; None, and where two are equal: the smaller loss."""
    logits: Tuple[str, ...] = ()
    """Columns of the prediction file."""

    title: str
    """What the block of the head is called for people."""
    stage: str
    """What it is called in `pipeline_stages` of an ipu_config."""
    pooler = HeadOutline.pooler
    """The pooler stands before the head."""
    tied = HeadOutline.tied
    """The word table is its last matrix: a weight lives on one IPU, so the head stands beside the embeddings."""
    inputs: Tuple[str, ...] = ()
    """Columns that its program on IPUs reads beside the tokens, with and without labels."""
    on_ipu: Type[nn.Module]
    """The model as an IPU executes it (ipu.model.DeviceModel)."""

    @property
    def name(self) -> str:
        """As in job.head: the name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def row_kind(self, labels: int) -> str:
        """The kind of rows that it is trained on, a file of ipu_model/row_kinds; called as the head if not stated."""
        return self.name

    @abc.abstractmethod
    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        """The model, its weights without meaning yet."""

    def settings(self, labels: Sequence[str]) -> Dict[str, Any]:
        """What config.json of such a model says beside its architecture and the names of its labels."""
        return {}

    @abc.abstractmethod
    def label_columns(self, batch: Batch) -> Dict[str, str]:
        """Part of the loss -> the column of its labels."""

    def label_counts(self, batch: Batch) -> Dict[str, int]:
        """Labels of a whole update by part of the loss; at least 1, so that no labels means loss 0."""
        return {part: max(1, batch.labels(column)) for part, column in self.label_columns(batch).items()}

    @abc.abstractmethod
    def flat_labels(self, places: Places) -> Dict[str, Tensor]:
        """The labels of rows without their padding (FlatBatch.labels)."""

    @abc.abstractmethod
    def loss(self, model: Any, flat: FlatBatch, counts: Mapping[str, int]) -> Tuple[Tensor, Dict[str, Tensor]]:
        """Share of a micro-batch in the loss of the update, and in its parts, in their order.

        Sums run over real labels only, in fp32, and are divided by the count of labels in the whole update: how the
        update is cut into micro-batches does not matter.

        Args:
            counts: From label_counts, of the update.
        """

    @abc.abstractmethod
    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        """The `sums` of a batch, [len(sums)] fp64."""

    @abc.abstractmethod
    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """What is said of a model: `loss` as in training, then means over labels; shares are called *_accuracy."""

    def predict(self, model: Any, tokens: Tokens, starts: Tensor, count: int) -> Tensor:
        """Logits of one forward pass; of every token if not stated otherwise.

        Args:
            starts: [N] where the sequences begin among the tokens.
            count: Real tokens.
        """
        logits: Tensor = model(tokens)[:count]
        return logits

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        """For each sequence its part of the logits from `predict`, one array for each of the columns `logits`."""
        raise ConfigError(f"a {self.name} head has no logits to write")

    def label_inputs(self, batch: Batch) -> Tuple[str, ...]:
        """Columns of labels that its program on IPUs reads, in the order of the arguments."""
        return tuple(self.label_columns(batch).values())

    def of_slot(self, logits: np.ndarray, slot: int, tokens: np.ndarray) -> Tuple[np.ndarray, ...]:
        """As `split`, of one sequence of a row that an IPU computed.

        Args:
            logits: Of the row.
            tokens: [L] bool, which are those of the sequence.
        """
        raise ConfigError(f"a {self.name} head has no logits to write")


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the cross-entropy over the real labels, in fp32: [N, C], [N] -> a scalar."""
    if len(labels) == 0:
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


def judged(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy, right predictions, and number of the real labels; [N, C], [N] -> [3] fp64."""
    real = labels != IGNORED
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double()
    return torch.stack([losses.sum(), ((logits.argmax(1) == labels) & real).sum().double(), real.sum().double()])
