"""Which outputs of which micro-batches come back, per OutputMode."""

from __future__ import annotations

from typing import List

import torch
from torch import Tensor

from poptorch.enums import OutputMode
from poptorch.errors import refusal


def returned(results: List[Tensor], replicas: int, mode: OutputMode, period: int) -> Tensor:
    """Outputs of every micro-batch, in order of execution (replicas innermost) -> one tensor for the host.

    Scalars come back stacked, others joined along the batch; a single one comes back as it is.

    Raises:
        Error: EveryN with a period that does not divide the micro-batches.
    """
    steps = [results[at : at + replicas] for at in range(0, len(results), replicas)]
    if mode == OutputMode.Final:
        chosen = steps[-1]
    elif mode == OutputMode.EveryN:
        if len(steps) % period:
            raise refusal(f"EveryN: period {period} does not divide {len(steps)} micro-batches")
        chosen = [x for step in steps[period - 1 :: period] for x in step]
    elif mode == OutputMode.Sum:
        chosen = [_total(list(parts)) for parts in zip(*steps)]
    else:
        chosen = results
    if len(chosen) == 1:
        return chosen[0]
    return torch.cat(chosen) if chosen[0].dim() else torch.stack(chosen)


def _total(parts: List[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total
