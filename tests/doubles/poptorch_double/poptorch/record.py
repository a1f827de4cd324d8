"""What was compiled and run, for tests to look at; and what the functions called inside `forward` need to know."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from torch import Tensor

RECORD: Dict[str, Any] = {"executables": []}


class _State:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.running = False
        self.program: Optional[Any] = None
        """The compile pass (program.Program), only during it."""
        self.inside_block = False
        self.losses: List[Tuple[Tensor, str]] = []
        """Marked losses with their reductions."""


STATE = _State()
