"""Question answering head: start and end logits of every token, for answers that are spans of the context.

Legend: T tokens of all sequences concatenated, N sequences; B rows of a micro-batch, L row length.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ipu_model.ipu.device_model import (
    MASKED,
    DeviceModel,
    drop_out,
    label_losses,
    mark_correct,
    mark_labels,
    split_by_sequence,
    sum_by_row,
    teacher_losses,
)
from ipu_model.models.config import ModelConfig
from ipu_model.models.flat import FlatBatch, FlatIndex, pad_logits, split_sequences, to_tensor
from ipu_model.models.head import TEACHER_LOSS, Head, Losses, TokenLogits, sum_loss
from ipu_model.rows.format import IGNORED
from ipu_model.rows.row_folder import Batch


class QuestionAnsweringOnIpu(DeviceModel):
    """Losses of one micro-batch, evaluation sums without label weights, or logits without labels."""

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        sequence_ids: Tensor,
        start_positions: Optional[Tensor] = None,
        end_positions: Optional[Tensor] = None,
        label_weights: Optional[Tensor] = None,
        teacher_start_logits: Optional[Tensor] = None,
        teacher_end_logits: Optional[Tensor] = None,
    ) -> Any:
        """Compute `finish`; without weights, Head.sums of every row, [B, 4] fp32; without labels, start and end logits
        [B, L, 2] fp32.

        All inputs [B, width] int32, the columns of the rows; label_weights [B, 2] fp32, see ipu/host_calls.py; the
        teacher's logits [B, L] fp32.
        """
        training = label_weights is not None
        hidden = self.encode(input_ids, token_type_ids, position_ids, sequence_ids, dropping=training)
        with self.ops.block("heads", self.layout.placement.heads):
            hidden = self.transform(hidden)
            logits = self.bert_model.qa_outputs(drop_out(hidden, self.bert_model.dropout, training))
            if start_positions is None or end_positions is None:
                return logits.float()
            slots = start_positions.shape[1]
            starts, ends = (split_by_sequence(logits[..., part], sequence_ids, slots) for part in (0, 1))
            start, end = label_losses(starts, start_positions), label_losses(ends, end_positions)
            if label_weights is None:
                both = mark_correct(starts, start_positions) * mark_correct(ends, end_positions)
                return sum_by_row(start, end, both, mark_labels(start_positions))
            start, end = (start * label_weights[:, :1]).sum(), (end * label_weights[:, 1:]).sum()
            parts, setting = [start, end], self.distillation
            if setting is not None and teacher_start_logits is not None and teacher_end_logits is not None:
                taught_by = [
                    split_by_sequence(x, sequence_ids, slots) for x in (teacher_start_logits, teacher_end_logits)
                ]
                named = zip((starts, ends), taught_by, (start_positions, end_positions))
                losses = [teacher_losses(x, y, setting.temperature) * mark_labels(z) for x, y, z in named]
                taught = (losses[0] * label_weights[:, :1]).sum() + (losses[1] * label_weights[:, 1:]).sum()
                parts.append(taught / 2)
            return self.finish((start + end) / 2, *parts)


class QuestionAnswering(Head):
    """Head with the loss (start + end) / 2, as BertForQuestionAnswering computes it on samples without padding."""

    suffix = "ForQuestionAnswering"
    weight = "qa_outputs.weight"
    parts = ("start_loss", "end_loss")
    divisor = 2
    sums = ("start_loss", "end_loss", "spans_right", "windows")
    best = "span_accuracy"
    logits = ("start_logits", "end_logits")
    title = "question answering head"
    stage = "qa_head"
    pooler = False
    on_ipu = QuestionAnsweringOnIpu

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return TokenLogits(config, "qa_outputs", 2, config.span_dropout)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"start_loss": "start_positions", "end_loss": "end_positions"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return start_labels [N] and end_labels [N] relative to their sequence, -100 = none, and the teacher's logits
        [T]."""
        length = places.columns["input_ids"].shape[1]
        labels = places.teacher_logits(self.teacher_columns, lambda name: places.per_token(name, 0))
        for name, column in (("start_labels", "start_positions"), ("end_labels", "end_positions")):
            absolute = places.per_sequence(column).astype(np.int64)
            inside = absolute - (places.first - places.row * length)
            labels[name] = to_tensor(np.where(absolute == IGNORED, IGNORED, inside))
        return labels

    def losses(self, model: Any, flat: FlatBatch, counts: Mapping[str, float], temperature: Optional[float]) -> Losses:
        tokens = pad_logits(model(flat.tokens).float(), flat.starts, flat.lengths)  # [N, longest, 2]
        parts = {
            "start_loss": sum_loss(tokens[..., 0], flat.labels["start_labels"]) / counts["start_loss"],
            "end_loss": sum_loss(tokens[..., 1], flat.labels["end_labels"]) / counts["end_loss"],
        }
        if temperature is None:
            return parts
        stacked = torch.stack([flat.labels[name] for name in self.teacher_columns], -1)
        teacher = pad_logits(stacked, flat.starts, flat.lengths)
        shares = []
        for part, name in enumerate(("start", "end")):  # -inf after a sequence would give NaN
            ours, theirs = (x[..., part].clamp(min=MASKED) for x in (tokens, teacher))
            taught = teacher_losses(ours, theirs, temperature) * mark_labels(flat.labels[f"{name}_labels"])
            shares.append(taught.sum() / counts[f"{name}_loss"])
        return {**parts, TEACHER_LOSS: (shares[0] + shares[1]) / 2}

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        tokens = pad_logits(model(flat.tokens).float(), flat.starts, flat.lengths)  # [N, longest, 2]
        sums, correct = [], torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
        for index, name in enumerate(("start_labels", "end_labels")):
            labels, logits = flat.labels[name], tokens[..., index]
            sums.append(cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double().sum())
            correct &= (logits.argmax(1) == labels) & (labels != IGNORED)
        windows = (flat.labels["start_labels"] != IGNORED).sum()
        return torch.stack([*sums, correct.sum().double(), windows.double()])

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return losses, and span_accuracy: the share, 0 to 1, of windows whose most probable start and end both equal
        the labels (in a window without the answer: [CLS])."""
        windows = max(1.0, sums["windows"])
        start, end = sums["start_loss"] / windows, sums["end_loss"] / windows
        return {
            "loss": (start + end) / 2,
            "start_loss": start,
            "end_loss": end,
            "span_accuracy": sums["spans_right"] / windows,
        }

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        """Return the start and end logits of the tokens of each sequence."""
        starts, ends = (split_sequences(np.ascontiguousarray(logits[:, i]), lengths) for i in (0, 1))
        return list(zip(starts, ends))


HEAD = QuestionAnswering()
