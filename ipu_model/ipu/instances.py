"""Several processes that train one model under Graphcore's PopRun; alone, everything here is the identity.

PopRun starts the same command N times and tells each process its place in POPDIST_* variables, which the SDK's
package `popdist` reads. On the devices PopTorch and PopDist reduce the gradients; on the host only shares of
the rows and means of the metrics are left to do, the latter through Horovod, which the SDK's examples pair with it.
Names and order of the calls: PopDist's Python API reference, and nlp/bert/pytorch and
tutorials/feature_examples/pytorch/popdist of graphcore/examples.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from ipu_model.errors import ConfigError

POPRUN_VARIABLES = "POPDIST_"
"""PopRun forwards POPDIST_NUM_TOTAL_REPLICAS, POPDIST_NUM_LOCAL_REPLICAS and so on to every process."""

Importer = Callable[[str], Any]


@dataclass(frozen=True)
class Instances:
    """This process among its equals. Instance 0 writes; every instance trains on its share of each update."""

    index: int = 0
    count: int = 1
    total_replicas: Optional[int] = None
    """Replicas of all instances, as given to PopRun; None without PopRun, where the config decides."""
    local_replicas: Optional[int] = None
    """Replicas of this instance; None without PopRun."""
    popdist: Optional[Any] = None
    """The module, under PopRun."""
    collectives: Optional[Any] = None
    """horovod.torch, where there are several instances."""

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

    def replicas(self, replication_factor: int) -> int:
        """Replicas of this process: the config's, or this instance's part of them.

        Raises:
            ConfigError: PopRun was given another number of replicas than the config states.
        """
        if self.total_replicas is None or self.local_replicas is None:
            return replication_factor
        if self.total_replicas != replication_factor:
            raise ConfigError(
                f"poprun --num-replicas {self.total_replicas} does not agree with replication_factor "
                f"{replication_factor} of the ipu_config: both state the replicas of all instances together. "
                "Give both the same number"
            )
        return self.local_replicas

    def make_options(self, poptorch: Any, ipus_per_replica: int) -> Tuple[Any, bool]:
        """PopTorch options and whether PopDist owns their replication (then replicationFactor must not be called).

        Raises:
            ConfigError: PopRun was given another number of IPUs per replica.
        """
        if self.popdist is None:
            return poptorch.Options(), False
        if not self.popdist.checkNumIpusPerReplica(ipus_per_replica):
            raise ConfigError(
                f"poprun --ipus-per-replica {self.popdist.getNumIpusPerReplica()} does not agree with the "
                f"ipu_config, which uses {ipus_per_replica} IPUs per replica (len(layers_per_ipu)): "
                "give both the same number"
            )
        return self.popdist.poptorch.Options(ipus_per_replica=ipus_per_replica), True

    def share(self, rows: int) -> slice:
        """The rows of one update that this instance trains on: one contiguous block each, in order of index.

        Instances(index=1, count=4).share(32) == slice(8, 16)

        Raises:
            ConfigError: the rows do not divide.
        """
        if rows % self.count:
            raise ConfigError(
                f"{rows} rows of an update cannot be shared by {self.count} instances: choose a global_batch_size "
                f"whose rows are a multiple of {self.count} (poprun --num-instances)"
            )
        block = rows // self.count
        return slice(self.index * block, (self.index + 1) * block)

    def mean(self, values: Mapping[str, float], purpose: str = "mean") -> Dict[str, float]:
        """Mean of every value over the instances; each instance must give the same names and purpose."""
        if self.collectives is None:
            return dict(values)
        import torch

        names = sorted(values)
        # One tensor and one name: Horovod pairs the calls of the instances by name.
        mine = torch.tensor([float(values[name]) for name in names], dtype=torch.float64)
        means = self.collectives.allreduce(mine, name=f"podium.{purpose}", op=self.collectives.Average)
        return {name: float(mean) for name, mean in zip(names, means)}

    def any_of(self, mine: bool) -> bool:
        """Whether any instance says yes; every instance must ask."""
        return mine if self.collectives is None else self.mean({"yes": float(mine)}, "any")["yes"] > 0

    def barrier(self) -> None:
        """Wait until every instance came here."""
        if self.collectives is not None:
            import torch

            # A reduction is one: it cannot end before all have called it. hvd.barrier is not in every Horovod.
            self.collectives.allreduce(torch.zeros(1), name="podium.barrier", op=self.collectives.Average)


def current(environ: Mapping[str, str], importer: Importer = importlib.import_module) -> Instances:
    """This process's place; talks to the other instances when there are any, so call it once.

    Raises:
        ConfigError: PopRun started this process, but its Python packages are missing.
    """
    started_by_poprun = any(name.startswith(POPRUN_VARIABLES) for name in environ)
    popdist = _import(importer, "popdist", required=started_by_poprun)
    if popdist is None or not popdist.isPopdistEnvSet():
        return Instances()
    # Nothing else of popdist may come before: graphcore/examples PR 108 was a run without it.
    popdist.init()
    _import(importer, "popdist.poptorch", required=True)
    count = int(popdist.getNumInstances())
    collectives = None
    if count > 1:
        collectives = _import(importer, "horovod.torch", required=True)
        collectives.init()
    return Instances(
        index=int(popdist.getInstanceIndex()),
        count=count,
        total_replicas=int(popdist.getNumTotalReplicas()),
        local_replicas=int(popdist.getNumLocalReplicas()),
        popdist=popdist,
        collectives=collectives,
    )


def _import(importer: Importer, name: str, required: bool) -> Any:
    try:
        return importer(name)
    except ImportError as error:
        if not required:
            return None
        raise ConfigError(
            f"PopRun started this process, but {name} cannot be imported ({error}): each instance would train "
            "alone. Install the wheels of the Poplar SDK (popdist, horovod) into the device's Python, or start "
            "without poprun"
        ) from error
