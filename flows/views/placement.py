"""Layout of a job's pipeline on the IPUs of one replica: one row per IPU, one column per pipeline stage."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

Stages = Sequence[tuple[int, Sequence[str]]]
"""IPU and blocks of each stage of the pipeline, in order."""
LAYER = "encoder layer "
COLUMN, LINE, HEAD, LEFT, GAP = 112, 13, 20, 112, 14
"""Width of a stage, height of a text line, top margin, left margin, gap between stages; about pixels."""
MAX_CHARACTERS = 18
"""Maximum characters in a line of a stage."""
BAR = 92
"""Length of the bar for the memory of an IPU."""


def layout_pipeline(
    stages: Stages, ipus: int, every_layer: bool | None, proportions: Sequence[float], title: str
) -> dict[str, Any] | None:
    """Return the layout for templates/placement.html.j2; None without IPUs.

    Args:
        ipus: number of IPUs per replica.
        every_layer: whether one activation per layer is stored, not one per stage; None: nothing is recomputed.
        proportions: share of each IPU's memory that matrix products may use while they are computed.
        title: name of the job.
    """
    if not stages:
        return None
    texts = [_wrap_blocks(blocks) for _, blocks in stages]
    row = HEAD + LINE * max(map(len, texts)) + GAP
    boxes = [
        {
            "number": number + 1,
            "ipu": ipu,
            "x": LEFT + number * (COLUMN + GAP),
            "y": ipu * row,
            "lines": lines,
            "blocks": list(blocks),
            "stored": _count_stored(blocks, every_layer),
        }
        for number, ((ipu, blocks), lines) in enumerate(zip(stages, texts, strict=True))
    ]
    shares = [proportions[ipu] if ipu < len(proportions) else None for ipu in range(ipus)]
    idle = set(range(ipus)) - {ipu for ipu, _ in stages}
    return {
        "title": title,
        "boxes": boxes,
        "arrows": list(zip(boxes, boxes[1:], strict=False)),
        "ipus": [{"number": ipu, "y": ipu * row, "share": shares[ipu], "idle": ipu in idle} for ipu in range(ipus)],
        "bar": BAR,
        "row": row,
        "box": (COLUMN, row - GAP),
        "width": LEFT + len(boxes) * (COLUMN + GAP),
        "height": ipus * row,
        "recomputed": every_layer is not None,
        "shares": any(share is not None for share in shares),
    }


def layout_result(result: Mapping[str, Any], title: str) -> dict[str, Any] | None:
    """Return the same layout from the result.json of a job on IPUs; None for other jobs."""
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
    return layout_pipeline(stages, ipus, every, _read_shares(config, predicts, ipus), title)


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


def _wrap_blocks(blocks: Iterable[str]) -> list[str]:
    """Return the lines of a stage's box; consecutive layers are joined."""
    found = []
    for of_layers, together in groupby(blocks, key=lambda name: name.startswith(LAYER)):
        names = list(together)
        numbers = [name[len(LAYER) :] for name in names]
        if of_layers:
            found.append(f"layers {numbers[0]} to {numbers[-1]}" if len(names) > 1 else f"layer {numbers[0]}")
        else:
            found += names
    return [line for name in found for line in wrap(name, MAX_CHARACTERS)]
