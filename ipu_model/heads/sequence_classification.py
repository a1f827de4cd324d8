"""Sequence classification head: one class or any number of labels; with a single label it is a regression.

Legend: N sequences, C classes; B rows of a micro-batch, S maximum sequences per row.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from ipu_model.ipu.device_model import (
    DeviceModel,
    average_sequences,
    drop_out,
    flag_losses,
    label_losses,
    mark_all_correct,
    mark_correct,
    mark_labels,
    select_positions,
    squared_errors,
    sum_by_row,
    teacher_losses,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert
from ipu_model.models.flat import FlatBatch, FlatIndex, to_tensor
from ipu_model.models.head import TEACHER_LOSS, Head, Losses, evaluate_logits, sum_loss
from ipu_model.models.layers import Dense, Tokens, draw_mask_for, drop
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch, weigh


class BertForSequenceClassification(nn.Module):
    """Encoder with logits of each sequence, from its pooled [CLS]; a single logit is the value of a regression."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.bert = Bert(config, pooler=True)
        self.classifier = Dense(config.hidden_size, labels)
        self.dropout = config.hidden_dropout if config.sequence_dropout is None else config.sequence_dropout

    def forward(self, tokens: Tokens, cls_index: Tensor) -> Tensor:
        """Return logits: [...], [N] positions of the [CLS] tokens in the flattened tokens -> [N, C]."""
        hidden, dropout = self.bert(tokens).flatten(0, -2), self.dropout if self.training else 0.0
        first = self.bert.select(hidden, cls_index, tokens.lengths)
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
        teacher_logits: Optional[Tensor] = None,
    ) -> Any:
        """Compute `finish`; without weights, Head.sums of every row, [B, 4] fp32; without labels, logits [B, S, C].

        All inputs [B, width] int32, the columns of the rows; labels [B, S] int32 classes, [B, S * C] int32 flags, or
        [B, S] fp32 values of a regression (C = 1); label_weights [B, 1] fp32, or [B, S] with class weights, see
        ipu/host_calls.py; teacher_logits [B, S * C] fp32. Logits are fp32.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        placement, model, rate = self.layout.placement, self.bert_model, self.bert_model.dropout
        assert placement.pooler is not None  # of a classification placement
        with self.ops.block("pooler", placement.pooler):
            if model.bert.pools_mean:
                first = average_sequences(hidden, sequence_ids, cls_positions.shape[1])
            else:
                first = select_positions(hidden, cls_positions)
            pooled = model.bert.pool(drop_out(first, rate, training and model.bert.drops_first))
            pooled = drop_out(pooled, rate, training)
        with self.ops.block("heads", placement.heads):
            logits = model.classifier(pooled)  # [B, S, C]
            if labels is None:
                return logits.float()
            values, flags = labels.is_floating_point(), labels.shape[1] > cls_positions.shape[1]
            find_losses = squared_errors if values else flag_losses if flags else label_losses
            losses = find_losses(logits, labels)
            if label_weights is None:
                each = labels.view(logits.shape)[..., 0] if flags else labels
                classes = mark_labels(each) * (0.0 if values else 1.0)
                right = mark_all_correct(logits, labels) if flags else mark_correct(logits, labels)
                return sum_by_row(losses, right * classes, mark_labels(labels), classes)
            taught, loss = [], (losses * label_weights).sum()
            if self.distillation is not None and teacher_logits is not None:
                each = differ_from_teacher(logits, teacher_logits, labels, self.distillation.temperature)
                taught = [(each * label_weights).sum()]
            return self.finish(loss, loss, *taught)


def differ_from_teacher(logits: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the teacher's part of the loss of every label, of the shape of `labels`, 0 where there is none.

    That is T^2 KL(teacher || student) of the classes, or of each of several labels, at temperature T; for a value, the
    squared difference from the teacher's. `logits` are [..., C], and `teacher` has the same numbers.
    """
    teacher, real = teacher.float().view(logits.shape), mark_labels(labels)
    if labels.is_floating_point():
        return (logits[..., 0].float() - teacher[..., 0]) ** 2 * real
    if labels.numel() < logits.numel():
        return teacher_losses(logits, teacher, temperature) * real
    ours, theirs = logits.float() / temperature, teacher / temperature
    losses = softplus(ours) - softplus(theirs) - theirs.sigmoid() * (ours - theirs)
    return losses.view(labels.shape) * real * temperature**2


