"""The places in a model that hold parameters and buffers, to put the device's copies there while it runs."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import Tensor, nn


class Slots:
    """Every (module, key) that holds a tensor; tied ones share a name, the first."""

    def __init__(self, model: nn.Module) -> None:
        self.moved: List[str] = []
        self._places: List[Tuple[Dict[str, Any], str, str]] = []
        self.host: Dict[str, Tensor] = {}
        names: Dict[int, str] = {}
        for prefix, module in model.named_modules():
            for holder in (module._parameters, module._buffers):
                for key, tensor in holder.items():
                    if tensor is None:
                        continue
                    name = names.setdefault(id(tensor), f"{prefix}.{key}" if prefix else key)
                    self.host[name] = tensor
                    self._places.append((holder, key, name))

    def device_copies(self) -> Dict[str, Tensor]:
        return {name: _copy(tensor) for name, tensor in self.host.items()}

    @torch.no_grad()
    def write(self, copies: Dict[str, Tensor]) -> None:
        for name, tensor in self.host.items():
            copies[name].copy_(tensor)

    @torch.no_grad()
    def read(self, copies: Dict[str, Tensor]) -> None:
        for name, tensor in self.host.items():
            tensor.copy_(copies[name])

    @contextlib.contextmanager
    def filled_with(self, copies: Dict[str, Tensor]) -> Iterator[None]:
        """The model computes with the copies; what it assigned again is in `moved` afterwards."""
        before = [holder[key] for holder, key, _ in self._places]
        for holder, key, name in self._places:
            holder[key] = copies[name]
        try:
            yield
        finally:
            self.moved = [name for holder, key, name in self._places if holder.get(key) is not copies[name]]
            for (holder, key, _), tensor in zip(self._places, before):
                holder[key] = tensor


def _copy(tensor: Tensor) -> Tensor:
    trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    data = tensor.detach().clone()
    data = data.float() if data.dtype in (torch.float64, torch.bfloat16) else data
    return nn.Parameter(data, requires_grad=trained) if isinstance(tensor, nn.Parameter) else data
