"""How good a model is on rows it was not trained on: losses and accuracies, without dropout, without gradients.

Nothing here draws random numbers or changes a weight, so that a training with evaluations ends as one without. Sums
are made in fp64 over all labels, so that it does not matter how the rows are cut into batches.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from ipu_model.models.flat import FlatBatch, flatten
from ipu_model.models.head import Head
from ipu_model.rows.reading import Batch


def add_up(
    model: Any,
    head: Head,
    batches: Iterable[Batch],
    place: Optional[Callable[[FlatBatch], FlatBatch]] = None,
    add: Optional[Callable[[List[Tensor]], None]] = None,
) -> Dict[str, float]:
    """The sums of the head over the rows of all batches, by name.

    Args:
        model: From modeling.build_model, on its device; comes back in evaluation mode.
        place: Brings a batch to that device; None on the host.
        add: Adds to the sums those of other processes, which have other batches; None alone.
    """
    device = next(model.parameters()).device
    total = torch.zeros(len(head.sums), dtype=torch.float64, device=device)
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            flat = flatten(batch, head.flat_labels)
            total += head.add_up(model, flat if place is None else place(flat))
    if add is not None:
        add([total])
    return dict(zip(head.sums, total.tolist()))


def goodness(head: Head, found: Mapping[str, float]) -> Tuple[float, float]:
    """What `keep: best` and `patience` compare, larger is better: the figure that the head names, then the loss."""
    return found.get(head.best, 0.0) if head.best is not None else 0.0, -found["loss"]
