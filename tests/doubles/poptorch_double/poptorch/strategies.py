"""How blocks become pipeline stages on IPUs."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from poptorch.enums import AutoStage


class Stage:
    """Blocks that run together on one IPU.

    Args:
        block_ids: Names of blocks.
    """

    def __init__(self, *block_ids: str) -> None:
        assert all(isinstance(block, str) for block in block_ids), f"block ids are strings, found {block_ids}"
        self._blocks, self._stage_id, self._ipu = block_ids, -1, None  # type: Tuple[str, ...], int, Optional[int]

    @property
    def blocks(self) -> Tuple[str, ...]:
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Put this stage on an IPU, whatever its blocks say."""
        assert isinstance(ipu, int), f"an IPU is an int, found {ipu!r}"
        self._ipu = ipu
        return self


class PipelinedExecution:
    """Stages work at the same time on different micro-batches.

    Args:
        args: One AutoStage, or stages, block ids or lists of block ids in order.
    """

    execution_mode = 0

    def __init__(self, *args: Any) -> None:
        self._auto = AutoStage.SameAsIpu
        self._stated: Dict[str, Stage] = {}
        if len(args) == 1 and isinstance(args[0], AutoStage):
            self._auto, args = args[0], ()
        for number, arg in enumerate(args):
            stage = arg if isinstance(arg, Stage) else Stage(*([arg] if isinstance(arg, str) else arg))
            stage._stage_id = number
            for block in stage.blocks:
                assert block not in self._stated, f"block {block} is in two stages"
                self._stated[block] = stage
        self._found: Dict[str, Stage] = {}

    def stage(self, block_id: str) -> Stage:
        """The stated stage of a block."""
        assert block_id in self._stated, f"no stage holds block {block_id}"
        return self._stated[block_id]

    def place(self, block_id: str, ipu: Optional[int]) -> Tuple[int, int]:
        """Stage number and IPU of a block that begins; a block seen before keeps its stage."""
        if self._stated:
            assert block_id in self._stated, f"no stage holds block {block_id}: {sorted(self._stated)}"
            stage = self._stated[block_id]
        else:
            stage = self._found[block_id] = self._found.get(block_id) or self._new_stage(block_id, ipu)
        placed = stage._ipu if stage._ipu is not None else ipu
        return stage._stage_id, stage._stage_id if placed is None else placed

    def _new_stage(self, block_id: str, ipu: Optional[int]) -> Stage:
        stage = Stage(block_id)
        if self._auto == AutoStage.AutoIncrement:
            stage._stage_id = len(self._found) + 1
        else:
            assert ipu is not None, f"AutoStage.SameAsIpu needs the IPU of block {block_id}"
            stage._stage_id = ipu
        return stage

    @property
    def one_stage_per_ipu(self) -> bool:
        """The stages are the IPUs: an IPU cannot come back later in the pipeline."""
        return not self._stated and self._auto == AutoStage.SameAsIpu


class ShardedExecution(PipelinedExecution):
    """One stage works at a time."""

    execution_mode = 1
