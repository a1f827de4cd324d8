"""Encoder as an IPU executes it: fixed shapes, whole rows, one block per layer.

Legend: B rows of a micro-batch, L row length, S sequences per row at most, P masked positions per row at
most, H hidden size, A heads, D = H / A, V vocabulary size.

The modules and the names of their parameters are those of the heads (ipu_model/heads); only the computation differs.
PopTorch traces `forward` once, so the placement and the config fix every shape and every Python branch. Operations are
those that the PopTorch user guide lists in "IPU supported operations". Device features (blocks, recomputation,
serialised products) are passed in as `DeviceOps`, so that the same code runs and is tested without PopTorch, which this
module does not import.

The word table can be cut into pieces: each is a parameter of its own in training, and files have one table.

The gradient of a look-up has the size of the parameter. Slices of one parameter would save nothing: PopART pads the
gradient of each slice back to [V, H] (SliceGradOp in popart/op/slice.hpp is a pad) and adds up the padded ones, for
every micro-batch; 62.5 MB each for BERT large in fp16. Separate parameters have gradients and accumulators of their own
size, V / pieces x H. Optimum Graphcore cuts its table in the same way (SerializedEmbedding).

LAMB needs the whole table, unlike in Optimum: its trust ratio is the norm of the table over the norm of its update.
PopART computes both norms for each variable (willow/src/patterns/adamdecompose.cpp) and adds up those of pieces only
where they are slices of one variable (lambserialisedweight.cpp), so each piece would have its own ratio. With LAMB, and
with the decoder tied to the table, the table is one parameter with one look-up: one gradient of [V, H].
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ipu_model.core.errors import CheckpointError
from ipu_model.ipu.placement import DeviceLayout
from ipu_model.models.config import Distillation
from ipu_model.models.encoder import Embeddings, Residual, SelfAttention, shift_positions
from ipu_model.models.rotary import RotaryLayer, find_turns, gate, rotate
from ipu_model.rows.format import IGNORED

MASKED = -10000.0
"""Added to scores that a token may not see. exp(-10000) is 0 in fp16 and fp32, and the number is well inside the range
of fp16. The smallest fp16 number is not: two of them add up to -inf, and a row of -inf becomes NaN."""

TABLE = "bert.embeddings.word_embeddings"
_WHOLE = re.compile(rf"(.*{re.escape(TABLE)})\.weight")
_PIECE = re.compile(rf"(.*{re.escape(TABLE)})\.pieces\.(\d+)")


@dataclass(frozen=True)
class DeviceOps:
    """PopTorch's additions to torch; the defaults compute the same numbers on any device."""

    block: Callable[[str, int], ContextManager[Any]] = lambda name, ipu: contextlib.nullcontext()
    """(name, IPU): everything inside is computed on that IPU."""
    outline: Callable[[str], ContextManager[Any]] = lambda name: contextlib.nullcontext()
    """Operations with another name here are never compiled into shared code."""
    checkpoint: Callable[[Tensor], Tensor] = lambda x: x
    """Keep this activation; everything between two of them is recomputed in the backward pass."""
    serial_matmul: Callable[[Tensor, Tensor, int], Tensor] = lambda x, y, factor: x @ y
    """(x, y, factor): x @ y in `factor` pieces over the columns of y, to bound temporary memory."""
    final_loss: Callable[[Tensor], Tensor] = lambda x: x
    """Marks the loss that gradients are taken of."""


def poptorch_ops(poptorch: Any) -> DeviceOps:
    """Return the device operations of PopTorch."""
    columns = poptorch.MatMulSerializationMode.OutputChannels
    return DeviceOps(
        block=lambda name, ipu: poptorch.Block(name, ipu_id=ipu),
        outline=lambda name: poptorch.Attribute(__outline={"layer": name}),
        checkpoint=poptorch.recomputationCheckpoint,
        serial_matmul=lambda x, y, factor: x @ y if factor == 1 else poptorch.serializedMatMul(x, y, columns, factor),
        final_loss=lambda loss: poptorch.identity_loss(loss, reduction="none"),
    )


