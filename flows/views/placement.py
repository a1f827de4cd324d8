"""How a job lies on the IPUs of a replica, as a picture: a row an IPU, a column a stage of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

Stages = Sequence[tuple[int, Sequence[str]]]
"""IPU and blocks of each stage of the pipeline, in order."""
LAYER = "encoder layer "
COLUMN, LINE, HEAD, LEFT, GAP = 112, 13, 20, 112, 14
"""Width of a stage, height of a line in it, room above and left of them, and between two: about pixels."""
LONGEST = 18
"""Characters in a line of a stage."""
BAR = 92
"""Length of a bar that stands for the memory of an IPU."""


def picture(
    stages: Stages, ipus: int, every_layer: bool | None, proportions: Sequence[float], title: str
) -> dict[str, Any] | None:
    """Where everything lies, for templates/placement.html.j2; None where there are no IPUs.

    Args:
        ipus: of a replica.
        every_layer: whether one activation a layer is kept, and not one a stage; None: nothing is recomputed.
        proportions: the share of an IPU's memory that products of matrices may take while they are computed.
        title: what the job is called.
    """
    if not stages:
        return None
    texts = [_lines(blocks) for _, blocks in stages]
    row = HEAD + LINE * max(map(len, texts)) + GAP
    boxes = [
        {
            "number": number + 1,
            "ipu": ipu,
            "x": LEFT + number * (COLUMN + GAP),
            "y": ipu * row,
            "lines": lines,
            "blocks": list(blocks),
            "kept": _kept(blocks, every_layer),
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


def of_result(result: Mapping[str, Any], title: str) -> dict[str, Any] | None:
    """As `picture`, from what a job on IPUs wrote of itself (result.json); None of other jobs."""
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
    return picture(stages, ipus, every, _shares(config, predicts, ipus), title)


def _shares(config: Mapping[str, Any], predicts: bool, ipus: int) -> Sequence[float]:
    """The share of each IPU; none where a prediction states none and training's list is of another number of IPUs."""
    share = config.get("inference_matmul_proportion") if predicts else None
    share = config.get("matmul_proportion") if share is None else share
    if isinstance(share, list):
        return share if len(share) == ipus else []
    return [] if share is None else [share] * ipus


def _kept(blocks: Sequence[str], every_layer: bool | None) -> int:
    """Activations that a stage keeps to recompute the rest from: its input, and with `every_layer` one a layer."""
    if every_layer is None:
        return 0
    return max(1, sum(name.startswith(LAYER) for name in blocks)) if every_layer else 1


def _lines(blocks: Iterable[str]) -> list[str]:
    """Blocks in words, layers that follow each other together."""
    found = []
    for of_layers, together in groupby(blocks, key=lambda name: name.startswith(LAYER)):
        names = list(together)
        numbers = [name[len(LAYER) :] for name in names]
        if of_layers:
            found.append(f"layers {numbers[0]} to {numbers[-1]}" if len(names) > 1 else f"layer {numbers[0]}")
        else:
            found += names
    return [line for name in found for line in wrap(name, LONGEST)]
