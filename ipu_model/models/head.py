"""Interface of a head: everything that differs between the tasks of an encoder (ipu_model/heads has one file for each).

Legend: R rows, L row length, S maximum sequences per row, N sequences, T tokens of all of them, C classes.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Container, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ipu_model.core.errors import ConfigError
from ipu_model.models import families
from ipu_model.models.config import Distillation, HeadSpec, ModelConfig
from ipu_model.models.encoder import Bert
from ipu_model.models.flat import FlatBatch, FlatIndex
from ipu_model.models.layers import Dense, Tokens, draw_mask_for, drop
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch, Columns

TEACHER_LOSS = "teacher_loss"
"""Teacher's part of the loss, before Distillation.alpha."""
Losses = Dict[str, Tensor]


@dataclass(frozen=True)
class Logits:
    """Logits of one sequence."""

    feature_id: int
    columns: Dict[str, np.ndarray]
    """Arrays by column of the prediction file (Head.logits): fp32, of one dimension."""


class Head(abc.ABC):
    """Interface of one head. The model from `build` has Hugging Face's parameter names and its encoder is `bert`."""

    pretrains = HeadSpec.pretrains
    """True if jobs of kind pretrain train it, and no others; it has no logits to write."""
    labelled = False
    """True if it has classes, whose names are in the job (Job.labels)."""
    suffix: str
    """End of the name of the transformers class that loads such a model, as in BertForQuestionAnswering."""
    weight: str
    """Name of a parameter that no other part of the model has."""
    parts: Tuple[str, ...]
    """Names of the parts of the loss of the labels, which is their sum divided by `divisor`."""
    divisor = 1
    sums: Tuple[str, ...]
    """Names of the sums over held-out rows; losses are sums over labels."""
    best: Optional[str] = None
    """Figure that selects the best weights, larger is better. None, and for equal figures: the smaller loss."""
    logits: Tuple[str, ...] = ()
    """Columns of the prediction file."""
    problem_types: Mapping[str, str] = {}
    """Kind of rows -> `problem_type` in config.json of a model trained on them."""

    title: str
    """Name of the head's block in messages."""
    stage: str
    """Name of the head in `pipeline_stages` of an ipu_config."""
    pooler = HeadSpec.pooler
    """True if the head reads the pooler."""
    tied = HeadSpec.tied
    """True if its last matrix is the word table: a weight is on one IPU, so the head is with the embeddings."""
    inputs: Tuple[str, ...] = ()
    """Columns that its IPU program reads in addition to the tokens, with and without labels."""
    on_ipu: Type[nn.Module]
    """Model as an IPU executes it (ipu.device_model.DeviceModel)."""

    @property
    def name(self) -> str:
        """Name in job.head, which is the name of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def teacher_columns(self) -> Tuple[str, ...]:
        """Columns of rows with a teacher's logits."""
        return tuple(f"teacher_{name}" for name in self.logits)

    def configure(self, settings: Mapping[str, Any]) -> Head:
        """Return the head with these settings (Job.head_settings).

        Raises:
            ConfigError: it does not have one of them.
        """
        if settings:
            raise ConfigError(f"head_settings={dict(settings)}: a {self.name} head has no settings")
        return self

    def further_files(self, config: ModelConfig, max_tokens: int) -> Dict[str, Any]:
        """Return further files of the folder of a model, for other libraries: path -> JSON values.

        `max_tokens` are those of the longest sequence that it was trained on.
        """
        return {}

    def find_classes(self, weights: Container[str]) -> str:
        """Return the name of the matrix whose rows are the classes, among names of weights; empty: there is none."""
        nested = self.weight.replace(".weight", ".out_proj.weight")  # in some encoders of transformers
        return next((name for name in (nested, self.weight) if name in weights), "")

    def is_new(self, missing: Sequence[str]) -> bool:
        """Return whether its part of a model was initialised, with these parameters; that of next sentences aside."""
        return bool(missing)

    def row_kinds(self, labels: int) -> Tuple[str, ...]:
        """Return the kinds of rows that it is trained on, files in ipu_model/row_kinds; by default its own name."""
        return (self.name,)

    @abc.abstractmethod
    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        """Return the model with uninitialised weights."""

    @abc.abstractmethod
    def label_columns(self, batch: Batch) -> Dict[str, str]:
        """Return the column of labels for each part of the loss."""

    def label_counts(self, batch: Batch) -> Dict[str, float]:
        """Return the labels of a whole update by part of the loss, or the sums of their class weights; 1 instead of 0,
        so that no labels means loss 0."""
        return {part: batch.labels(column) or 1 for part, column in self.label_columns(batch).items()}

    @abc.abstractmethod
    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return the labels of rows without padding (FlatBatch.labels)."""

    @abc.abstractmethod
    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        """Return the share of a micro-batch in each part of the loss of the update, in the order of `parts`, then
        TEACHER_LOSS with a teacher, whose logits are among the labels, at this temperature; None: no teacher.

        Sums run only over real labels, in fp32, and are divided by the number of labels in the whole update
        (`label_counts`), so that the division of the update into micro-batches does not matter.
        """

    def loss(
        self, model: Any, flat: FlatBatch, counts: Mapping[str, float], teacher: Optional[Distillation] = None
    ) -> Tuple[Tensor, Losses]:
        """Return the share of a micro-batch in the loss of the update, and its parts; see `losses`."""
        parts = self.losses(model, flat, counts, None if teacher is None else teacher.temperature)
        first, *others = (parts[name] for name in self.parts)
        label_loss: Tensor = sum(others, first) / self.divisor
        return label_loss if teacher is None else teacher.mix(parts[TEACHER_LOSS], label_loss), parts

    def parts_of(self, teacher: Optional[Distillation]) -> Tuple[str, ...]:
        """Return the names of the parts of the loss, with a teacher or without one."""
        return self.parts if teacher is None else (*self.parts, TEACHER_LOSS)

    @abc.abstractmethod
    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        """Return the `sums` of a batch, [len(sums)] fp64."""

    @abc.abstractmethod
    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return the figures of a model: `loss` as in training, then means over labels; shares are *_accuracy."""

    def predict(self, model: Any, tokens: Tokens, starts: Tensor, count: int) -> Tensor:
        """Return the logits of one forward pass over `count` real tokens; by default, of every token.

        `starts` [N] are the first tokens of the sequences.
        """
        return model(tokens)[:count]

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        """Return each sequence's part of the logits from `predict`, one array for each of the columns `logits`."""
        raise ConfigError(f"a {self.name} head has no logits to write")

    def name_logits(self, logits: np.ndarray, lengths: np.ndarray, feature_ids: np.ndarray) -> List[Logits]:
        """Return the logits from `predict` by sequence; lengths and feature_ids are [N]."""
        each = zip(feature_ids, self.split(logits, lengths))
        return [Logits(int(number), dict(zip(self.logits, part))) for number, part in each]

    def label_inputs(self, batch: Batch) -> Tuple[str, ...]:
        """Return the columns of labels that its IPU program reads, in the order of the arguments."""
        return tuple(self.label_columns(batch).values())