class SequenceClassification(Head):
    """Head with cross-entropy of classes, binary cross-entropy of several labels, or squared error of values, as in
    BertForSequenceClassification."""

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
    problem_types = {
        "sequence_classification": "single_label_classification",
        "sequence_multilabel": "multi_label_classification",
        "sequence_regression": "regression",
    }

    def row_kinds(self, labels: int) -> Tuple[str, ...]:
        return ("sequence_regression",) if labels == 1 else (self.name, "sequence_multilabel")

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return BertForSequenceClassification(config, labels)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"label_loss": _label_column(batch.columns)}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return class_labels [N] (and label_weights [N] in fp64), label_flags [N * C], or targets [N] in fp64; and
        teacher_logits [N * C] in fp64."""
        name = _label_column(places.columns)
        values, taught = places.per_sequence(name), places.teacher_logits(self.teacher_columns, places.per_sequence)
        if places.class_weights is not None:
            taught["label_weights"] = torch.from_numpy(weigh(values, places.class_weights))
        labels = torch.from_numpy(values.astype(np.float64)) if name == "targets" else to_tensor(values)
        return {name: labels, **taught}

    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        logits, labels = model(flat.tokens, flat.starts), flat.labels[_label_column(flat.labels)]
        if "label_weights" in flat.labels:
            losses = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
            total = (losses * flat.labels["label_weights"].float()).sum()
        elif "class_labels" in flat.labels:
            total = sum_loss(logits, labels)
        else:
            flags = "label_flags" in flat.labels
            total = (flag_losses(logits, labels) if flags else squared_errors(logits, labels.float())).sum()
        parts = {"label_loss": total / counts["label_loss"]}
        if temperature is not None:
            taught = differ_from_teacher(logits, flat.labels["teacher_logits"], labels, temperature)
            if "label_weights" in flat.labels:
                taught = taught * flat.labels["label_weights"].float()
            parts[TEACHER_LOSS] = taught.sum() / counts["label_loss"]
        return parts

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        logits, labels = model(flat.tokens, flat.starts).float(), flat.labels[_label_column(flat.labels)]
        if "class_labels" in flat.labels:
            loss, right, count = evaluate_logits(logits, labels)
            return torch.stack([loss, right, count, count])
        real = mark_labels(labels)
        if "label_flags" in flat.labels:
            classes = real.view(logits.shape)[:, 0]
            sums = flag_losses(logits, labels), mark_all_correct(logits, labels) * classes, real, classes
        else:
            sums = squared_errors(logits, labels.float()), real * 0.0, real, real * 0.0
        return torch.stack([x.double().sum() for x in sums])

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return the loss, and for classes label_accuracy: the share of correct classes, from 0 to 1. A sequence with
        several labels is correct if all its labels are, at a threshold of 0.5."""
        loss = sums["label_loss"] / max(1.0, sums["labels"])
        losses = {"loss": loss, "label_loss": loss}
        return {**losses, "label_accuracy": sums["right"] / sums["classes"]} if sums["classes"] else losses

    def predict(self, model: Any, tokens: Tokens, starts: Tensor, count: int) -> Tensor:
        return model(tokens, starts)

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        return [(of_one,) for of_one in logits]


def _label_column(columns: Mapping[str, Any]) -> str:
    return next(name for name in ("class_labels", "label_flags", "targets") if name in columns)


HEAD = SequenceClassification()