class WordTable(nn.Module):
    """Word embeddings: a copy of a table [V, H] in pieces, whose number divides V (planning.check_serialization)."""

    def __init__(self, table: Tensor, pieces: int) -> None:
        super().__init__()
        self.size = table.shape[0] // pieces
        self.pieces = nn.ParameterList(nn.Parameter(x.detach().clone()) for x in table.split(self.size))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up [...] -> [..., H]: each piece returns its own words, and zeros for words of the others."""
        total = self._look_up(ids, self.pieces[0])
        for number in range(1, len(self.pieces)):
            total = total + self._look_up(ids - number * self.size, self.pieces[number])
        return total

    def _look_up(self, ids: Tensor, piece: Tensor) -> Tensor:
        inside = (ids >= 0).logical_and(ids < self.size)
        return functional.embedding(ids.clamp(0, self.size - 1), piece) * inside[..., None].to(piece.dtype)


class DeviceModel(nn.Module):
    """Embeddings and encoder, placed on IPUs; each head has a subclass (ipu_model/heads).

    The attribute `bert_model`, a model from `build_model`, has this name so that parameters are called
    "bert_model.<Hugging Face name>". Its word table is replaced where the layout cuts it.
    """

    def __init__(self, bert_model: nn.Module, layout: DeviceLayout, ops: DeviceOps) -> None:
        super().__init__()
        self.bert_model: Any = bert_model
        self.layout, self.ops = layout, ops
        self.distillation: Optional[Distillation] = None
        if layout.table_pieces > 1:
            bert: Any = bert_model.bert
            whole = bert.embeddings.word_embeddings.weight
            bert.embeddings.word_embeddings = WordTable(whole, layout.table_pieces)
        for module in bert_model.modules():
            if isinstance(module, nn.LayerNorm) and module.bias is None:  # PopTorch's has both
                del module.bias
                module.register_buffer("bias", torch.zeros_like(module.weight), persistent=False)

    def encode(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, sequence_ids: Tensor, dropping: bool
    ) -> Tensor:
        """Encode [B, L] each -> hidden states [B, L, H]. `dropping`: dropout is on.

        Where rows hold one sequence each, position_ids may be [1, L], for all rows.
        """
        layout, ops, bert = self.layout, self.ops, self.bert_model.bert
        with ops.block("embeddings", layout.placement.embeddings):
            hidden = self._embed(bert.embeddings, input_ids, token_type_ids, position_ids, dropping)
            hidden = bert.embeddings_project(hidden)
        masks: Dict[int, Tensor] = {}
        last_ipu = -1
        for number, layer in enumerate(bert.encoder["layer"].children()):
            ipu, window = layout.placement.layers[number], getattr(layer, "window", 0)
            with ops.block(f"layer{number}", ipu):
                if ipu != last_ipu:
                    masks, last_ipu = {}, ipu
                if window not in masks:
                    # Computed on every IPU: passing on [B, L] ids is cheaper than stashing [B, 1, L, L] per stage.
                    masks[window] = block_mask(sequence_ids, hidden.dtype, position_ids, window)
                if isinstance(layer, RotaryLayer):
                    hidden = self._rotary_layer(layer, hidden, masks[window], position_ids, dropping)
                else:
                    hidden = self._layer(layer, hidden, masks[window], dropping)
                if "LayerNorm" in bert.encoder and number + 1 == len(layout.placement.layers):
                    hidden = bert.encoder["LayerNorm"](hidden)
                if layout.recompute_checkpoint_every_layer:
                    hidden = ops.checkpoint(hidden)
        return hidden

    def _embed(self, table: Embeddings, ids: Tensor, types: Tensor, positions: Tensor, dropping: bool) -> Tensor:
        word_table: Any = table.word_embeddings
        if isinstance(word_table, WordTable):
            words = word_table(ids)
        else:  # PopTorch has no padding_idx; pads reach no loss, so their gradient is zero anyway
            words = functional.embedding(ids, word_table.weight)
        summed, typed = words, table.token_type_embeddings
        if typed is not None:
            summed = summed + functional.embedding(types, typed.weight)
        if table.position_embeddings is not None:
            positions = shift_positions(positions, table.offset)
            summed = summed + functional.embedding(positions, table.position_embeddings.weight)
        # Not outlined with the LayerNorms of the encoder: it would tie the tile layout of the pipeline's stashes.
        with self.ops.outline("embeddings"):
            summed = table.LayerNorm(summed)
        return drop_out(summed, table.dropout, dropping)

    def _layer(self, layer: Any, hidden: Tensor, mask: Tensor, dropping: bool) -> Tensor:
        def finish(half: Residual, inner: Tensor, residual: Tensor, drops: bool = dropping) -> Tensor:
            dropped = drop_out(half.dense(inner), self.layout.hidden_dropout, drops)
            return half.LayerNorm(residual + dropped)

        attention = layer.attention
        context = row_attention(attention["self"], hidden, mask, self.layout.attention_dropout, dropping)
        hidden = finish(attention["output"], context, hidden, dropping and layer.drops_attention)
        inner = functional.gelu(layer.intermediate["dense"](hidden))
        return finish(layer.output, inner, hidden)

    def _rotary_layer(
        self, layer: RotaryLayer, hidden: Tensor, mask: Tensor, positions: Tensor, dropping: bool
    ) -> Tensor:
        mixed = layer.attention["qkv"](layer.normalise(layer.attention, hidden))
        split = (*hidden.shape[:2], layer.heads, -1)
        query, key, value = (x.reshape(split) for x in mixed.split(hidden.shape[-1], dim=-1))
        turns = [x.to(hidden.dtype) for x in find_turns(positions, layer.theta, query.shape[-1])]
        query, key, value = (x.transpose(1, 2) for x in (rotate(query, *turns), rotate(key, *turns), value))
        context = attend_rows(query, key, value, mask, layer.attention_dropout, dropping)
        hidden = hidden + drop_out(layer.attention["output"].dense(context), layer.attention_dropout, dropping)
        inner = gate(layer.intermediate["dense"](layer.normalise(layer.intermediate, hidden)))
        return hidden + layer.output.dense(drop_out(inner, layer.dropout, dropping))

    def transform(self, hidden: Tensor) -> Tensor:
        """Apply the layers that every head of a model with rotary positions begins with: [B, N, H] -> [B, N, H]."""
        return self.bert_model.bert.pool(hidden) if "LayerNorm" in self.bert_model.bert.encoder else hidden

    def finish(self, loss: Tensor, *parts: Tensor) -> Tuple[Tensor, ...]:
        """Return the loss and its parts in the order of Head.parts_of, fp32 scalars; with a teacher, whose part is the
        last, the loss of the labels is mixed with it."""
        setting = self.distillation
        return (self.ops.final_loss(loss if setting is None else setting.mix(parts[-1], loss)), *parts)

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Return vocabulary logits, [B, P, H] -> [B, P, V]; the decoder is the word table, hence on the same IPU."""
        head = self.bert_model.cls["predictions"]
        if self.bert_model.transforms:
            hidden = head.transform["LayerNorm"](functional.gelu(head.transform["dense"](hidden)))
        else:
            hidden = self.transform(hidden)
        words = self.bert_model.bert.embeddings.word_embeddings.weight
        return self.ops.serial_matmul(hidden, words.t(), self.layout.projection_serialization_factor) + head.bias


