"""`python instance_program.py FOLDER PAUSE job.json`: one instance of an IPU job, among those that share FOLDER.

PopTorch, popdist and horovod are the doubles, with what they leave out between processes: reductions are made, over
gloo; gradients are averaged over the instances, as the IPUs do; and each draws random numbers of its own.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict

import torch
import torch.distributed as dist

from ipu_model import __main__ as program
from ipu_model.core import progress

hvd: Any = importlib.import_module("horovod.torch")
popdist: Any = importlib.import_module("popdist")
poptorch: Any = importlib.import_module("poptorch")
running: Any = importlib.import_module("poptorch.running")


def connect(folder: Path) -> None:
    """Let horovod and the executors reach the other instances."""

    def init() -> None:
        at = {"rank": popdist.getInstanceIndex(), "world_size": popdist.getNumInstances()}
        dist.init_process_group("gloo", init_method=f"file://{folder.absolute()}/group", **at)

    def allreduce(tensor: torch.Tensor, *, name: str, op: object) -> torch.Tensor:
        assert op is hvd.Average
        return mean(tensor.clone())

    def allgather(tensor: torch.Tensor, *, name: str) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    hvd.init, hvd.allreduce, hvd.allgather = init, allreduce, allgather


def mean(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def complete_the_double() -> None:
    """Gradients of all instances, and generators of each."""
    update, seed = running.Runner._update, poptorch.Options.randomSeed

    def updating(self: Any, sums: Dict[str, torch.Tensor]) -> None:
        update(self, {name: mean(sums[name]) for name in sorted(sums)})

    def seeding(self: Any, number: int) -> Any:
        return seed(self, number + 1000 * popdist.getInstanceIndex())

    running.Runner._update, poptorch.Options.randomSeed = updating, seeding


def main() -> int:
    """Run the job; SIGTERM comes after update PAUSE, to instance 0 only."""
    folder, pause = Path(sys.argv[1]), int(sys.argv[2])
    del sys.argv[1:3]

    class Pausing(progress.Progress):
        def __call__(self, event: str, **fields: Any) -> None:
            super().__call__(event, **fields)
            if event == "step" and fields["step"] == pause and popdist.getInstanceIndex() == 0:
                os.kill(os.getpid(), signal.SIGTERM)

    program.Progress = Pausing  # type: ignore[misc]
    connect(folder)
    complete_the_double()
    code = program.main()
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
