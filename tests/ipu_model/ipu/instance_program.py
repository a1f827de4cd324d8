"""`python instance_program.py FOLDER PAUSE job.json`: one instance of an IPU job, among those that share FOLDER.

PopTorch, popdist and horovod are the doubles, with what they leave out between processes: reductions are made, over
gloo; gradients are averaged over the instances, as the IPUs do; and each draws random numbers of its own.
"""

import importlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ipu_model import __main__ as program
from ipu_model.core import progress

hvd, popdist, poptorch, running = map(
    importlib.import_module, ("horovod.torch", "popdist", "poptorch", "poptorch.running")
)
PAUSE = int(sys.argv.pop(2))
FOLDER = Path(sys.argv.pop(1))


def init():
    place = {"rank": popdist.getInstanceIndex(), "world_size": popdist.getNumInstances()}
    dist.init_process_group("gloo", init_method=f"file://{FOLDER.absolute()}/group", **place)


def mean(tensor):
    dist.all_reduce(tensor)
    return tensor.div_(dist.get_world_size())


def allreduce(tensor, *, name, op):
    assert op is hvd.Average
    return mean(tensor.clone())


def allgather(tensor, *, name):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


class Runner(running.Runner):
    def _update(self, sums):
        super()._update({name: mean(sums[name]) for name in sorted(sums)})


def seed_of_its_own(self, number, seed=poptorch.Options.randomSeed):
    return seed(self, number + 1000 * popdist.getInstanceIndex())


class Pausing(progress.Progress):
    """SIGTERM comes after update PAUSE, to instance 0 only."""

    def __call__(self, event, **fields):
        super().__call__(event, **fields)
        if event == "step" and fields["step"] == PAUSE and popdist.getInstanceIndex() == 0:
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    hvd.init, hvd.allreduce, hvd.allgather = init, allreduce, allgather
    importlib.import_module("poptorch.executable").Runner = Runner
    poptorch.Options.randomSeed = seed_of_its_own
    program.Progress = Pausing
    code = program.main()
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(code)