class JointHead(Head):
    """Head whose loss compares all sequences of an update with each other, and so is not a sum over micro-batches.

    The runtime makes its updates in two passes (GradCache, arXiv 2101.06983): it embeds all micro-batches, computes the
    loss and the gradients of the embeddings of the whole update, then embeds each micro-batch again, with the same
    dropout, for the gradients of the weights. Memory is that of one micro-batch, the numbers are those of one pass.
    """

    @abc.abstractmethod
    def width(self, model: Any) -> int:
        """Return H, the numbers of a vector of `embed`."""

    @abc.abstractmethod
    def embed(self, model: Any, flat: FlatBatch) -> Tensor:
        """Return what the loss reads of each sequence, [N, H] in fp32, in order of rows and slots."""

    @abc.abstractmethod
    def joint_labels(self, columns: Columns) -> Dict[str, Tensor]:
        """Return the labels [N] of the sequences of rows, on the host and in the same order."""

    @abc.abstractmethod
    def joint_loss(self, vectors: Tensor, labels: Mapping[str, Tensor]) -> Losses:
        """Return the loss of an update, then figures, by the names in `parts`, from `embed` and `joint_labels`."""

    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        return self.joint_loss(self.embed(model, flat), flat.labels)

    def loss(
        self, model: Any, flat: FlatBatch, counts: Mapping[str, float], teacher: Optional[Distillation] = None
    ) -> Tuple[Tensor, Losses]:
        """Return the loss of an update of one micro-batch, and its parts."""
        parts = self.losses(model, flat, counts, None)
        return parts[self.parts[0]], parts


class TokenLogits(nn.Module):
    """Encoder with `outputs` logits of every token, from one dense layer of that name, after dropout."""

    def __init__(self, config: ModelConfig, layer: str, outputs: int, dropout: float) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=families.get_family(config.family).rotary)
        self.layer, self.dropout = layer, dropout
        self.add_module(layer, Dense(config.hidden_size, outputs))

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the logits of the flattened tokens, [...] -> [T, outputs]."""
        hidden, dropout = self.bert(tokens).flatten(0, -2), self.dropout if self.training else 0.0
        hidden = self.bert.pool(hidden) if hasattr(self.bert, "pooler") else hidden
        return getattr(self, self.layer)(drop(hidden, draw_mask_for(hidden, dropout), dropout))


def sum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum the cross-entropy over the real labels, in fp32: [N, C], [N] -> a scalar."""
    if len(labels) == 0:
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


def evaluate_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy, correct predictions, and number of real labels; [N, C], [N] -> [3] fp64."""
    real = labels != IGNORED
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double()
    return torch.stack([losses.sum(), ((logits.argmax(1) == labels) & real).sum().double(), real.sum().double()])
