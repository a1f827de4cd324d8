"""Encoder of transformers with pooling inside, as sentence-transformers computes it."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ipu_model.core.files import read_json
from tasks.stage.artifacts import MODULE_FILES
from tasks.stage.errors import InputError

FIRST = "pooling_mode_cls_token"
MODES = ("pooling_mode_mean_tokens", FIRST)


class PooledEncoder(nn.Module):
    """Normalised embeddings of texts: the mean of their tokens, or their first token."""

    def __init__(self, encoder: Any, folder: Path) -> None:
        """Read the pooling of the model's folder.

        Raises:
            InputError: it has none.
        """
        super().__init__()
        path = folder / MODULE_FILES[1]
        pooling = read_json(path) if path.is_file() else {}
        modes = [name for name in MODES if pooling.get(name) is True]
        if len(modes) != 1:
            raise InputError(f"{path} does not name one pooling of {' and '.join(MODES)}. Export a fine-tuned model")
        self.encoder, self.config, self.is_first = encoder, encoder.config, modes == [FIRST]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        mask = attention_mask[:, :, None].to(tokens.dtype)
        pooled = tokens[:, 0] if self.is_first else (tokens * mask).sum(1) / mask.sum(1)
        return {"embedding": nn.functional.normalize(pooled, dim=1)}
