"""The word table in pieces: one parameter for each where a device trains it, one table wherever it is written down.

A look-up's gradient has the size of what was looked up in. Slices of one parameter would bound nothing: PopART pads the
gradient of each slice back to all [V, H] (SliceGradOp in popart/op/slice.hpp is a pad) and adds the padded ones up,
for every micro-batch; 62.5 MB each for BERT large in fp16. Parameters of their own have gradients and accumulators of
their own size, V / pieces x H. Optimum Graphcore cuts its table in the same way (SerializedEmbedding).

LAMB needs the table whole, in which we depart from Optimum: its trust ratio is the norm of the table over that of its
update. PopART takes both norms of each variable (willow/src/patterns/adamdecompose.cpp) and adds up those of pieces
only where they are slices of one variable (lambserialisedweight.cpp), so pieces would each have a ratio of their own.
There, and with the decoder tied to the table, it is one parameter and looked up at once: one gradient of [V, H].
"""

from __future__ import annotations

import re
from typing import Dict, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from ipu_model.errors import CheckpointError

TABLE = "bert.embeddings.word_embeddings"
_WHOLE = re.compile(rf"(.*{re.escape(TABLE)})\.weight")
_PIECE = re.compile(rf"(.*{re.escape(TABLE)})\.pieces\.(\d+)")


class WordTable(nn.Module):
    """Word embeddings in equal pieces.

    Args:
        table: [V, H]; copied.
        pieces: How many; divides V (checks.check_serialization).
    """

    def __init__(self, table: Tensor, pieces: int) -> None:
        super().__init__()
        self.size = table.shape[0] // pieces
        self.pieces = nn.ParameterList(nn.Parameter(x.detach().clone()) for x in table.split(self.size))

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., H]: each piece gives its own words, and zeros for those of the others."""
        total = self._look_up(ids, self.pieces[0])
        for number in range(1, len(self.pieces)):
            total = total + self._look_up(ids - number * self.size, self.pieces[number])
        return total

    def _look_up(self, ids: Tensor, piece: Tensor) -> Tensor:
        here = (ids >= 0).logical_and(ids < self.size)
        return functional.embedding(ids.clamp(0, self.size - 1), piece) * here[..., None].to(piece.dtype)


def join_pieces(tensors: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """Weights or optimizer state by name, with that of the pieces put together under the name of the table.

    Rows are put one after the other; what is a single number (the step count) is the same for all pieces. Anything
    else would be shards in a layout of PopART's own, and stays with its piece.
    """
    joined: Dict[str, Tensor] = {}
    found: Dict[str, Dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _PIECE.fullmatch(name)
        if match is not None and (tensor.dim() == 2 or tensor.numel() == 1):
            found.setdefault(f"{match.group(1)}.weight", {})[int(match.group(2))] = tensor
        else:
            joined[name] = tensor
    for name, parts in found.items():
        joined[name] = torch.cat([parts[number] for number in sorted(parts)]) if parts[0].dim() == 2 else parts[0]
    return joined


def cut_table(tensors: Mapping[str, Tensor], pieces: int) -> Dict[str, Tensor]:
    """The inverse of join_pieces, whatever number of pieces the tensors were joined from.

    Args:
        pieces: Of the device model; 1 = the table is one parameter there.

    Raises:
        CheckpointError: state in PopART's own layout, of a table in another number of pieces.
    """
    cut: Dict[str, Tensor] = {}
    before = 1 + max((int(match.group(2)) for match in map(_PIECE.fullmatch, tensors) if match), default=0)
    for name, tensor in tensors.items():
        match, of_piece = _WHOLE.fullmatch(name), _PIECE.fullmatch(name) is not None
        shards = tensor.dim() != 2 and tensor.numel() != 1
        if before != pieces and (of_piece or (match and shards)):
            raise CheckpointError(
                f"{name} of shape {list(tensor.shape)} is in a layout of PopART's own, of a word table in {before} "
                f"pieces, here it has {pieces}: go on with embedding_serialization_factor {before}, or start anew "
                "from the weights"
            )
        if match is None or pieces == 1:
            cut[name] = tensor
            continue
        parts = tensor.chunk(pieces) if tensor.dim() == 2 else [tensor] * pieces
        cut.update((f"{match.group(1)}.pieces.{number}", part) for number, part in enumerate(parts))
    return cut
