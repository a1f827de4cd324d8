"""Matrix products in low precision, weights and their updates in fp32."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ipu_model.models.encoder import Dense
from ipu_model.models.masked_tokens import PredictionHead

WORDS = "bert.embeddings.word_embeddings.weight"


class LowPrecisionCopies:
    """Copies of all matrices of a model that products use instead of the fp32 weights.

    torch.autocast makes such copies in every forward pass and turns every gradient back into fp32; these are
    made once per update. LayerNorms, biases and the lookup in the embedding tables stay in fp32.

    Args:
        model: From modeling.build_model, its weights in fp32 or wider.
        dtype: bfloat16; None makes no copies, and products use the weights.
    """

    def __init__(self, model: nn.Module, dtype: Optional[torch.dtype]) -> None:
        self.pairs: List[Tuple[Tensor, Tensor]] = []
        """(weight, copy)."""
        if dtype is None:
            return
        for module in model.modules():
            if isinstance(module, Dense):
                module.copy = self._add(module.weight, dtype)
        for module in model.modules():
            if isinstance(module, PredictionHead):
                module.words_copy = self._add(model.get_parameter(WORDS), dtype)

    def _add(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        copy = weight.detach().to(dtype).requires_grad_()
        self.pairs.append((weight, copy))
        return copy

    @property
    def of_weights(self) -> Dict[Tensor, Tensor]:
        """Weight -> its copy."""
        return dict(self.pairs)

    def zero_grad(self) -> None:
        """Forget the gradients of the copies."""
        for _, copy in self.pairs:
            copy.grad = None

    def collect_gradients(self) -> None:
        """Add what the copies gathered to the gradients of the weights, in fp32; after every micro-batch."""
        for weight, copy in self.pairs:
            if copy.grad is not None:
                weight.grad = copy.grad.to(weight.dtype) if weight.grad is None else weight.grad.add_(copy.grad)
                copy.grad = None

    def gradients(self, parameters: Iterable[Tensor]) -> List[Tensor]:
        """The gradients of the model, each once: of a weight or of its copy; where both have one, they are added."""
        for weight, copy in self.pairs:
            if weight.grad is not None and copy.grad is not None:  # the word table: looked up, and the decoder
                weight.grad.add_(copy.grad)
                copy.grad = None
        every = (*parameters, *(copy for _, copy in self.pairs))
        return [x.grad for x in every if x.grad is not None]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew; after every change of them."""
        for weight, copy in self.pairs:
            copy.copy_(weight)
