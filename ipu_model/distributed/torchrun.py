"""Several processes that train one model on CPUs or GPUs, under torchrun.

torchrun starts the same command N times and tells each process its place in variables of the environment, which
torch.distributed reads (PyTorch, "torchrun (Elastic Launch)"). Every process holds all of the weights. Gradients are
added up once per update, in buckets of fp32, after the last backward pass. DistributedDataParallel would overlap that
with the backward pass, but it averages where the losses here are shares of one sum, it owns the gradients of one
set of weights (there may be copies of lower precision), and an update of many micro-batches leaves little to hide.

Control (stopping, generators) goes over gloo between the hosts, so that no GPU waits for it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ipu_model.distributed.process import ending_at_once
from ipu_model.distributed.ranks import Instances
from ipu_model.errors import ConfigError, InstanceLost

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = datetime.timedelta(minutes=10)
"""How long one process waits for the others. They part only while one of them writes a checkpoint or compiles."""
BUCKET_NUMBERS = 8 << 20
"""Gradients that travel together (32 MiB): as few messages as pay, while the buffer stays small beside the model."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class TorchrunInstances(Instances):
    """Processes that torchrun started."""

    _kept: Dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tensors that collectives work on, made once. gloo's threads let go of them a little after the call returned: were
    they the last to do so they would need Python's lock, which whoever closes the connections holds while it waits
    for those threads (a hang seen with torch 2.0). And nothing is allocated anew in every update."""

    def join(self, device: str) -> None:
        """Find the other processes; a second call finds them found.

        Raises:
            ConfigError: this torch cannot.
            InstanceLost: they did not come.
        """
        import torch.distributed as dist

        if not dist.is_available():
            raise ConfigError("this build of torch has no torch.distributed: start the job without torchrun")
        if dist.is_initialized():
            return
        from torch.distributed.rendezvous import rendezvous

        # torchrun keeps the store when it starts all again, and torch 2.13 then finds the addresses of the processes
        # that are gone there: under a name of its own every attempt finds its own.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with _together(), ending_at_once():
            store, _, _ = next(rendezvous("env://", self.index, self.count, timeout=TIMEOUT))
            own = dist.PrefixStore(f"attempt-{attempt}", store)
            dist.init_process_group(
                BACKENDS[device], store=own, rank=self.index, world_size=self.count, timeout=TIMEOUT
            )

    def add(self, tensors: List[Tensor]) -> None:
        """Put into every tensor its sum over the processes: the same bits in each."""
        import torch
        import torch.distributed as dist

        under_way = []
        for number, bucket in enumerate(buckets([tensor.numel() for tensor in tensors], BUCKET_NUMBERS)):
            parts = [tensors[i].reshape(-1) for i in bucket]
            wide = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
            joined = self._buffer(("sum", number), sum(len(part) for part in parts), parts[0], wide)
            torch.cat([part.to(wide) for part in parts], out=joined)
            with _together():
                under_way.append((bucket, joined, dist.all_reduce(joined, async_op=True)))
        for bucket, joined, work in under_way:
            with _together():
                work.wait()
            for i, total in zip(bucket, joined.split([tensors[i].numel() for i in bucket])):
                tensors[i].copy_(total.view_as(tensors[i]))

    def gather(self, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
        """What all processes gave, by name; each must give the same names and sizes, flat and on the host."""
        import torch.distributed as dist

        gathered = {}
        for name in sorted(state):
            numbers, kind = state[name].numel(), state[name].dtype
            mine = self._buffer(("mine", name), numbers, state[name], kind)
            found = [self._buffer(("of", name, i), numbers, mine, kind) for i in range(self.count)]
            mine.copy_(state[name])
            with _together():
                dist.all_gather(found, mine)
            gathered.update({name if i == 0 else f"{name}@{i}": x.clone() for i, x in enumerate(found)})
        return gathered

    def _buffer(self, purpose: Tuple[Any, ...], numbers: int, beside: Tensor, dtype: Any) -> Tensor:
        """[numbers], made when it is first asked for, on the device of `beside`."""
        key = (*purpose, numbers, dtype)
        if key not in self._kept:
            self._kept[key] = beside.new_empty(numbers, dtype=dtype)
        return self._kept[key]

    def _leave(self, agreed: bool) -> None:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            return
        # gloo's threads must end before the process, which dies of them otherwise; that waits for nobody. NCCL may wait
        # for the others, so after an error its end is left to the process's own.
        if agreed or dist.get_backend() == "gloo":
            dist.destroy_process_group()

    def _means(self, values: List[float], purpose: str) -> List[float]:
        import torch

        total = torch.tensor(values, dtype=torch.float64)
        self.add([total])
        return [float(x) / self.count for x in total]


def under_torchrun(environ: Mapping[str, str]) -> Optional[TorchrunInstances]:
    """This process's place among those of torchrun; None without it, and for one process, which needs no other.

    Raises:
        ConfigError: the variables do not make a place.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}: start the job with torchrun, which sets "
            "all of them, or unset these two to train with one process"
        )
    try:
        index, count, local = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error})") from None
    if not 0 <= index < count:
        raise ConfigError(f"RANK={index} must be at least 0 and below WORLD_SIZE={count}")
    return TorchrunInstances(index, count, local) if count > 1 else None


def exit_code(code: int, environ: Mapping[str, str]) -> int:
    """The exit code of a process that a restart cannot help: `code`, or 0 where torchrun would restart all for it.

    torchrun knows only success and failure, and with `--max-restarts` begins again after any failure: after a pause,
    too, and after a mistake in the parameters. It sets TORCHELASTIC_MAX_RESTARTS (PyTorch, "torchrun").
    """
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return 0 if restarts.isdigit() and int(restarts) > 0 else code


def buckets(sizes: List[int], most: int) -> List[List[int]]:
    """Cut a list of tensors into runs of at most `most` numbers; a larger tensor is a run of its own.

    buckets([3, 3, 9, 1], 6) == [[0, 1], [2], [3]]
    """
    runs: List[List[int]] = []
    held = 0
    for i, size in enumerate(sizes):
        if not runs or held + size > most:
            runs.append([])
            held = 0
        runs[-1].append(i)
        held += size
    return runs


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """torch.distributed says in many words and types that another process is gone: RuntimeErrors all of them."""
    try:
        yield
    except RuntimeError as error:
        raise InstanceLost(str(error)) from error