def block_mask(sequence_ids: Tensor, dtype: torch.dtype, positions: Tensor, window: int) -> Tensor:
    """Return the mask [B, L] -> [B, 1, L, L] in `dtype`: 0 where a query may attend to a key, MASKED elsewhere.

    Padding attends to padding: every row of scores has a key, so that no softmax is NaN. `positions`, [B, L] or [1, L],
    are read with a window only (layers.Attention).
    """
    same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    if window:
        same = same.logical_and((positions[:, None, :, None] - positions[:, None, None, :]).abs() <= window)
    return (same.to(dtype) - 1.0) * -MASKED


def row_attention(attention: SelfAttention, hidden: Tensor, mask: Tensor, dropout: float, dropping: bool) -> Tensor:
    """Compute attention [B, L, H] -> [B, L, H], with query, key and value in one product: one larger matmul."""
    parts = (attention.query, attention.key, attention.value)
    weight, bias = torch.cat([x.weight for x in parts]), torch.cat([x.bias for x in parts])
    rows, length, width = hidden.shape
    split = (rows, length, attention.heads, width // attention.heads)
    mixed = functional.linear(hidden, weight, bias).split(width, dim=-1)
    query, key, value = (x.view(split).transpose(1, 2) for x in mixed)  # [B, A, L, D]
    return attend_rows(query, key, value, mask, dropout, dropping)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, dropping: bool) -> Tensor:
    """Compute attention [B, A, L, D] -> [B, L, H]."""
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1])) + mask
    probabilities = drop_out(scores.softmax(-1), dropout, dropping)
    rows, heads, length, size = query.shape
    return (probabilities @ value).transpose(1, 2).reshape(rows, length, heads * size)


def drop_out(x: Tensor, rate: float, dropping: bool) -> Tensor:
    """Apply dropout; with rate 0 nothing is added to the program, not even random numbers."""
    return functional.dropout(x, rate, True) if dropping and rate else x


def select_positions(hidden: Tensor, positions: Tensor) -> Tensor:
    """Select positions [B, L, H], [B, N] -> [B, N, H] by a product with one-hot rows: faster on an IPU than a gather.

    A position of -1 (no such sequence) gives zeros.
    """
    indices = torch.arange(hidden.shape[1], dtype=positions.dtype, device=positions.device)
    return (positions[:, :, None] == indices[None, None, :]).to(hidden.dtype) @ hidden


def average_sequences(hidden: Tensor, sequence_ids: Tensor, slots: int) -> Tensor:
    """Average the tokens of each sequence, [B, L, H] -> [B, S, H]; a sequence that does not exist gives zeros."""
    numbers = torch.arange(1, slots + 1, dtype=sequence_ids.dtype, device=sequence_ids.device)
    inside = (sequence_ids[:, None, :] == numbers[None, :, None]).float()
    shares = inside / inside.sum(-1, keepdim=True).clamp(min=1.0)
    return shares.to(hidden.dtype) @ hidden


