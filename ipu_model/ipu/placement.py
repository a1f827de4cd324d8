"""Placement of the blocks of a model on IPUs, and its pipeline stages. Pure functions without PopTorch.

Blocks in order of execution: embeddings, encoder layers, pooler (where the head reads it), heads. A pipeline
stage is a run of blocks on one IPU; coming back to an IPU is a new stage (AutoStage.AutoIncrement).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ipu_model import heads
from ipu_model.core.errors import ConfigError
from ipu_model.ipu.config import BLOCKS

Block = Tuple[str, int]


@dataclass(frozen=True)
class Placement:
    """IPU of every block of one replica."""

    head: str
    embeddings: int
    layers: Tuple[int, ...]
    pooler: Optional[int]
    """None where the model has no pooler (question answering)."""
    heads: int
    ipus_per_replica: int

    @property
    def blocks(self) -> Tuple[Block, ...]:
        """(name, IPU) of every block in order of execution."""
        layers = [(f"encoder layer {index}", ipu) for index, ipu in enumerate(self.layers)]
        pooler = [] if self.pooler is None else [("pooler", self.pooler)]
        return (("embeddings", self.embeddings), *layers, *pooler, (heads.get_head_spec(self.head).title, self.heads))

    @property
    def order(self) -> Tuple[int, ...]:
        """IPU of every block in order of execution."""
        return tuple(ipu for _, ipu in self.blocks)

    @cached_property
    def stages(self) -> Tuple[Tuple[int, Tuple[str, ...]], ...]:
        """(IPU, names of its blocks) of every forward pipeline stage."""
        stages: List[Tuple[int, List[str]]] = []
        for name, ipu in self.blocks:
            if not stages or stages[-1][0] != ipu:
                stages.append((ipu, []))
            stages[-1][1].append(name)
        return tuple((ipu, tuple(names)) for ipu, names in stages)

    @property
    def path(self) -> str:
        """IPUs in the order in which the blocks visit them: 0-1-2-3-0."""
        return "-".join(str(ipu) for ipu, _ in self.stages)

    @property
    def forward_stages(self) -> int:
        """Forward stages F: 1 + the changes of IPU along the blocks. Pipelined inference needs F device iterations."""
        return len(self.stages)

    @property
    def training_stages(self) -> int:
        """Training stages, 2F - 1: every stage runs forward and backward, the last both together (user guide)."""
        return 2 * self.forward_stages - 1

    @property
    def layers_per_ipu(self) -> Tuple[int, ...]:
        """Encoder layers on each IPU."""
        return tuple(self.layers.count(ipu) for ipu in range(self.ipus_per_replica))

    def table(self, replicas: int = 1) -> str:
        """Format the placement as a table: stages with their IPU and blocks, then the sums."""
        lines = ["stage  IPU  blocks"]
        for number, (ipu, names) in enumerate(self.stages, 1):
            lines.append(f"{number:>5}  {ipu:>3}  {', '.join(_merge_layers(names))}")
        lines += [f"{'-':>5}  {ipu:>3}  (idle)" for ipu in sorted(set(range(self.ipus_per_replica)) - set(self.order))]
        lines.append(
            f"{self.ipus_per_replica} IPUs x {replicas} replicas = {self.ipus_per_replica * replicas} IPUs; "
            f"{self.forward_stages} forward stages, 2x{self.forward_stages}-1 = {self.training_stages} in training"
        )
        return "\n".join(lines)

    def as_dict(self) -> Dict[str, Any]:
        """Return the placement as plain data, for result.json."""
        return {
            **dataclasses.asdict(self),
            "layers": list(self.layers),
            "order": list(self.order),
            "forward_stages": self.forward_stages,
            "training_stages": self.training_stages,
        }


@dataclass(frozen=True)
class DeviceLayout:
    """Partition and computation of the model, from the IPU config."""

    placement: Placement
    table_pieces: int = 1
    """Parameters that the word table is cut into."""
    projection_serialization_factor: int = 1
    recompute_checkpoint_every_layer: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0


def place_by_layers(
    head: str, num_layers: int, layers_per_ipu: Sequence[int], ipus_per_replica: int, pools_in_head: bool = False
) -> Placement:
    """Place a model by layers_per_ipu, as Optimum Graphcore does.

    The embeddings are on IPU 0. In pre-training, pooler and heads are there as well, because the decoder of the MLM
    head is the word embedding and a weight is on one IPU. Other heads are on the last IPU, with the pooler next to the
    last encoder layer, or in the head of a family that has it there (Family.pools_in_head).

    Raises:
        ConfigError: see `expand_layers`; or the head is unknown.
    """
    kind = heads.get_head_spec(head)
    counts = expand_layers(num_layers, layers_per_ipu, ipus_per_replica)
    layers = tuple(ipu for ipu, count in enumerate(counts) for _ in range(count))
    of_head = 0 if kind.tied else ipus_per_replica - 1
    pooler = None if not kind.pooler else (of_head if kind.tied or pools_in_head else layers[-1])
    return Placement(head, 0, layers, pooler, of_head, ipus_per_replica)


def expand_layers(num_layers: int, layers_per_ipu: Sequence[int], ipus_per_replica: int) -> List[int]:
    """Return the encoder layers on each IPU with wildcards (-1) resolved; their sum is `num_layers`.

    The wildcards share the remaining layers evenly, and the last one gets the surplus:
    expand_layers(12, [1, -1, -1, -1], 4) == [1, 3, 3, 5]. A single [-1] means a wildcard on every IPU; config.py has
    rejected any other number of entries. On a single IPU there is nothing to split, and layers_per_ipu is not read.

    Raises:
        ConfigError: the number of layers is wrong.
    """
    layers = list(layers_per_ipu)
    if ipus_per_replica == 1:
        return [num_layers]
    counts = [-1] * ipus_per_replica if layers == [-1] else list(layers)
    wildcards = [ipu for ipu, count in enumerate(counts) if count == -1]
    fixed = sum(count for count in counts if count > 0)
    if fixed > num_layers or (not wildcards and fixed != num_layers):
        works = [-1] * ipus_per_replica
        raise ConfigError(
            f"layers_per_ipu={layers} places {fixed} encoder layers, the model has {num_layers}: change the counts, or "
            f"use {works}, which is {expand_layers(num_layers, works, ipus_per_replica)}"
        )
    if wildcards:
        share, surplus = divmod(num_layers - fixed, len(wildcards))
        for ipu in wildcards:
            counts[ipu] = share
        counts[wildcards[-1]] += surplus
    return counts


def place_by_stages(
    head: str, num_layers: int, pipeline_stages: Sequence[Sequence[str]], device_mapping: Sequence[int]
) -> Placement:
    """Place a model by stages, as the TensorFlow 2 configurations do: blocks of each stage, and the IPU of each stage.

    Args:
        pipeline_stages: names from BLOCKS and that of the head. "enc_out" is not a block of its own; neither is "pool"
            where the model has no pooler.
        device_mapping: IPU of each stage, for example [0, 1, 2, 3, 0]; config.py has rejected gaps.

    Raises:
        ConfigError: lists all problems in one message.
    """
    kind = heads.get_head_spec(head)
    placed = [(name, ipu) for stage, ipu in zip(pipeline_stages, device_mapping) for name in stage]
    problems = _find_name_problems(head, num_layers, [name for name, _ in placed])
    if not problems:
        where = {name: ipu for name, ipu in placed if name != "hid"}
        if kind.tied and where[kind.stage] != where["emb"]:
            problems.append(
                f"{kind.stage} on IPU {where[kind.stage]}, emb on IPU {where['emb']}: the MLM decoder is the word "
                f"embedding, and a weight is on one IPU; map the stage of {kind.stage} to IPU {where['emb']}"
            )
    if problems:
        raise ConfigError("pipeline_stages and device_mapping cannot be used: " + "; ".join(problems))
    layers = tuple(ipu for name, ipu in placed if name == "hid")
    pooler = where["pool"] if kind.pooler else None
    return Placement(head, where["emb"], layers, pooler, where[kind.stage], max(device_mapping) + 1)


def _find_name_problems(head: str, num_layers: int, names: List[str]) -> List[str]:
    kind = heads.get_head_spec(head)
    others = [heads.get_head_spec(other).stage for other in heads.list_heads() if other != head]
    known = [*BLOCKS, kind.stage, *others]
    unknown = sorted(set(names) - set(known))
    if unknown:
        return [f"unknown blocks {', '.join(unknown)}; valid: {', '.join(known)}"]
    needed = ["emb", *(["pool"] if kind.pooler else []), kind.stage]
    problems = [f"{name} must occur once, found {names.count(name)} times" for name in needed if names.count(name) != 1]
    problems += [f"{name} is not part of a {head} model" for name in others if name in names]
    extra = [name for name in ("enc_out", "pool") if name not in needed]
    problems += [f"{name} occurs {names.count(name)} times" for name in extra if names.count(name) > 1]
    if names.count("hid") != num_layers:
        problems.append(f"hid occurs {names.count('hid')} times, the model has {num_layers} encoder layers")
    positions = [known.index(name) for name in names]
    if positions != sorted(positions):
        problems.append(f"the order must be {', '.join(BLOCKS)}, {kind.stage}")
    return problems


def _merge_layers(names: Sequence[str]) -> List[str]:
    """Return the names of a stage's blocks, with its encoder layers as one entry."""
    layers = [name.rsplit(" ", 1)[1] for name in names if name.startswith("encoder layer")]
    if len(layers) < 2:
        return list(names)
    joined = f"encoder layers {layers[0]}-{layers[-1]}"
    before = [name for name in names if name == "embeddings"]
    after = [name for name in names if name != "embeddings" and not name.startswith("encoder layer")]
    return [*before, joined, *after]
