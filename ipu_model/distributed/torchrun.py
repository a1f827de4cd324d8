"""Data-parallel training on CPUs or GPUs in several processes, under torchrun.

torchrun starts the same command N times and passes each process its rank in environment variables, which
torch.distributed reads (PyTorch, "torchrun (Elastic Launch)"). Every process holds all weights. Gradients are
all-reduced once per update, in fp32 buckets, after the last backward pass. DistributedDataParallel would overlap
communication with the backward pass, but it averages gradients, while the losses here are shares of one sum; it manages
the gradients of a single set of weights, while there may be low-precision copies; and with many micro-batches per
update there is little communication to hide.

Control messages (stopping, generators) use gloo between the hosts, so that no GPU waits for them.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ipu_model.core.errors import ConfigError, InstanceLost
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import exit_on_signals

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = datetime.timedelta(minutes=10)
"""Maximum wait for the other processes. They diverge only while one of them writes a checkpoint or compiles."""
BUCKET_NUMBERS = 8 << 20
"""Gradients per message (32 MiB): few messages, and a buffer that is small compared with the model."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class TorchrunInstances(Instances):
    """Processes that torchrun started."""

    _buffers: Dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tensors for collectives, allocated once. gloo's threads release them slightly after the call returns. If a thread
    dropped the last reference it would need Python's GIL, which the thread that closes the connections holds while it
    waits for gloo's threads (a hang observed with torch 2.0). Reuse also avoids allocations in every update."""

    def join(self, device: str) -> None:
        """Connect to the other processes; a second call does nothing.

        Raises:
            ConfigError: this torch has no torch.distributed.
            InstanceLost: the other processes did not connect.
        """
        import torch.distributed as dist

        if not dist.is_available():
            raise ConfigError("this build of torch has no torch.distributed: start the job without torchrun")
        if dist.is_initialized():
            return
        from torch.distributed.rendezvous import rendezvous

        # torchrun keeps the store when it restarts all processes, and torch 2.13 would then read the addresses of the
        # ended processes: a prefix per attempt separates them.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with _as_instance_lost(), exit_on_signals():
            store, _, _ = next(rendezvous("env://", self.index, self.count, timeout=TIMEOUT))
            prefix_store = dist.PrefixStore(f"attempt-{attempt}", store)
            dist.init_process_group(
                BACKENDS[device], store=prefix_store, rank=self.index, world_size=self.count, timeout=TIMEOUT
            )

    def all_reduce(self, tensors: List[Tensor]) -> None:
        """Replace every tensor by its sum over the processes, with the same bits in each."""
        import torch
        import torch.distributed as dist

        pending = []
        for number, bucket in enumerate(make_buckets([tensor.numel() for tensor in tensors], BUCKET_NUMBERS)):
            parts = [tensors[i].reshape(-1) for i in bucket]
            wide = torch.float64 if parts[0].dtype == torch.float64 else torch.float32
            joined = self._buffer(("sum", number), sum(len(part) for part in parts), parts[0], wide)
            torch.cat([part.to(wide) for part in parts], out=joined)
            with _as_instance_lost():
                pending.append((bucket, joined, dist.all_reduce(joined, async_op=True)))
        for bucket, joined, work in pending:
            with _as_instance_lost():
                work.wait()
            for i, total in zip(bucket, joined.split([tensors[i].numel() for i in bucket])):
                tensors[i].copy_(total.view_as(tensors[i]))

    def gather(self, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
        import torch.distributed as dist

        gathered = {}
        for name in sorted(state):
            numbers, kind = state[name].numel(), state[name].dtype
            mine = self._buffer(("mine", name), numbers, state[name], kind)
            parts = [self._buffer(("of", name, i), numbers, mine, kind) for i in range(self.count)]
            mine.copy_(state[name])
            with _as_instance_lost():
                dist.all_gather(parts, mine)
            gathered.update({name if i == 0 else f"{name}@{i}": x.clone() for i, x in enumerate(parts)})
        return gathered

    def _buffer(self, purpose: Tuple[Any, ...], numbers: int, like: Tensor, dtype: Any) -> Tensor:
        """Return a reusable tensor [numbers] on the device of `like`."""
        key = (*purpose, numbers, dtype)
        if key not in self._buffers:
            self._buffers[key] = like.new_empty(numbers, dtype=dtype)
        return self._buffers[key]

    def _leave(self, agreed: bool) -> None:
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            return
        # gloo's threads must end before the process, which would crash otherwise; this does not wait for the others.
        # NCCL may wait for them, so after an error it ends with the process.
        if agreed or dist.get_backend() == "gloo":
            dist.destroy_process_group()

    def _means(self, values: List[float], purpose: str) -> List[float]:
        import torch

        total = torch.tensor(values, dtype=torch.float64)
        self.all_reduce([total])
        return [float(x) / self.count for x in total]


def detect_torchrun(environ: Mapping[str, str]) -> Optional[TorchrunInstances]:
    """Return this process's rank under torchrun; None without torchrun, or for a single process.

    Raises:
        ConfigError: the variables of torchrun are incomplete or invalid.
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


def choose_exit_code(code: int, environ: Mapping[str, str]) -> int:
    """Return the exit code of a job that a restart cannot fix: `code`, or 0 if torchrun would restart all processes.

    torchrun only distinguishes success and failure. With `--max-restarts` it restarts after any failure, including a
    pause or invalid parameters. It sets TORCHELASTIC_MAX_RESTARTS (PyTorch, "torchrun").
    """
    restarts = environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return 0 if restarts.isdigit() and int(restarts) > 0 else code


def make_buckets(sizes: List[int], most: int) -> List[List[int]]:
    """Group consecutive tensors into buckets of at most `most` numbers; a larger tensor gets its own bucket.

    make_buckets([3, 3, 9, 1], 6) == [[0, 1], [2], [3]]
    """
    groups: List[List[int]] = []
    total = 0
    for i, size in enumerate(sizes):
        if not groups or total + size > most:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += size
    return groups


@contextlib.contextmanager
def _as_instance_lost() -> Iterator[None]:
    """Raise InstanceLost for errors of torch.distributed: all of them are RuntimeErrors, with many different texts."""
    try:
        yield
    except RuntimeError as error:
        raise InstanceLost(str(error)) from error
