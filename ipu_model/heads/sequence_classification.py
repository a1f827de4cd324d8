"""Sequence classification head; with a single label it is a regression.

Legend: N sequences, C classes; B rows of a micro-batch, S maximum sequences per row.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ipu_model.ipu.device_model import (
    DeviceModel,
    drop_out,
    label_losses,
    mark_correct,
    mark_labels,
    select_positions,
    squared_errors,
    sum_by_row,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert, Dense, Tokens, draw_mask_for, drop
from ipu_model.models.flat import FlatBatch, FlatIndex, to_tensor
from ipu_model.models.head import Head, evaluate_logits, sum_loss
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch


class BertForSequenceClassification(nn.Module):
    """Encoder with logits of each sequence, from its pooled [CLS]; a single logit is the value of a regression."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=True)
        self.classifier = Dense(config.hidden_size, labels)
        self.dropout = config.hidden_dropout

    def forward(self, tokens: Tokens, cls_index: Tensor) -> Tensor:
        """Return logits: [...], [N] positions of the [CLS] tokens in the flattened tokens -> [N, C]."""
        first, dropout = self.bert(tokens).flatten(0, -2)[cls_index], self.dropout if self.training else 0.0
        if self.bert.drops_first:
            first = drop(first, draw_mask_for(first, dropout), dropout)
        pooled = self.bert.pool(first)
        return self.classifier(drop(pooled, draw_mask_for(pooled, dropout), dropout))


class SequenceClassificationOnIpu(DeviceModel):
    """Loss of one micro-batch, evaluation sums without label weights, or logits without labels."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        sequence_ids: Tensor,
        cls_positions: Tensor,
        labels: Optional[Tensor] = None,
        label_weights: Optional[Tensor] = None,
    ) -> Any:
        """All inputs [B, width] int32, the columns of the rows; labels [B, S] int32 classes, or fp32 values of a
        regression (C = 1); label_weights [B, 1] fp32, see ipu/host_calls.py.

        Returns:
            With weights: loss and label_loss, the same fp32 scalar. With labels alone: Head.sums of every row,
            [B, 4] fp32. Without labels: logits [B, S, C] fp32.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        placement, model, rate = self.layout.placement, self.bert_model, self.layout.hidden_dropout
        assert placement.pooler is not None  # of a classification placement
        with self.ops.block("pooler", placement.pooler):
            first = select_positions(hidden, cls_positions)
            pooled = model.bert.pool(drop_out(first, rate, training and model.bert.drops_first))
            pooled = drop_out(pooled, rate, training)
        with self.ops.block("heads", placement.heads):
            logits = model.classifier(pooled)  # [B, S, C]
            if labels is None:
                return logits.float()
            values = labels.is_floating_point()
            losses = squared_errors(logits, labels) if values else label_losses(logits, labels)
            if label_weights is None:
                classes = mark_labels(labels) * (0.0 if values else 1.0)
                return sum_by_row(losses, mark_correct(logits, labels) * classes, mark_labels(labels), classes)
            loss = (losses * label_weights).sum()
            return self.ops.final_loss(loss), loss


class SequenceClassification(Head):
    """Head with cross-entropy of classes, or squared error of values, as in BertForSequenceClassification."""

    labelled = True
    suffix = "ForSequenceClassification"
    weight = "classifier.weight"
    parts = ("label_loss",)
    sums = ("label_loss", "right", "labels", "classes")
    best = "label_accuracy"
    logits = ("logits",)
    title = "classification head"
    stage = "glue_head"
    inputs = ("cls_positions",)
    on_ipu = SequenceClassificationOnIpu

    def row_kind(self, labels: int) -> str:
        return "sequence_regression" if labels == 1 else self.name

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return BertForSequenceClassification(config, labels)

    def settings(self, labels: Sequence[str]) -> Dict[str, Any]:
        return {"problem_type": "regression" if len(labels) == 1 else "single_label_classification"}

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"label_loss": "class_labels" if "class_labels" in batch.columns else "targets"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return class_labels [N], or targets [N] in fp64."""
        if "class_labels" in places.columns:
            return {"class_labels": to_tensor(places.per_sequence("class_labels"))}
        return {"targets": torch.from_numpy(places.per_sequence("targets").astype(np.float64))}

    def loss(self, model: Any, flat: FlatBatch, counts: Mapping[str, int]) -> Tuple[Tensor, Dict[str, Tensor]]:
        logits = model(flat.tokens, flat.starts)
        if "class_labels" in flat.labels:
            total = sum_loss(logits, flat.labels["class_labels"])
        else:
            total = _squares(logits, flat.labels["targets"]).sum()
        parts = {"label_loss": total / counts["label_loss"]}
        return parts["label_loss"], parts

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        logits = model(flat.tokens, flat.starts).float()
        if "class_labels" in flat.labels:
            loss, mark_correct, labels = evaluate_logits(logits, flat.labels["class_labels"])
            return torch.stack([loss, mark_correct, labels, labels])
        targets = flat.labels["targets"]
        total, labels = _squares(logits, targets).double().sum(), (targets != IGNORED).sum().double()
        return torch.stack([total, torch.zeros_like(total), labels, torch.zeros_like(total)])

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return the loss, and for classes label_accuracy: the share of correct classes, from 0 to 1."""
        loss = sums["label_loss"] / max(1.0, sums["labels"])
        losses = {"loss": loss, "label_loss": loss}
        return {**losses, "label_accuracy": sums["right"] / sums["classes"]} if sums["classes"] else losses

    def predict(self, model: Any, tokens: Tokens, starts: Tensor, count: int) -> Tensor:
        logits: Tensor = model(tokens, starts)
        return logits

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        return [(of_one,) for of_one in logits]

    def of_slot(self, logits: np.ndarray, slot: int, tokens: np.ndarray) -> Tuple[np.ndarray, ...]:
        return (logits[slot].copy(),)


def _squares(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the squared errors [N] of values [N, 1]; 0 without a target."""
    return (logits[:, 0].float() - targets.float()).square() * (targets.float() != IGNORED)


HEAD = SequenceClassification()
