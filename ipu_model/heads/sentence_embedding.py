"""Sentence embedding head: one normalised vector per sequence, the mean of its tokens or its first token.

It is trained to rank the positive of each anchor above the other texts of the update (MultipleNegativesRankingLoss of
sentence-transformers, arXiv 1705.00652), or to order pairs by their similarity (CoSENTLoss).

Legend: N sequences, T tokens, H hidden size; P pairs of an update, C candidates: their positives, then their negatives.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ipu_model.core.errors import ConfigError
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import Bert
from ipu_model.models.flat import FlatBatch, FlatIndex, to_tensor
from ipu_model.models.head import JointHead, Losses
from ipu_model.models.layers import Tokens
from ipu_model.rows.format import ABSENT, IGNORED
from ipu_model.rows.row_folder import Batch, Columns

POOLINGS = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token"}
"""Value of the setting `pooling` -> its key in 1_Pooling/config.json of sentence-transformers."""
MODULES = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
"""Modules of sentence-transformers that compute an embedding, and their folders."""
ANCHOR, POSITIVE, NEGATIVE = range(3)


class SentenceEncoder(nn.Module):
    """Encoder alone: vectors of all tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.bert, self.width = Bert(config, pooler=False), config.hidden_size

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the vectors of the flattened tokens: [...] -> [T, H]."""
        hidden: Tensor = self.bert(tokens).flatten(0, -2)
        return hidden


class SentenceEmbedding(JointHead):
    """Head without weights of its own, with the settings `pooling` and `scale`."""

    suffix = "Model"
    weight = ""
    parts = ("ranking_loss", "equal_texts")
    sums = ("ranking_loss", "equal_texts", "right", "anchors")
    logits = ("embedding",)
    title = "pooling"
    stage = "pooling"
    pooler = False
    pooling, scale = "mean", 20.0

    def configure(self, settings: Mapping[str, Any]) -> SentenceEmbedding:
        head = copy.copy(self)
        for name, value in settings.items():
            if name not in ("pooling", "scale") or (name == "pooling" and value not in POOLINGS):
                raise ConfigError(f"head_settings.{name}={value!r} is not a setting of a {self.name} head")
            setattr(head, name, value)
        return head

    def build(self, config: ModelConfig, labels: int) -> nn.Module:
        return SentenceEncoder(config)

    def label_columns(self, batch: Batch) -> Dict[str, str]:
        return {"ranking_loss": "roles"}

    def flat_labels(self, places: FlatIndex) -> Dict[str, Tensor]:
        """Return joint_labels of the rows, and `order` [N]: their sequences, as positions in the flat batch."""
        return {**self.joint_labels(places.columns), "order": to_tensor(np.lexsort((places.slot, places.row)))}

    def joint_labels(self, columns: Columns) -> Dict[str, Tensor]:
        """Return the role, a hash of the tokens and the target [N] of every sequence."""
        row, slot = np.nonzero(columns["cls_positions"] != ABSENT)
        roles, targets = (columns[name][row, slot] for name in ("roles", "targets"))
        texts = torch.from_numpy(hash_texts(columns)[row, slot].view(np.int64))
        return {"roles": to_tensor(roles), "texts": texts, "targets": torch.from_numpy(targets.astype(np.float64))}

    def width(self, model: Any) -> int:
        return int(model.width)

    def embed(self, model: Any, flat: FlatBatch) -> Tensor:
        return self.predict(model, flat.tokens, flat.starts, flat.real_tokens)[flat.labels["order"]]

    def predict(self, model: Any, tokens: Tokens, starts: Tensor, count: int) -> Tensor:
        """Return the normalised embeddings [N, H] in fp32."""
        hidden = model(tokens)
        if self.pooling == "first":
            return normalize(hidden[starts].float(), dim=-1)
        lengths = torch.tensor(tokens.lengths, device=hidden.device)
        owners = torch.repeat_interleave(lengths, output_size=count)
        summed = torch.zeros((len(lengths), hidden.shape[1]), device=hidden.device)
        return normalize(summed.index_add(0, owners, hidden[:count].float()) / lengths[:, None], dim=-1)

    def joint_loss(self, vectors: Tensor, labels: Mapping[str, Tensor]) -> Losses:
        roles, texts = labels["roles"], labels["texts"]
        anchors, positives = vectors[roles == ANCHOR], vectors[roles == POSITIVE]
        targets = labels["targets"][roles == POSITIVE].float()
        if bool((targets != IGNORED).any()):
            loss = order_loss(self.scale * (anchors * positives).sum(1), targets)
            return {"ranking_loss": loss, "equal_texts": loss.detach() * 0}
        scores, equal = self._score(vectors, roles, texts)
        right = torch.arange(len(scores), device=scores.device)
        return {"ranking_loss": cross_entropy(scores, right), "equal_texts": equal}

    def _score(self, vectors: Tensor, roles: Tensor, texts: Tensor) -> Tuple[Tensor, Tensor]:
        """Return the scaled similarities [P, C], and how many are -inf because the candidate is not a negative: it is
        the text of the anchor, or of a positive of this anchor or an equal one."""
        parts = [roles == role for role in (ANCHOR, POSITIVE, NEGATIVE)]
        anchor, positive, negative = (texts[part] for part in parts)
        candidates = torch.cat([vectors[parts[POSITIVE]], vectors[parts[NEGATIVE]]])
        scores = self.scale * vectors[parts[ANCHOR]] @ candidates.t()
        text = torch.cat([positive, negative])
        same_anchor, same_positive = anchor == anchor[:, None], text == positive[:, None]
        equal = (text == anchor[:, None]) | (same_anchor.float() @ same_positive.float() > 0)
        equal.fill_diagonal_(False)
        return scores.masked_fill(equal, float("-inf")), equal.sum().to(scores.dtype)

    def add_up(self, model: Any, flat: FlatBatch) -> Tensor:
        vectors, labels = self.embed(model, flat), flat.labels
        loss, equal = self.joint_loss(vectors, labels).values()
        scores, _ = self._score(vectors, labels["roles"], labels["texts"])
        pairs = (labels["roles"] == ANCHOR).sum()
        right = (scores.argmax(1) == torch.arange(len(scores), device=scores.device)).sum()
        return torch.stack([x.double() for x in (loss * pairs, equal * pairs, right, pairs)])

    def figures(self, sums: Mapping[str, float]) -> Dict[str, float]:
        """Return the loss, the number of equal texts, and pair_accuracy: the share of anchors whose positive ranks
        first; each among the texts of a micro-batch."""
        pairs = max(1.0, sums["anchors"])
        loss, equal = sums["ranking_loss"] / pairs, sums["equal_texts"] / pairs
        return {"loss": loss, "ranking_loss": loss, "equal_texts": equal, "pair_accuracy": sums["right"] / pairs}

    def split(self, logits: np.ndarray, lengths: np.ndarray) -> List[Tuple[np.ndarray, ...]]:
        return [(vector,) for vector in logits]

    def further_files(self, config: ModelConfig, max_tokens: int) -> Dict[str, Any]:
        """Return the files with which sentence-transformers loads the folder."""
        kinds = [(f"sentence_transformers.models.{name}", path) for name, path in MODULES]
        modes = {key: name == self.pooling for name, key in POOLINGS.items()}
        return {
            "modules.json": [{"idx": n, "name": str(n), "path": path, "type": x} for n, (x, path) in enumerate(kinds)],
            "1_Pooling/config.json": {"word_embedding_dimension": config.hidden_size, **modes},
            "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
            "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
        }


def order_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return log(1 + sum of exp(s_i - s_j) over pairs whose target i is below target j) (CoSENT): [P], [P] -> a
    scalar."""
    apart = (scores[:, None] - scores).masked_fill(targets[:, None] >= targets, float("-inf"))
    return torch.logsumexp(torch.cat([apart.new_zeros(1), apart.reshape(-1)]), 0)


def hash_texts(columns: Columns) -> np.ndarray:
    """Return a 64-bit hash of the tokens of every sequence, uint64 [R, S]; equal texts have equal hashes."""
    ids, numbers = columns["input_ids"], columns["sequence_ids"]
    rows, slots = columns["cls_positions"].shape
    factors: np.ndarray = np.array(np.random.Philox(key=0).random_raw(ids.shape[1])) | np.uint64(1)
    terms = (ids.astype(np.uint64) + np.uint64(1)) * factors[columns["position_ids"]]
    hashes = np.zeros((rows, slots + 1), dtype=np.uint64)
    np.add.at(hashes, (np.arange(rows)[:, None], numbers), terms)
    return np.ascontiguousarray(hashes[:, 1:])


HEAD = SentenceEmbedding()
