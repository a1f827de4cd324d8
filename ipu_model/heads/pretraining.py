"""Pre-training head of BERT: masked language modelling (MLM) and next sentence prediction (NSP).

Legend: H hidden size, N sequences; B rows of a micro-batch, S maximum sequences per row.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from ipu_model.ipu.device_model import (
    DeviceModel,
    label_losses,
    mark_correct,
    mark_labels,
    select_positions,
    sum_by_row,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.flat import FlatIndex, to_tensor
from ipu_model.models.head import evaluate_logits, sum_loss
from ipu_model.models.masked_lm import BertForMaskedLM, MaskedLmHead
from ipu_model.rows.row_folder import Batch


class PretrainingOnIpu(DeviceModel):
    """MLM and NSP losses of one micro-batch, or evaluation sums without label weights."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        sequence_ids: Tensor,
        cls_positions: Tensor,
        masked_positions: Tensor,
        masked_labels: Tensor,
        next_sentence_labels: Tensor,
        label_weights: Optional[Tensor] = None,
    ) -> Any:
        """Compute loss, mlm_loss and nsp_loss, fp32 scalars; without weights, Head.sums of every row, [B, 6] fp32.

        All inputs [B, width] int32, the columns of the rows; label_weights [B, 2] fp32, see ipu/host_calls.py.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        placement, model = self.layout.placement, self.bert_model
        assert placement.pooler is not None  # of a pretraining placement
        with self.ops.block("pooler", placement.pooler):
            pooled = model.bert.pool(select_positions(hidden, cls_positions))  # [B, S, H]
        with self.ops.block("heads", placement.heads):
            words = self.vocabulary_logits(select_positions(hidden, masked_positions))
            following = model.cls["seq_relationship"](pooled)
            mlm, nsp = label_losses(words, masked_labels), label_losses(following, next_sentence_labels)
            if label_weights is None:
                masked = (mlm, mark_correct(words, masked_labels), mark_labels(masked_labels))
                return sum_by_row(
                    *masked, nsp, mark_correct(following, next_sentence_labels), mark_labels(next_sentence_labels)
                )
            mlm, nsp = (mlm * label_weights[:, :1]).sum(), (nsp * label_weights[:, 1:]).sum()
            return self.ops.final_loss(mlm + nsp), mlm, nsp


class Pretraining(MaskedLmHead):
    """Head with the sum of MLM and NSP losses, as in BertForPreTraining."""

    pretrains = True
    suffix = "ForPreTraining"
    weight = "cls.seq_relationship.weight"
    parts = (*MaskedLmHead.parts, "nsp_loss")
    sums = (*MaskedLmHead.sums, "nsp_loss", "nsp_right", "nsp_labels")
    title = "MLM and NSP heads"
    stage = "heads"
    pooler = True
    tied = True
    inputs = ("cls_positions", "masked_positions")
    on_ipu = PretrainingOnIpu

    def row_kinds(self, labels: int) -> Tuple[str, ...]:
        return ("pretrain",)

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return BertForMaskedLM(config, next_sentence=True)

    def is_new(self, missing: Sequence[str]) -> bool:
        return any(name.startswith("cls.predictions.") for name in missing)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {**super().label_columns(batch), "nsp_loss": "next_sentence_labels"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return the labels of masked tokens, and next_sentence_labels [N]."""
        labels = super().flat_labels(places)
        return {**labels, "next_sentence_labels": to_tensor(places.per_sequence("next_sentence_labels"))}

    def sum_losses(self, model: Any, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Dict[str, Tensor]:
        losses = super().sum_losses(model, outputs, labels)
        return {**losses, "nsp_loss": sum_loss(outputs["next_sentence_logits"], labels["next_sentence_labels"])}

    def evaluate(self, model: Any, outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> List[Tensor]:
        following = evaluate_logits(outputs["next_sentence_logits"].float(), labels["next_sentence_labels"])
        return [*super().evaluate(model, outputs, labels), following]

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return also loss and accuracy of the next sentences; `loss` is the sum of both losses."""
        masked, labels = super().figures(sums), max(1.0, sums["nsp_labels"])
        loss = sums["nsp_loss"] / labels
        return {
            **masked,
            "loss": masked["mlm_loss"] + loss,
            "nsp_loss": loss,
            "nsp_accuracy": sums["nsp_right"] / labels,
        }


HEAD = Pretraining()
