"""Losses of one micro-batch, weighted so that those of an update add up to its mean.

Sums run over real labels only, in fp32, and are divided by the count of labels in the whole update: how
the update is cut into micro-batches does not matter.
"""

from __future__ import annotations

from typing import Dict, Tuple

from torch import Tensor
from torch.nn.functional import cross_entropy

from ipu_model.models.flat import FlatBatch, per_sequence
from ipu_model.models.masked_tokens import masked_token_loss
from ipu_model.rows.format import IGNORED
from ipu_model.rows.reading import Batch

LOSS_PARTS = {
    "pretraining": ("mlm_loss", "nsp_loss"),
    "question_answering": ("start_loss", "end_loss"),
    "sequence_classification": ("label_loss",),
}


def label_counts(batch: Batch, head: str) -> Dict[str, int]:
    """Labels of the whole update by part of the loss; at least 1, so that no labels means loss 0."""
    columns = {
        "pretraining": {"mlm_loss": "masked_labels", "nsp_loss": "next_sentence_labels"},
        "question_answering": {"start_loss": "start_positions", "end_loss": "end_positions"},
        "sequence_classification": {"label_loss": label_column(batch)},
    }[head]
    return {part: max(1, batch.labels(column)) for part, column in columns.items()}


def label_column(batch: Batch) -> str:
    """The column of the labels of whole sequences: of classes, or of the values of a regression."""
    return "class_labels" if "class_labels" in batch.columns else "targets"


def pretraining_loss(
    outputs: Dict[str, Tensor], decoder: Tuple[Tensor, Tensor], flat: FlatBatch, counts: Dict[str, int]
) -> Tuple[Tensor, Dict[str, Tensor]]:
    """MLM + NSP, as BertForPreTraining adds them.

    Args:
        outputs, decoder: Of modeling.BertForPreTraining.

    Returns:
        The share of this micro-batch in the loss of the update, and in its two parts.
    """
    parts = {
        "mlm_loss": masked_token_loss(outputs["masked_hidden"], *decoder, flat.labels["masked_labels"])
        / counts["mlm_loss"],
        "nsp_loss": _sum(outputs["next_sentence_logits"], flat.labels["next_sentence_labels"]) / counts["nsp_loss"],
    }
    return parts["mlm_loss"] + parts["nsp_loss"], parts


def answer_loss(logits: Tensor, flat: FlatBatch, counts: Dict[str, int]) -> Tuple[Tensor, Dict[str, Tensor]]:
    """(start + end) / 2, as BertForQuestionAnswering on samples without padding.

    Args:
        logits: [T, 2] of the flat tokens.
    """
    tokens = per_sequence(logits.float(), flat.starts, flat.lengths)  # [N, longest, 2]
    parts = {
        "start_loss": _sum(tokens[..., 0], flat.labels["start_labels"]) / counts["start_loss"],
        "end_loss": _sum(tokens[..., 1], flat.labels["end_labels"]) / counts["end_loss"],
    }
    return (parts["start_loss"] + parts["end_loss"]) / 2, parts


def label_loss(logits: Tensor, flat: FlatBatch, counts: Dict[str, int]) -> Tuple[Tensor, Dict[str, Tensor]]:
    """Cross-entropy of classes, or squared error of values, as BertForSequenceClassification computes them.

    Args:
        logits: [N, C]; C = 1 for a regression.
    """
    if "class_labels" in flat.labels:
        total = _sum(logits, flat.labels["class_labels"])
    else:
        targets = flat.labels["targets"].float()
        total = ((logits[:, 0].float() - targets).square() * (targets != IGNORED)).sum()
    parts = {"label_loss": total / counts["label_loss"]}
    return parts["label_loss"], parts


def _sum(logits: Tensor, labels: Tensor) -> Tensor:
    if len(labels) == 0:
        return logits.sum() * 0.0
    return cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
