"""How blocks become pipeline stages on IPUs."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from poptorch.enums import AutoStage


class PipelinedExecution:
    """Stages work at the same time on different micro-batches."""

    execution_mode = 0

    def __init__(self, *args: AutoStage) -> None:
        assert all(isinstance(arg, AutoStage) for arg in args), f"no AutoStage: {args!r}"
        self.one_stage_per_ipu = args != (AutoStage.AutoIncrement,)
        """The stages are the IPUs: an IPU cannot come back later in the pipeline."""
        self._found: Dict[str, int] = {}

    def place(self, block_id: str, ipu: Optional[int]) -> Tuple[int, int]:
        """Stage number and IPU of a block that begins; a block seen before keeps its stage."""
        assert ipu is not None or not self.one_stage_per_ipu, f"AutoStage.SameAsIpu needs the IPU of block {block_id}"
        stage = self._found.setdefault(block_id, ipu if self.one_stage_per_ipu else len(self._found) + 1)
        return stage, stage if ipu is None else ipu


class ShardedExecution(PipelinedExecution):
    execution_mode = 1
