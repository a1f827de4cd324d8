"""Masked language modelling (MLM) head: pre-training without next sentence prediction, as RoBERTa's.

Legend: B rows of a micro-batch, P maximum masked positions per row.
"""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor

from ipu_model.ipu.device_model import (
    DeviceModel,
    label_losses,
    mark_correct,
    mark_labels,
    select_positions,
    sum_by_row,
)
from ipu_model.models.masked_lm import MaskedLmHead


class MaskedLmOnIpu(DeviceModel):
    """MLM loss of one micro-batch, or evaluation sums without label weights."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        sequence_ids: Tensor,
        masked_positions: Tensor,
        masked_labels: Tensor,
        label_weights: Optional[Tensor] = None,
    ) -> Any:
        """Compute loss and mlm_loss, fp32 scalars; without weights, Head.sums of every row, [B, 3] fp32.

        All inputs [B, width] int32, the columns of the rows; label_weights [B, 1] fp32, see ipu/host_calls.py.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        with self.ops.block("heads", self.layout.placement.heads):
            words = self.vocabulary_logits(select_positions(hidden, masked_positions))
            mlm = label_losses(words, masked_labels)
            if label_weights is None:
                return sum_by_row(mlm, mark_correct(words, masked_labels), mark_labels(masked_labels))
            mlm = (mlm * label_weights).sum()
            return self.ops.final_loss(mlm), mlm


class MaskedLm(MaskedLmHead):
    """Head with the MLM loss alone, as in BertForMaskedLM and RobertaForMaskedLM."""

    pretrains = True
    suffix = "ForMaskedLM"
    weight = "cls.predictions.bias"
    title = "MLM head"
    stage = "mlm_head"
    pooler = False
    tied = True
    inputs = ("masked_positions",)
    on_ipu = MaskedLmOnIpu


HEAD = MaskedLm()