def split_by_sequence(logits: Tensor, sequence_ids: Tensor, slots: int) -> Tensor:
    """Split logits of rows [B, L] -> [B, S, L], MASKED outside each sequence: an exact softmax over its tokens."""
    numbers = torch.arange(1, slots + 1, dtype=sequence_ids.dtype, device=sequence_ids.device)
    inside = (sequence_ids[:, None, :] == numbers[None, :, None]).to(logits.dtype)
    return logits[:, None, :] * inside + (inside - 1.0) * -MASKED


def label_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of every label, [B, N, C], [B, N] int32 -> [B, N] fp32, 0 where there is none (-100)."""
    losses = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten().long(), ignore_index=IGNORED, reduction="none"
    )
    return losses.float().view(labels.shape)


def teacher_losses(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student) of softmaxes at temperature T over the last dimension: [..., C] -> [...] fp32.

    Logits of MASKED or below have probability 0.
    """
    ours, theirs = (torch.log_softmax(x.float() / temperature, -1) for x in (logits, teacher))
    return (theirs.exp() * (theirs - ours)).sum(-1) * temperature**2


def squared_errors(values: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of every target, [B, N, 1], [B, N] fp32 -> [B, N] fp32, 0 where there is none (-100)."""
    errors = (values[..., 0].float() - targets) * mark_labels(targets)
    return errors * errors


def flag_losses(logits: Tensor, flags: Tensor) -> Tensor:
    """Return the binary cross-entropy of every flag, [..., C], [B, N * C] or [N * C] -> the shape of `flags`.

    A flag is 1, 0, or -100 = none, whose loss is 0.
    """
    logits, targets = logits.float().view(flags.shape), (flags == 1).float()
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none") * mark_labels(flags)


def mark_all_correct(logits: Tensor, flags: Tensor) -> Tensor:
    """Return 1 where all flags are as predicted at a threshold of 0.5, else 0: [..., C] -> [...] fp32."""
    right = ((logits.float() > 0).float() == (flags == 1).float().view(logits.shape)).float()
    return (right.sum(-1) == logits.shape[-1]).float()


def mark_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where the most probable class is the label, else 0: [B, N, C], [B, N] -> [B, N] fp32."""
    return (logits.argmax(-1).to(labels.dtype) == labels).float()


def mark_labels(labels: Tensor) -> Tensor:
    """Return 1 where there is a label, else 0: [B, N] -> [B, N] fp32."""
    return (labels != IGNORED).float()


def sum_by_row(*figures: Tensor) -> Tensor:
    """Sum [B, N] fp32 each -> [B, figures]; evaluation returns these instead of logits, which are large."""
    return torch.cat([x.sum(1, keepdim=True) for x in figures], 1)


def join_pieces(tensors: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """Join the pieces of the word table, in weights or optimizer state by name, under the name of the table.

    Rows are concatenated; a single number (the step count) is the same for all pieces. Any other tensor is a shard in
    PopART's own layout and stays with its piece.
    """
    joined: Dict[str, Tensor] = {}
    pieces: Dict[str, Dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _PIECE.fullmatch(name)
        if match is not None and (tensor.dim() == 2 or tensor.numel() == 1):
            pieces.setdefault(f"{match.group(1)}.weight", {})[int(match.group(2))] = tensor
        else:
            joined[name] = tensor
    for name, parts in pieces.items():
        joined[name] = torch.cat([parts[number] for number in sorted(parts)]) if parts[0].dim() == 2 else parts[0]
    return joined


def cut_table(tensors: Mapping[str, Tensor], pieces: int) -> Dict[str, Tensor]:
    """Cut the word table into pieces (1: one parameter): the inverse of join_pieces, for any earlier number of pieces.

    Raises:
        CheckpointError: the state is in PopART's own layout, for a table in another number of pieces.
    """
    cut: Dict[str, Tensor] = {}
    before = 1 + max((int(match.group(2)) for match in map(_PIECE.fullmatch, tensors) if match), default=0)
    for name, tensor in tensors.items():
        match, of_piece = _WHOLE.fullmatch(name), _PIECE.fullmatch(name) is not None
        shards = tensor.dim() != 2 and tensor.numel() != 1
        if before != pieces and (of_piece or (match and shards)):
            raise CheckpointError(
                f"{name} of shape {list(tensor.shape)} is in PopART's own layout, for a word table in {before} "
                f"pieces; this job has {pieces}: continue with embedding_serialization_factor {before}, or start a "
                "new training from the weights"
            )
        if match is None or pieces == 1:
            cut[name] = tensor
            continue
        parts = tensor.chunk(pieces) if tensor.dim() == 2 else [tensor] * pieces
        cut.update((f"{match.group(1)}.pieces.{number}", part) for number, part in enumerate(parts))
    return cut
