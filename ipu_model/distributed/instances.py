"""Instances of a data-parallel training; for a single process, every operation here is the identity.

Every instance trains on its share of the rows of an update. On IPUs it reads only its share, and the instances sum
their label counts. On CPUs and GPUs each instance reads the whole update, so it can count the labels without
communication. How they communicate depends on the launcher: PopRun (poprun.py) or torchrun (torchrun.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Sequence

from ipu_model.core.errors import ConfigError
from ipu_model.distributed.process import Terminated

if TYPE_CHECKING:  # __main__ reads the environment before it imports torch
    from torch import Tensor


@dataclass(frozen=True)
class Instances:
    """Rank of this process. Instance 0 writes all files; every instance trains on its share of each update."""

    index: int = 0
    count: int = 1
    local_index: int = 0
    """Index among the instances on this host; on CUDA also the index of its GPU."""

    @property
    def is_writer(self) -> bool:
        """True if this process writes checkpoints, models, results and progress."""
        return self.index == 0

    def own_folder(self, run_folder: str) -> str:
        """Return the run folder of this instance: the job's, or a private folder inside it."""
        return run_folder if self.is_writer else f"{run_folder}/instance-{self.index}"

    def shared_folder(self, own_folder: Path) -> Path:
        """Return the folder of the shared checkpoints, from the result of own_folder."""
        return own_folder if self.is_writer else own_folder.parent

    def share(self, rows: int) -> slice:
        """Return the rows of one update that this instance trains on: one contiguous block each, in order of index.

        Instances(index=1, count=4).share(32) == slice(8, 16)

        Raises:
            ConfigError: the rows do not divide.
        """
        if rows % self.count:
            raise ConfigError(
                f"{rows} rows of an update cannot be shared by {self.count} instances: choose a global_batch_size "
                f"whose rows are a multiple of {self.count} (poprun --num-instances, torchrun --nproc-per-node)"
            )
        block = rows // self.count
        return slice(self.index * block, (self.index + 1) * block)

    def mean(self, values: Mapping[str, float], purpose: str = "mean") -> Dict[str, float]:
        """Return the mean of every value over the instances; names and purpose must be the same in all."""
        names = sorted(values)
        return dict(zip(names, self._means([float(values[name]) for name in names], purpose)))

    def any_instance(self, mine: Sequence[bool]) -> List[bool]:
        """Return for each vote whether any instance votes True; every instance must call this with as many votes."""
        return [share > 0 for share in self._means([float(yes) for yes in mine], "any")]

    def _means(self, values: List[float], purpose: str) -> List[float]:
        return values

    def join(self, device: str) -> None:
        """Connect to the other instances, all on this kind of device; call it before the methods below."""

    def all_reduce(self, tensors: List[Tensor]) -> None:
        """Replace every tensor by its sum over the instances, computed in fp32 or wider."""

    def gather(self, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
        """Gather tensors, flat, on the host and with the same names and sizes in all instances.

        Names of instance 2 end in '@2', those of instance 0 are unchanged.
        """
        return state

    def select_own(self, gathered: Dict[str, Tensor]) -> Dict[str, Tensor]:
        """Return the tensors of this instance from the result of gather."""
        mine = "" if self.is_writer else str(self.index)
        return {name.partition("@")[0]: x for name, x in gathered.items() if name.partition("@")[2] == mine}

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Close the connections of join when the body ends, even by an error."""
        agreed = False
        try:
            yield
            agreed = True
        except Terminated:
            agreed = True  # all stop with the same update
            raise
        finally:
            self._leave(agreed)

    def _leave(self, agreed: bool) -> None:
        """Close connections. `agreed`: all instances do so now; otherwise only this one, after an error."""
