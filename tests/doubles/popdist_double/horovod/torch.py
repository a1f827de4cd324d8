"""horovod.torch as 0.24 has it: allreduce and allgather of tensors by name, after init.

The other instances are played by `OTHERS`: what each of them would hand in, by the name of the reduction.
"""

from __future__ import annotations

from typing import Dict, List

import popdist
import torch


class Average:
    """The reduction operation hvd.Average."""


CALLS: List[str] = []
OTHERS: Dict[str, List[torch.Tensor]] = {}


def init() -> None:
    if "init" not in popdist.CALLS:
        raise RuntimeError("popdist.init() comes before horovod's")
    CALLS.append("init")


def allreduce(tensor: torch.Tensor, *, name: str, op: type) -> torch.Tensor:
    """Mean of the same tensor over the instances. The old flag `average` is gone on purpose: op says it."""
    if "init" not in CALLS:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    if not isinstance(tensor, torch.Tensor) or op is not Average:
        raise TypeError(f"allreduce of {type(tensor).__name__} with {op!r}")
    CALLS.append(f"allreduce {name}")
    return torch.stack([tensor, *OTHERS.get(name, [tensor])]).mean(0)


def allgather(tensor: torch.Tensor, *, name: str) -> torch.Tensor:
    """The tensors of all instances one after the other, by their first dimension."""
    if "init" not in CALLS:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"allgather of {type(tensor).__name__}")
    CALLS.append(f"allgather {name}")
    return torch.cat([tensor, *OTHERS.get(name, [tensor])])
