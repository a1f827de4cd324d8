"""The table of test_parity.py with its figures: largest differences between the IPU and the CPU runtime.

PYTHONPATH=<where poptorch is>:. python tests/ipu_model/ipu/parity_table.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]

import torch  # noqa: E402
from test_parity import CASES, largest_differences, optimizer_of  # noqa: E402
from tiny_ipu import train  # noqa: E402

HEADING = ("optimizer", "head", "replicas", "device iterations", "rows", "runtimes", "loss, max difference")
HEADING += ("of the loss", "weights, max difference", "weights moved by")


def row(name: str, head: str, replicas: int, iterations: int, packed: bool, precision: str) -> List[Any]:
    """One line of the table."""
    settings: Dict[str, Any] = {"replicas": replicas, "iterations": iterations, "packed": packed}
    optimizer = optimizer_of(name)
    with tempfile.TemporaryDirectory() as folder:
        cpu, cpu_weights = train("cpu", head, optimizer, folder=Path(folder), **settings)
        ipu, ipu_weights = train("ipu", head, optimizer, folder=Path(folder), precision=precision, **settings)
    losses = [abs(a - b) for ours, theirs in zip(ipu, cpu) for a, b in zip(ours, theirs)]
    relative = [abs(ours[0] - theirs[0]) / theirs[0] for ours, theirs in zip(ipu, cpu)]
    moved = max(
        largest_differences(cpu_weights, train("cpu", head, optimizer, folder=Path("."), updates=0, **settings)[1])
    )
    kind = ["packed" if packed else "unpacked", f"ipu {precision} / cpu fp32"]
    apart = [max(losses), max(relative), max(largest_differences(ipu_weights, cpu_weights)), moved]
    return [name, head, replicas, iterations, *kind, *(f"{figure:.1e}" for figure in apart)]


def main() -> None:
    """Print the table in Markdown; fp16 only where the argument --fp16 asks for it, as emulating it is slow."""
    torch.set_num_threads(1)
    import poptorch

    print(f"poptorch {poptorch.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print(f"| {' | '.join(HEADING)} |\n{'|---' * len(HEADING)}|")
    cases = [(*case, "fp32") for case in CASES]
    if "--fp16" in sys.argv:
        of_heads = [(name, head) for name in ("lamb", "adamw") for head in ("pretraining", "question_answering")]
        cases = [(*of_head, 2, 1, True, "fp16") for of_head in of_heads]
    for case in cases:
        print("| " + " | ".join(map(str, row(*case))) + " |", flush=True)


if __name__ == "__main__":
    main()
