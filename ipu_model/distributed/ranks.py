"""Several processes that train one model; alone, everything here is the identity.

Every process trains on its share of the rows of an update. On IPUs it reads no others, and the processes add up what
theirs hold; on CPUs and GPUs each reads the whole update, so that all know its labels without a word. What they have to
tell one another depends on who started them: PopRun (poprun.py) or torchrun (torchrun.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, Mapping, Sequence

from ipu_model.distributed.process import Terminated
from ipu_model.errors import ConfigError

if TYPE_CHECKING:  # __main__ reads the environment before it imports torch
    from torch import Tensor


@dataclass(frozen=True)
class Instances:
    """This process among its equals. Instance 0 writes; every instance trains on its share of each update."""

    index: int = 0
    count: int = 1
    local_index: int = 0
    """Among the instances on this host; on CUDA the GPU that is this one's own."""

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints, models, results and lines for people."""
        return self.index == 0

    def own_folder(self, run_folder: str) -> str:
        """Run folder of this instance: the job's own, or one inside it that nobody else writes to."""
        return run_folder if self.is_writer else f"{run_folder}/instance-{self.index}"

    def shared_folder(self, own_folder: Path) -> Path:
        """Where the checkpoints of all lie, from what own_folder gave."""
        return own_folder if self.is_writer else own_folder.parent

    def share(self, rows: int) -> slice:
        """The rows of one update that this instance trains on: one contiguous block each, in order of index.

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
        """Mean of every value over the instances; each instance must give the same names and purpose."""
        names = sorted(values)
        return dict(zip(names, self._means([float(values[name]) for name in names], purpose)))

    def any_of(self, mine: bool) -> bool:
        """Whether any instance says yes; every instance must ask."""
        return self.any_of_each([mine])[0]

    def any_of_each(self, mine: Sequence[bool]) -> List[bool]:
        """The same for several questions at once; every instance must ask as many."""
        return [share > 0 for share in self._means([float(yes) for yes in mine], "any")]

    def _means(self, values: List[float], purpose: str) -> List[float]:
        return values

    def join(self, device: str) -> None:
        """Find the other instances, which train on this kind of device too; comes before what is below."""

    def add(self, tensors: List[Tensor]) -> None:
        """Put into every tensor the sum of it over the instances, in fp32 or more."""

    def gather(self, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
        """What all instances gave: those of instance 2 under names that end in '@2', of instance 0 as they are."""
        return state

    def own(self, gathered: Dict[str, Tensor]) -> Dict[str, Tensor]:
        """The inverse of gather: what this instance gave."""
        mine = "" if self.is_writer else str(self.index)
        return {name.partition("@")[0]: x for name, x in gathered.items() if name.partition("@")[2] == mine}

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Around a job: whichever way it ends, what join made is closed."""
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
        """agreed: all do so now; else this instance alone, after an error."""
