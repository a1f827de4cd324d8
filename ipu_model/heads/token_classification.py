"""Token classification head, for named entities or parts of speech.

Legend: T tokens of all sequences concatenated, N sequences, C classes; B rows of a micro-batch, L row length.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
from torch import Tensor, nn

from ipu_model.ipu.device_model import (
    DeviceModel,
    drop_out,
    label_losses,
    mark_correct,
    mark_labels,
    sum_by_row,
    teacher_losses,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.flat import FlatBatch, FlatIndex, split_sequences, to_tensor
from ipu_model.models.head import TEACHER_LOSS, Head, Losses, TokenLogits, evaluate_logits, sum_loss
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch


class TokenClassificationOnIpu(DeviceModel):
    """Loss of one micro-batch, evaluation sums without label weights, or logits without labels."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        sequence_ids: Tensor,
        labels: Optional[Tensor] = None,
        label_weights: Optional[Tensor] = None,
        teacher_logits: Optional[Tensor] = None,
    ) -> Any:
        """Compute `finish`; without weights, Head.sums of every row, [B, 3] fp32; without labels, logits [B, L, C].

        All inputs [B, width] int32, the columns of the rows; label_weights [B, 1] fp32, see ipu/host_calls.py;
        teacher_logits [B, L * C] fp32. Logits are fp32.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        with self.ops.block("heads", self.layout.placement.heads):
            hidden = self.transform(hidden)
            logits = self.bert_model.classifier(drop_out(hidden, self.bert_model.dropout, training))
            if labels is None:
                return logits.float()
            losses = label_losses(logits, labels)
            if label_weights is None:
                return sum_by_row(losses, mark_correct(logits, labels), mark_labels(labels))
            taught, loss = [], (losses * label_weights).sum()
            if self.distillation is not None and teacher_logits is not None:
                each = teacher_losses(logits, teacher_logits.view(logits.shape), self.distillation.temperature)
                taught = [(each * mark_labels(labels) * label_weights).sum()]
            return self.finish(loss, loss, *taught)


class TokenClassification(Head):
    """Head with cross-entropy over the labelled tokens, as in BertForTokenClassification."""

    labelled = True
    suffix = "ForTokenClassification"
    weight = "classifier.weight"
    parts = ("label_loss",)
    sums = ("label_loss", "right", "labels")
    best = "token_accuracy"
    logits = ("logits",)
    title = "token classification head"
    stage = "token_head"
    pooler = False
    on_ipu = TokenClassificationOnIpu

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        dropout = config.hidden_dropout if config.token_dropout is None else config.token_dropout
        return TokenLogits(config, "classifier", labels, dropout)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"label_loss": "token_labels"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return token_labels [T], -100 = none, and teacher_logits [T * C]."""
        taught = places.teacher_logits(self.teacher_columns, lambda name: places.per_token(name, 0))
        return {"token_labels": to_tensor(places.per_token("token_labels", IGNORED)), **taught}

    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        logits, labels = model(flat.tokens), flat.labels["token_labels"]
        parts = {"label_loss": sum_loss(logits, labels) / counts["label_loss"]}
        if temperature is not None:
            teacher = flat.labels["teacher_logits"].view(logits.shape)
            taught = (teacher_losses(logits, teacher, temperature) * mark_labels(labels)).sum()
            parts[TEACHER_LOSS] = taught / counts["label_loss"]
        return parts

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        return evaluate_logits(model(flat.tokens).float(), flat.labels["token_labels"])

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return the loss, and token_accuracy: the share, 0 to 1, of labelled tokens with the correct class."""
        labels = max(1.0, sums["labels"])
        loss = sums["label_loss"] / labels
        return {"loss": loss, "label_loss": loss, "token_accuracy": sums["right"] / labels}

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        """Return the logits of each sequence, [tokens * C]: those of the first token, then of the second, and so on."""
        return [(part.reshape(-1),) for part in split_sequences(logits, lengths)]


HEAD = TokenClassification()
