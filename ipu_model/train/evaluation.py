"""How good a model is on rows it was not trained on: losses and accuracies, without dropout, without gradients.

Nothing here draws random numbers or changes a weight, so that a training with evaluations ends as one without. Sums
are made in fp64 over all labels, so that it does not matter how the rows are cut into batches.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ipu_model.errors import ConfigError
from ipu_model.models.flat import FlatBatch, flatten, per_sequence
from ipu_model.rows.format import IGNORED
from ipu_model.rows.reading import Batch

SUMS = {
    "pretraining": ("mlm_loss", "mlm_right", "mlm_labels", "nsp_loss", "nsp_right", "nsp_labels"),
    "question_answering": ("start_loss", "end_loss", "spans_right", "windows"),
}
"""What is added up over the rows; losses are sums over labels."""
FIGURES = {
    "pretraining": ("loss", "mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy"),
    "question_answering": ("loss", "start_loss", "end_loss", "span_accuracy"),
}
"""What is said of a model: see `figures`."""
LOGITS_AT_ONCE = 1 << 24
"""fp32 numbers, 64 MB: bound on the vocabulary logits of masked tokens."""


def add_up(
    model: Any, head: str, batches: Iterable[Batch], place: Optional[Callable[[FlatBatch], FlatBatch]] = None,
    add: Optional[Callable[[List[Tensor]], None]] = None,
) -> Dict[str, float]:  # fmt: skip
    """The sums SUMS[head] over the rows of all batches.

    Args:
        model: From modeling.build_model, on its device; comes back in evaluation mode.
        place: Brings a batch to that device; None on the host.
        add: Adds to the sums those of other processes, which have other batches; None alone.
    """
    require_head(head)
    device = next(model.parameters()).device
    total = torch.zeros(len(SUMS[head]), dtype=torch.float64, device=device)
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            flat = flatten(batch) if place is None else place(flatten(batch))
            total += _pretraining_sums(model, flat) if head == "pretraining" else _answer_sums(model, flat)
    if add is not None:
        add([total])
    return dict(zip(SUMS[head], total.tolist()))


def _pretraining_sums(model: Any, flat: FlatBatch) -> Tensor:
    outputs = model(flat.tokens, flat.labels["masked_index"], flat.starts)
    words, bias = model.decoder()
    hidden, labels = outputs["masked_hidden"], flat.labels["masked_labels"]
    at_once = max(1, LOGITS_AT_ONCE // len(words))
    masked = [
        _of_labels(torch.mm(hidden[part], words.t()).float() + bias, labels[part])
        for part in (slice(first, first + at_once) for first in range(0, len(labels), at_once))
    ]
    following = _of_labels(outputs["next_sentence_logits"].float(), flat.labels["next_sentence_labels"])
    return torch.cat([torch.stack(masked).sum(0) if masked else torch.zeros_like(following), following])


def _of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy, right predictions, and number of the real labels; [N, C], [N] -> [3] fp64."""
    real = labels != IGNORED
    losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double()
    return torch.stack([losses.sum(), ((logits.argmax(1) == labels) & real).sum().double(), real.sum().double()])


def _answer_sums(model: Any, flat: FlatBatch) -> Tensor:
    tokens = per_sequence(model(flat.tokens).float(), flat.starts, flat.lengths)  # [N, longest, 2]
    sums, right = [], torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    for place, name in enumerate(("start_labels", "end_labels")):
        labels, logits = flat.labels[name], tokens[..., place]
        sums.append(cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").double().sum())
        right &= (logits.argmax(1) == labels) & (labels != IGNORED)
    windows = (flat.labels["start_labels"] != IGNORED).sum()
    return torch.stack([*sums, right.sum().double(), windows.double()])


def figures(head: str, sums: Mapping[str, float]) -> Dict[str, float]:
    """Means over the labels: what is said of a model.

    pretraining: loss = mlm_loss + nsp_loss, as in training; accuracies from 0 to 1; perplexity = exp(mlm_loss), of
    the masked tokens, as Devlin et al. (arXiv 1810.04805, table 6) state it for held-out text.
    question_answering: loss as in training; span_accuracy from 0 to 1, of the windows whose most probable start and
    most probable end are both the labelled ones (in a window without the answer: [CLS]).
    """
    if head == "pretraining":
        mlm, nsp = (max(1.0, sums[name]) for name in ("mlm_labels", "nsp_labels"))
        mlm_loss, nsp_loss = sums["mlm_loss"] / mlm, sums["nsp_loss"] / nsp
        values: Tuple[float, ...] = (
            mlm_loss + nsp_loss, mlm_loss, sums["mlm_right"] / mlm, math.exp(min(mlm_loss, 700.0)), nsp_loss,
            sums["nsp_right"] / nsp,
        )  # fmt: skip
    else:
        windows = max(1.0, sums["windows"])
        start, end = sums["start_loss"] / windows, sums["end_loss"] / windows
        values = ((start + end) / 2, start, end, sums["spans_right"] / windows)
    return dict(zip(FIGURES[head], values))


def goodness(found: Mapping[str, float]) -> Tuple[float, float]:
    """What `keep: best` and `patience` compare, larger is better: the share of exact spans where there is one, then
    the loss."""
    return found.get("span_accuracy", 0.0), -found["loss"]


def require_head(head: str) -> None:
    """Raises: ConfigError, if models with this head cannot be evaluated here."""
    if head not in SUMS:
        raise ConfigError(f"held-out rows are evaluated for the heads {', '.join(SUMS)}, found {head}: leave it out")
