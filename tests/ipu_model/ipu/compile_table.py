"""How many programs are built for several seeds of a pre-training of two phases, with one cache.

PYTHONPATH=<where poptorch is>:. python tests/ipu_model/ipu/compile_table.py [SEEDS]
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import List

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]

from ipu_jobs import ipu_job, rows_of  # noqa: E402
from tiny_jobs import run_here  # noqa: E402


def programs(folder: Path, seeds: int) -> List[str]:
    """How each job came by its program: phase 1 and 2 (rows of other numbers of slots) of every seed."""
    os.environ["PODIUM_EXECUTABLE_CACHE"] = str(folder / "cache")
    rows = [rows_of(folder / phase, "pretrain", 50, packed=phase == "phase2") for phase in ("phase1", "phase2")]
    told = []
    for seed in range(seeds):
        for phase in rows:
            job = ipu_job(folder / f"{phase.name}-{seed}", "pretrain", phase, seed=seed)
            done = run_here(dataclasses.replace(job, compile_only=True))
            told.append(next(x["text"] for x in done.of("message") if "program ready after" in x["text"]))
    return told


def main() -> None:
    """Print a line a job, then the number of programs that were built."""
    import poptorch

    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        told = programs(Path(folder), seeds)
    print("\n".join(told))
    built = sum("built" in line for line in told)
    print(f"poptorch {poptorch.__version__}: {seeds} seeds x 2 phases, {built} programs built")


if __name__ == "__main__":
    main()
