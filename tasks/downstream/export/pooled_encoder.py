"""Encoder of transformers with pooling inside, as sentence-transformers computes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from tasks.models.sentence_modules import read_modules
from tasks.stage.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PooledEncoder(nn.Module):
    """Normalised embeddings of texts: the mean of their tokens, or their first token."""

    def __init__(self, encoder: PreTrainedModel, folder: Path) -> None:
        """Read the pooling of the model's folder.

        Raises:
            InputError: it has none, or other modules.
        """
        super().__init__()
        pooling = read_modules(folder).get("pooling")
        if pooling is None:
            raise InputError(
                f"{folder} is an encoder without a head or a pooling. Only a fine-tuned model can be exported"
            )
        self.encoder, self.config, self.is_first = encoder, encoder.config, pooling == "first"

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        mask = attention_mask[:, :, None].to(tokens.dtype)
        pooled = tokens[:, 0] if self.is_first else (tokens * mask).sum(1) / mask.sum(1)
        return {"embedding": nn.functional.normalize(pooled, dim=1)}
