"""Pipeline of a job on the IPUs of one replica, for templates/placement.html.j2."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Stages = Sequence[tuple[int, Sequence[str]]]
"""IPU and blocks of each stage of the pipeline, in order."""
LAYER = "encoder layer "


def describe_pipeline(
    stages: Stages, ipus: int, every_layer: bool | None, proportions: Sequence[float], title: str
) -> dict[str, Any]:
    """Return the values of the template.

    Args:
        every_layer: whether one activation per layer is stored, not one per stage; None: nothing is recomputed.
        proportions: share of each IPU's memory that matrix products may use while they are computed.
    """
    return {
        "title": title,
        "stages": [
            {"ipu": ipu, "blocks": _join_layers(blocks), "stored": _count_stored(blocks, every_layer)}
            for ipu, blocks in stages
        ],
        "shares": [proportions[ipu] if ipu < len(proportions) else None for ipu in range(ipus)],
    }


def describe_result(result: Mapping[str, Any], title: str) -> dict[str, Any] | None:
    """Return the same values from the result.json of a job on IPUs; None for other jobs."""
    device = (result.get("plan") or {}).get("device") or {}
    placed, config = device.get("placement"), device.get("config") or {}
    if not placed:
        return None
    names = ["embeddings", *(f"{LAYER}{index}" for index in range(len(placed["layers"])))]
    names += ([] if placed["pooler"] is None else ["pooler"]) + ["heads"]
    blocks = zip(placed["order"], names, strict=False)
    stages = [(ipu, [name for _, name in together]) for ipu, together in groupby(blocks, key=lambda block: block[0])]
    predicts = result.get("kind") == "predict"
    every = bool(config.get("recompute_checkpoint_every_layer")) if not predicts and len(stages) > 1 else None
    ipus = placed["ipus_per_replica"]
    return describe_pipeline(stages, ipus, every, _read_shares(config, predicts, ipus), title)


def _read_shares(config: Mapping[str, Any], predicts: bool, ipus: int) -> Sequence[float]:
    """Return the share of each IPU; empty if training's list is for another number of IPUs than a prediction has."""
    share = config.get("inference_matmul_proportion") if predicts else None
    share = config.get("matmul_proportion") if share is None else share
    if isinstance(share, list):
        return share if len(share) == ipus else []
    return [] if share is None else [share] * ipus


def _count_stored(blocks: Sequence[str], every_layer: bool | None) -> int:
    """Return the number of activations that a stage stores for recomputation: its input, or one per layer."""
    if every_layer is None:
        return 0
    return max(1, sum(name.startswith(LAYER) for name in blocks)) if every_layer else 1


def _join_layers(blocks: Sequence[str]) -> list[str]:
    """Return the names of blocks; consecutive layers are joined."""
    joined = []
    for of_layers, together in groupby(blocks, key=lambda name: name.startswith(LAYER)):
        names = list(together)
        if of_layers:
            first, last = (name.removeprefix(LAYER) for name in (names[0], names[-1]))
            names = [f"layers {first} to {last}" if first != last else f"layer {first}"]
        joined += names
    return joined
