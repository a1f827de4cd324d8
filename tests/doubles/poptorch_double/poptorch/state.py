"""What the functions called inside `forward` need to know: is a model running, and is it being compiled."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

from torch import Tensor

Loss = Tuple[Tensor, str, str]
"""Tensor, the function it came from, its reduction."""


class _State:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No model is running."""
        self.running = False
        self.program: Optional[Any] = None
        """The compile pass (program.Program), only during it."""
        self.inside_block = False
        self.losses: List[Loss] = []


STATE = _State()
